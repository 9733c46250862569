"""Training steps on a CPU against what a user would take instead."""

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2Model,
    Mamba2Config,
    Mamba2Model,
    MambaConfig,
    MambaModel,
    PreTrainedModel,
    RwkvConfig,
    RwkvModel,
)

from benchmarks.roofline import Step
from benchmarks.rows import Row, Scale, compared, skipped
from hf_memory.mixers.auto import mixer_class, mixer_config, mixer_model
from hf_memory.ops.delta_rule import delta_rule
from hf_memory.ops.linear_attention import linear_attention
from hf_memory.ops.taylor_attention import taylor_attention

VOCABULARY = 64
TORCH_CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def backward(module: nn.Module, loss: Callable[[], Tensor], numbers: int = 0) -> Step:
    """A training step without an optimiser; ``numbers`` are those that its layers take in and give."""
    return Step(module, loss, numbers)


def ours(key: str, width: int, length: int, batch: int, **fields: Any) -> Step:
    """A training step of two layers of ours without a head."""
    limit = max(2048, length)
    config = mixer_config(key, vocab_size=VOCABULARY, hidden_size=width, max_position_embeddings=limit, **fields)
    model = mixer_model(config).train()
    ids = torch.randint(0, VOCABULARY, (batch, length))
    return backward(model, lambda: model(ids).last_hidden_state.square().mean(), 2 * 2 * batch * length * width)


class Cells(nn.Module):
    """Two layers of one of torch's own cells over embedded tokens."""

    def __init__(self, kind: type[nn.RNNBase], width: int):
        super().__init__()
        self.embedding, self.cells = nn.Embedding(VOCABULARY, width), kind(width, width, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Outputs (B, T, D)."""
        return self.cells(self.embedding(ids))[0]


def public_models(width: int) -> list[tuple[str, str, Callable[[], nn.Module], float | None]]:
    """Our key, a name, a constructor, and the most that our time may be of theirs."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": 2}
    gpt2 = {"vocab_size": VOCABULARY, "n_embd": width, "n_layer": 2, "n_head": 2, "n_positions": 2048}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    heads = {"head_dim": width // 2, "num_heads": 4, "n_groups": 1}
    return [
        ("mamba", "transformers Mamba", lambda: MambaModel(MambaConfig(**sizes)), 1 / 100),
        ("mamba", "transformers Mamba, mambapy", lambda: MambaModel(MambaConfig(**sizes, use_mambapy=True)), 1 / 5),
        ("mamba", "transformers Mamba-2", lambda: Mamba2Model(Mamba2Config(**sizes, **heads)), None),
        ("rwkv", "transformers RWKV", lambda: RwkvModel(RwkvConfig(**sizes, attention_hidden_size=width)), 1 / 20),
        ("attention", "transformers GPT-2", lambda: GPT2Model(GPT2Config(**gpt2, **drops)), None),
        *(
            (key, f"torch.nn.{kind.__name__}", lambda k=kind: Cells(k, width), None)
            for key, kind in TORCH_CELLS.items()
        ),
    ]


def public_model_step(model: nn.Module, ids: Tensor) -> Step:
    """A training step of a model that is not ours."""

    def loss() -> Tensor:
        output = model(ids, use_cache=False).last_hidden_state if isinstance(model, PreTrainedModel) else model(ids)
        return output.square().mean()

    return backward(model.train(), loss)


def peers(scale: Scale) -> Iterator[Row]:
    """Two layers of width 64 without a head, 16 rows of 256 tokens, against public models of the same size."""
    width = scale.widths[0]
    ids = torch.randint(0, VOCABULARY, (scale.batch, scale.length))
    for key, name, build, floor in public_models(width):
        block = {"intermediate_size": 4 * width} if key == "attention" else {}
        try:
            step = ours(key, width, scale.length, scale.batch, **block)
            yield compared(f"{key} against {name}", step, public_model_step(build(), ids), scale, floor)
        except ImportError as error:
            yield skipped(f"{key} against {name}", error)


PRODUCTS = {"attention": 1.8, "hyena": 1.8, "mamba": 2.5, "delta_net": 2.5}
"""Of the time of the products of its weights alone, what a step in the size of a study's cell may take."""


def products(scale: Scale) -> Iterator[Row]:
    """Two layers with an MLP, 64 rows of 32 tokens, width 64, against the matrix products of their weights."""
    width, batch, length = scale.widths[0], 4 * scale.batch, scale.length // 8
    for key, at_most in PRODUCTS.items():
        step = ours(key, width, length, batch, intermediate_size=4 * width)
        alone = products_of(step.module, batch * length)
        yield compared(f"{key} against the products of its weights, {batch} x {length}", step, alone, scale, at_most)


def products_of(module: nn.Module, tokens: int) -> Callable[[], None]:
    """The three products of each linear layer with so many tokens, forward and backward."""
    weights = [layer.weight.detach() for layer in module.modules() if isinstance(layer, nn.Linear)]
    columns = [
        (weight, torch.randn(tokens, weight.shape[1]), torch.randn(tokens, weight.shape[0])) for weight in weights
    ]

    def run() -> None:
        for weight, inputs, grads in columns:
            torch.mm(inputs, weight.T)
            torch.mm(grads, weight)
            torch.mm(grads.T, inputs)

    return run


def yardstick(scale: Scale) -> Iterator[Row]:
    """Every mixer against attention with RoPE, two heads and an MLP of four times the width."""
    doubled = ("lru", "qlstm", "s4d", "rwkv", "delta_net", "linear_transformer", "gru", "rnn", "lstm")
    floors = {**dict.fromkeys(doubled, 2.0), **dict.fromkeys(("mamba", "h3", "based"), 3.0)}
    width = scale.widths[1]
    for length, batch in ((scale.length, scale.batch), (scale.long, 1)):
        attention = ours("attention", width, length, batch, intermediate_size=4 * width)
        for key in mixer_keys():
            if key == "attention":
                continue
            floor = floors.get(key)
            if length == scale.long:
                floor = 1.0 if key in (*doubled, "mamba") else None
            step = ours(key, width, length, batch)
            yield compared(f"{key} against attention, {batch} x {length}", step, attention, scale, floor)
    for key, factor in (("nru", 6.0), ("ids4", 8.0)):
        step, lstm = (ours(k, width, scale.length, scale.batch) for k in (key, "lstm"))
        yield compared(f"{key} against our LSTM", step, lstm, scale, factor)


def mixer_keys() -> tuple[str, ...]:
    """Keys of the mixers, without stacks of several."""
    return tuple(importlib.import_module("hf_memory.mixers").MIXERS)


def cells(scale: Scale) -> Iterator[Row]:
    """One layer of GRU and RNN against that of torch, at several batches and widths."""
    for key, batch, width in itertools.product(("gru", "rnn"), scale.cell_batches, scale.cell_widths):
        length = scale.length if batch * width <= 8192 else scale.length // 4
        mixer = mixer_class(key)(mixer_config(key, vocab_size=8, hidden_size=width), 0)
        theirs = TORCH_CELLS[key](width, width, batch_first=True)
        for parameter in mixer.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)
        inputs = torch.randn(batch, length, width, requires_grad=True)
        loss = lambda m=mixer, x=inputs: m(x, return_state=False)[0].square().mean()  # noqa: E731
        first = backward(mixer, loss, 2 * inputs.numel())
        second = backward(theirs, lambda m=theirs, x=inputs: m(x)[0].square().mean())
        floor = 1 / 1.3 if (key, batch, width) == ("gru", 16, 128) else 1.0
        yield compared(f"{key} against torch.nn, {batch} x {length}, width {width}", first, second, scale, floor)


