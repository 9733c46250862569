"""Random configs and inputs of all model types: finite outputs of the documented shape, or an error that names a field.

Every value is drawn together with the word whether it may be taken; a value that is taken and may not be is a fault,
as is one that is refused and may not be. A case is known by the seed and its number alone.
"""

import contextlib
import dataclasses
import math
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from benchmarks.faults_cases import Nonsense, pick, run_cases
from benchmarks.faults_common import Tally
from hf_memory.mixers.auto import mixer_config, mixer_model, model_keys
from hf_memory.models.configuration import MemoryConfig

VOCAB, WIDTH, CLASSES = 11, 16, 3

NAMED = (ValueError, TypeError, StrictDataclassError)
_WHOLE = (-1, 0, 1, 2, 3, 4, 5, 8, 16, 24, True, 2.0, 2.5, math.nan, math.inf, "8", None, [4], -(2**63))
_REAL = (-1.0, -0.0, 0.0, 1e-8, 0.1, 0.5, 0.9, 1.0, 1.5, 1, 0, math.nan, math.inf, -math.inf, True, "0.1", None, [0.5])
_TRUTH = (True, False, 0, 1, None, "yes", 2.0)
_WORDS = ("nope", "", None, 3, "none", "rms", "gelu", "learned", "sinusoidal", True)
_OTHER = ([], [1], None, "x", {}, ["lstm"], ["gru", {"mixer": "lstm"}], [{"mixer": 3}], ["nope"], 2, 0.5)


