"""Every module that owns a parameter is called, and works where adapters, quantisation or offloading replace it."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from hf_memory.mixers.auto import config_class, mixer_config
from hf_memory.models.configuration import MemoryConfig
from hf_memory.ops import linear_cross_entropy
from hf_memory.testing.models import VOCAB, close, make, tokens

HEADS = pytest.mark.parametrize("head", ["causal", "token_classification"])
PARTS = {
    "block_conv_kernel": 3,
    "intermediate_size": 8,
    "mlp_gated": True,
    "position_embedding": "learned",
    "max_position_embeddings": 32,
}


def variants(key: str) -> Iterator[dict[str, Any]]:
    """The default, and each switch, choice and width of a convolution of a mixer's own config, one at a time."""
    yield {}
    shared = {field.name for field in dataclasses.fields(MemoryConfig)}
    for field in dataclasses.fields(config_class(key)):
        if field.name in shared:
            continue
        choices = get_args(field.type) if get_origin(field.type) is Literal else ()
        if field.type is bool:
            choices = (not field.default,)
        elif field.name in ("conv_kernel", "expand"):
            choices = (0, 2)
        yield from ({field.name: choice} for choice in choices if choice != field.default and fits(key, choice, field))


def fits(key: str, choice: Any, field: dataclasses.Field) -> bool:
    """Whether a config takes a value while its other fields have their defaults."""
    try:
        mixer_config(key, vocab_size=VOCAB, hidden_size=16, **{field.name: choice})
    except StrictDataclassError:
        return False
    return True


def watch(model: nn.Module) -> dict[str, list]:
    """Replace the forward of each module that owns a parameter by one that takes notes."""
    called: dict[str, list] = {}
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        notes, forward = called.setdefault(name, []), module.forward

        def noting(*args: Any, notes: list = notes, forward: Any = forward, **kwargs: Any) -> Any:
            notes.append(len(args))
            return forward(*args, **kwargs)

        module.forward = noting
    return called


def roads(model: nn.Module) -> Iterator[str]:
    """Every way through a model: training, evaluation with and without logits, and one token after the other."""
    ids = tokens()
    labels = torch.randint(0, model.head.out_features, ids.shape)
    model.train()(ids, labels=labels).loss.backward()
    yield "training"
    model.eval()(ids, labels=labels)
    yield "evaluation"
    model(ids, labels=labels, return_logits=False)
    yield "predictions"
    cache = model(ids, use_cache=True).cache
    yield "inference"
    model(ids[:, :1], cache=cache)
    yield "a single step"


@HEADS
def test_every_module_that_owns_a_parameter_is_called_on_every_road(key, head, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "CACHED", 0)  # the fused loss, with as few classes as here
    for fields in variants(key):
        called = watch(model := make(key, head, **{**PARTS, **fields}))
        assert len(called) >= 8
        for road in roads(model):
            assert [name for name, notes in called.items() if not notes] == [], (fields, road)
            for notes in called.values():
                notes.clear()


@HEADS
def test_an_adapter_on_each_linear_layer_is_trained(key, head, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "CACHED", 0)  # the fused loss, with as few classes as here
    model = make(key, head, **PARTS).requires_grad_(False)
    linears = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    for name in linears:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, Adapted(model.get_submodule(name)))
    ids, labels = tokens(), torch.randint(0, 3, (3, 12))
    model.train()(ids, labels=labels).loss.backward()
    for name in linears:
        assert model.get_submodule(name).up.weight.grad.abs().max() > 0, name


class Adapted(nn.Module):
    """A linear layer with a low-rank correction, as LoRA has (Hu et al., 2022)."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        dtype = base.weight.dtype
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False, dtype=dtype)
        self.up = nn.Linear(2, base.out_features, bias=False, dtype=dtype)
        nn.init.zeros_(self.up.weight)

    @property
    def out_features(self) -> int:
        """As of the layer itself."""
        return self.base.out_features

    @property
    def weight(self) -> torch.Tensor:
        """That of the layer itself, as adapters show it."""
        return self.base.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layer's output and the correction."""
        return self.base(inputs) + self.up(self.down(inputs))


def test_offloaded_weights_give_the_same_outputs(key, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "CACHED", 0)  # the fused loss, with as few classes as here
    ids = tokens()
    for fields in variants(key):
        model = make(key, **{**PARTS, **fields})
        expected = model(ids, labels=ids, use_cache=True)
        step = model(ids[:, :1], cache=expected.cache).logits
        cpu_offload(model, execution_device="cpu")
        assert all(parameter.is_meta for parameter in model.parameters())
        actual = model(ids, labels=ids, use_cache=True)
        assert torch.equal(actual.logits, expected.logits), fields
        close(actual.loss, expected.loss, 1e-5)
        assert torch.equal(model(ids[:, :1], cache=actual.cache).logits, step), fields


@HEADS
@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_a_head_that_is_dispatched_apart_from_its_model_gives_the_same_loss(key, head, place, tmp_path, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "CACHED", 0)  # the fused loss, with as few classes as here
    ids, labels = tokens(), torch.randint(0, 3, (3, 12))
    model = make(key, head, tie_word_embeddings=False)
    expected = model(ids, labels=labels)
    name = "lm_head" if head == "causal" else "score"
    devices = {"model": "cpu", name: place}
    dispatch_model(model, devices, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    assert model.head.weight.is_meta == (place == "disk")
    actual = model(ids, labels=labels)
    close(actual.loss, expected.loss, 1e-5)
    close(actual.logits, expected.logits, 1e-6)
    assert torch.equal(model(ids, labels=labels, return_logits=False).predictions, predictions(expected, labels, model))


def predictions(outputs: Any, labels: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """The most likely class where a target stands, -100 elsewhere."""
    targets = nn.functional.pad(labels[:, model.shift :], (0, model.shift), value=-100)
    return torch.where(targets == -100, -100, outputs.logits.argmax(-1))