def naive(path: str) -> ModuleType:
    """A file of fla's plain torch operators, loaded without the package, which needs a GPU compiler.

    Raises:
        ImportError: The package is not installed.
    """
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("fla is not installed")
    file = Path(next(iter(spec.submodule_search_locations))) / "ops" / path / "naive.py"
    own = importlib.util.spec_from_file_location(f"naive_{path}", file)
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)
    return module


def operators(scale: Scale) -> Iterator[Row]:
    """Forward and backward of operators against the plain torch forms of fla, 4 heads of 32."""
    length = max(64, scale.length)
    query, key, value = (torch.randn(scale.batch, length, 4, 32, requires_grad=True) for _ in range(3))
    beta = torch.rand(scale.batch, length, 4, requires_grad=True)
    unit = [F.normalize(x, dim=-1) for x in (query.detach(), key.detach())]
    leaves = [x.requires_grad_() for x in unit]
    cases: list[tuple[str, str, Callable[[], Any], Callable[[ModuleType], Any]]] = [
        (
            "delta rule",
            "delta_rule",
            lambda: delta_rule(*leaves, value, beta)[0],
            lambda m: m.delta_rule_chunkwise(*(x.transpose(1, 2) for x in (*leaves, value, beta)))[0],
        ),
        (
            "linear attention",
            "linear_attn",
            lambda: linear_attention(query, key, value)[0],
            lambda m: m.naive_chunk_linear_attn(query, key, value),
        ),
        (
            "Taylor attention",
            "based",
            lambda: taylor_attention(*(x[..., :16] for x in (query, key)), value)[0],
            lambda m: m.naive_parallel_based(
                *(x.transpose(1, 2) for x in (query[..., :16], key[..., :16], value)),
            ),
        ),
    ]
    for name, path, mine, theirs in cases:
        what = f"{name} against fla's plain torch form"
        try:
            module = naive(path)
            steps = [lambda: mine().sum().backward(), lambda: theirs(module).sum().backward()]  # noqa: B023
            yield compared(what, *steps, scale)
        except (ImportError, RuntimeError) as error:
            yield skipped(what, error)