def attack(root: Path, number: int, seed: int) -> Iterator[Callable[[], Tally]]:
    """Two cases: random configs, and random inputs."""
    yield lambda: run_cases(root, "random configs", number // 2, seed, config_case)
    yield lambda: run_cases(root, "random inputs", number - number // 2, seed, input_case)


def config_case(rng: np.random.Generator) -> str:
    """Draw some fields of a config, and run the model of whatever is taken."""
    key = pick(rng, model_keys())
    fields = own_fields(key)
    names = [pick(rng, sorted(fields)) for _ in range(int(rng.integers(1, 4)))]
    given = {name: pick(rng, _pool(fields[name])) for name in names}
    head, layers = pick(rng, ("causal", "token_classification")), 2 if key == "hybrid" else 1
    what = f"{key} with {given}"
    try:
        config = mixer_config(key, **{"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": layers, **given})
        model = mixer_model(config, head).eval()
        length = 7
        with torch.no_grad():
            outputs = model(torch.randint(0, config.vocab_size, (2, length)))
    except NAMED as error:
        if not any(name in str(error) for name in fields):
            raise Nonsense(f"{what}: the error names no field ({type(error).__name__}: {error})") from error
        return "refused by name"
    except Exception as error:
        raise Nonsense(f"{what}: {type(error).__name__}: {error}") from error
    classes = config.vocab_size if head == "causal" else config.num_labels
    _check(outputs.logits, (2, length, classes), what)
    return "finite outputs"


def own_fields(key: str) -> dict[str, Any]:
    """Fields of a config that the package declares, with their types."""
    cls = type(mixer_config(key, vocab_size=VOCAB))
    own = [base for base in reversed(cls.__mro__) if issubclass(base, MemoryConfig)]
    kinds = {name: kind for base in own for name, kind in vars(base).get("__annotations__", {}).items()}
    return {field.name: kinds[field.name] for field in dataclasses.fields(cls) if field.name in kinds}


def _pool(kind: Any) -> tuple:
    """Values for a field of a type, most of them near those that it takes."""
    if typing.get_origin(kind) is typing.Literal:
        return (*typing.get_args(kind), *typing.get_args(kind), *_WORDS)
    parts = set(typing.get_args(kind)) or {kind}
    if bool in parts:
        return _TRUTH
    if float in parts:
        return _REAL
    if int in parts:
        return _WHOLE
    return (*_WORDS, "silu", "relu") if str in parts else _OTHER


def _check(values: torch.Tensor, shape: tuple[int, ...], what: str) -> None:
    if tuple(values.shape) != shape:
        raise Nonsense(f"{what}: the shape is {tuple(values.shape)} in place of {shape}")
    if not bool(torch.isfinite(values).all()):
        raise Nonsense(f"{what}: values that are not finite")


_MODELS: dict[tuple[str, str], Any] = {}


def _model(key: str, head: str) -> Any:
    if (key, head) not in _MODELS:
        labels = {"num_labels": 1, "problem_type": "regression"} if head == "regression" else {"num_labels": CLASSES}
        layers = 2 if key == "hybrid" else 1  # as many as it has entries
        config = mixer_config(key, vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=layers, **labels)
        _MODELS[key, head] = mixer_model(config, "causal" if head == "causal" else "token_classification")
    return _MODELS[key, head]


Drawn = tuple[Any, bool]
"""A value, and whether it may be taken."""


def input_case(rng: np.random.Generator) -> str:
    """Draw the arguments of one forward pass of a small model."""
    key, head = pick(rng, model_keys()), pick(rng, ("causal", "token_classification", "regression"))
    model = _model(key, head).train(bool(rng.integers(2)))
    batch, length = int(rng.integers(1, 4)), int(rng.integers(1, 10))
    drawn = {"input_ids": _ids(rng, batch, length)}
    optional = {
        "attention_mask": lambda: _mask(rng, batch, length),
        "position_ids": lambda: _positions(rng, batch, length),
        "labels": lambda: _labels(rng, batch, length, head),
        "cache": lambda: _cache(rng, key, batch),
        "logits_to_keep": lambda: pick(rng, ((0, True), (1, True), (length, True), (-1, False))),
        "return_logits": lambda: pick(rng, ((True, True), (False, True), (None, True))),
    }
    drawn |= {name: draw() for name, draw in optional.items() if rng.random() < 0.35}
    wrong = [name for name, (_, may) in drawn.items() if not may]
    arguments = {name: value for name, (value, _) in drawn.items()}
    what = f"{key}, {head}, {'training' if model.training else 'evaluation'}, {_described(arguments)}"
    try:
        with contextlib.nullcontext() if model.training else torch.no_grad():
            outputs = model(**arguments)
    except NAMED as error:
        if not wrong:
            raise Nonsense(f"{what}: refused ({error})") from error
        if not any(name in str(error) for name in wrong):
            raise Nonsense(f"{what}: {', '.join(wrong)} is not named in {error}") from error
        return "refused by name"
    except Exception as error:
        raise Nonsense(f"{what}: {type(error).__name__}: {error}") from error
    if wrong:
        raise Nonsense(f"{what}: {', '.join(wrong)} was taken")
    _check_outputs(outputs, arguments, model, (batch, length), what)
    return "finite outputs"


def _check_outputs(outputs: Any, arguments: dict[str, Any], model: Any, shape: tuple[int, int], what: str) -> None:
    """Check shapes and numbers of everything that an output holds."""
    has_labels, asked = "labels" in arguments, arguments.get("return_logits")
    logits = (not has_labels or not model.training) if asked is None else asked
    if (outputs.logits is not None) != logits or (outputs.loss is not None) != has_labels:
        raise Nonsense(f"{what}: logits or loss are there where they should not be, or are not")
    if logits:
        kept = arguments.get("logits_to_keep", 0) or shape[1]
        _check(outputs.logits, (shape[0], kept, model.head.out_features), what)
    elif outputs.predictions is None or tuple(outputs.predictions.shape) != shape:
        raise Nonsense(f"{what}: predictions are not (batch, length)")
    if has_labels:
        _check(outputs.loss, (), what)
        if not logits:
            _check(outputs.token_loss, shape, what)
        if model.training:
            model.zero_grad()
            outputs.loss.backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    _check(parameter.grad, tuple(parameter.shape), f"{what}: gradient of {name}")


def _described(arguments: dict[str, Any]) -> str:
    """Arguments in short."""
    parts = []
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            text = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        else:
            text = repr(value) if isinstance(value, (int, str, type(None), list)) else type(value).__name__
        parts.append(f"{name} {text}")
    return ", ".join(parts)


def _tensor(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int, kind: Any) -> torch.Tensor:
    return torch.as_tensor(rng.integers(low, high, size=shape)).to(kind)


def _ids(rng: np.random.Generator, batch: int, length: int) -> Drawn:
    kind = rng.integers(14)
    good = _tensor(rng, (batch, length), 0, VOCAB, torch.int64)
    wrong = {
        0: good.float(), 1: good + VOCAB, 2: good - VOCAB - 1, 3: good[0], 4: good[None], 5: good[:, :0], 6: good[:0],
        7: good.bool(), 8: good.tolist(), 9: good.to(torch.int16),
    }  # fmt: skip
    if kind in wrong and rng.random() < 0.6:
        return wrong[int(kind)], False
    return good.to(torch.int32) if kind == 10 else good, True


def _mask(rng: np.random.Generator, batch: int, length: int) -> Drawn:
    kind = int(rng.integers(12))
    good = _tensor(rng, (batch, length), 0, 2, torch.int64)
    wrong = {
        0: (1 - good) * -1e9 - 1, 1: good + 2, 2: good[:, :-1], 3: good[0], 4: good[None, None],
        5: good.float() * 0.5 + 0.25, 6: torch.cat([good, good[:1]]), 7: "mask",
        8: torch.full((batch, length), math.nan),
    }  # fmt: skip
    if kind in wrong:
        return wrong[kind], False
    return {9: good.bool(), 10: good.float()}.get(kind, good), True


def _positions(rng: np.random.Generator, batch: int, length: int) -> Drawn:
    kind = int(rng.integers(7))
    good = torch.arange(length).expand(batch, length)
    wrong = {0: good.float(), 1: good[:, :-1], 2: good[None], 3: [0], 4: torch.cat([good, good])[: batch + 1]}
    if kind in wrong:
        value = wrong[kind]
        may = kind == 1 and value.shape[1] >= length
        return value, may or (kind == 4 and value.shape[0] == batch)
    return good[0] if kind == 5 else good, True


def _labels(rng: np.random.Generator, batch: int, length: int, head: str) -> Drawn:
    kind, classes = int(rng.integers(10)), VOCAB if head == "causal" else CLASSES
    if head == "regression":
        good = torch.as_tensor(rng.normal(size=(batch, length)), dtype=torch.float32)
        wrong: dict[int, Any] = {0: good[:, None], 1: good[:1, :-1], 2: good.bool(), 3: good.tolist(), 4: good[None]}
    else:
        good = _tensor(rng, (batch, length), 0, classes, torch.int64)
        wrong = {0: good + classes, 1: good[:1, :-1], 2: good.float(), 3: good.tolist(), 4: good - 1 - classes}
    if kind in wrong:
        return wrong[kind], False
    if kind == 9:
        good = good.masked_fill(torch.as_tensor(rng.random((batch, length)) < 0.5), -100)
    return good, True


def _cache(rng: np.random.Generator, key: str, batch: int) -> Drawn:
    """The cache of this model, of another batch, of another type, or something else."""
    kind = int(rng.integers(6))
    if kind == 0:
        return pick(rng, ("cache", (1, 2), {})), False
    other = pick(rng, [name for name in model_keys() if name != key]) if kind == 1 else key
    rows = batch + 1 if kind == 2 else batch
    model = _model(other, "causal").eval()
    with torch.no_grad():
        cache = model(_tensor(rng, (rows, 4), 0, VOCAB, torch.int64), use_cache=True).cache
    return cache, kind > 2
