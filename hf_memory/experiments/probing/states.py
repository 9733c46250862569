"""The state of any causal model: found, measured, copied and put back.

A state is what a model hands on in its outputs (caches of transformers, lists of tensors, the states of this package),
and what it keeps on its modules between calls, as RecurrentGemma does. The second kind is found by looking: tensors on
modules that are no parameters and are others after a pass than before.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state", "mems")
"""Names under which models hand their caches on, of this and of earlier releases of transformers."""

_DEEPEST = 12

Kept = dict[tuple[nn.Module, str], torch.Tensor]
Mark = tuple[torch.Tensor, int | torch.Tensor]
"""A tensor, and how often it was written or what it held."""


@dataclasses.dataclass
class LiveState:
    """What a model holds of the tokens that it has read.

    Attributes:
        name: Name under which the model takes its cache; empty where all it holds is on modules.
        cache: The cache.
        kept: Tensors on modules, by module and name.
        columns: Tokens that were read.
    """

    name: str
    cache: Any
    kept: Kept
    columns: int

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of numbers in the state, each memory once. Integers are bookkeeping."""
        found: dict[tuple[int, int], torch.Tensor] = {}
        for tensor in [*_walk(self.cache, 0, set()), *self.kept.values()]:
            if tensor.is_floating_point() or tensor.is_complex():
                found[tensor.data_ptr(), tensor.numel()] = tensor
        return [tensor for tensor in found.values() if tensor.numel()]

    def numbers(self) -> int:
        """Numbers held."""
        return sum(tensor.numel() for tensor in self.tensors())

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def copy(self) -> "LiveState":
        """A state of its own, which a pass may write into."""
        kept = {place: tensor.clone() for place, tensor in self.kept.items()}
        return LiveState(self.name, copy.deepcopy(self.cache), kept, self.columns)

    def put_back(self) -> dict[str, Any]:
        """Put what belongs on modules there, and return the keywords with which the model goes on."""
        for (module, name), tensor in self.kept.items():
            setattr(module, name, tensor)
        return {self.name: self.cache} if self.name else {}


def _walk(value: Any, depth: int, met: set[int]) -> Iterator[torch.Tensor]:
    """All tensors within lists, mappings and objects."""
    if torch.is_tensor(value):
        yield value
    elif depth < _DEEPEST and id(value) not in met and not isinstance(value, (str, bytes, int, float, type, nn.Module)):
        met.add(id(value))
        inner: Any = ()
        if isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, (list, tuple, set)):
            inner = value
        elif hasattr(value, "__dict__"):
            inner = vars(value).values()
        for item in list(inner):
            yield from _walk(item, depth + 1, met)


def tensors_on_modules(model: nn.Module) -> Kept:
    """Tensors on modules that are no parameters, buffers among them."""
    found: Kept = {}
    for module in model.modules():
        own = {**vars(module), **module._buffers}
        found.update(
            {(module, name): value for name, value in own.items() if isinstance(value, torch.Tensor) and name != "data"}
        )
    return found


def changed_on_modules(model: nn.Module, before: Mapping[tuple[nn.Module, str], Mark]) -> Kept:
    """Those that are new since :func:`marks_on_modules`, or were written."""
    return {
        place: tensor
        for place, tensor in tensors_on_modules(model).items()
        if place not in before or _is_other(tensor, before[place])
    }


def marks_on_modules(model: nn.Module) -> dict[tuple[nn.Module, str], Mark]:
    """Which tensors are on modules, and what they hold."""
    return {place: _mark(tensor) for place, tensor in tensors_on_modules(model).items()}


def _mark(tensor: torch.Tensor) -> Mark:
    # The tensor itself, so that none which comes later has its place in memory; tensors made in inference mode count no
    # writes, so that their values are kept.
    return tensor, tensor.clone() if tensor.is_inference() else tensor._version


def _is_other(tensor: torch.Tensor, mark: Mark) -> bool:
    before, seen = mark
    if tensor is not before:
        return True
    return not torch.equal(tensor, seen) if isinstance(seen, torch.Tensor) else tensor._version != seen


def cache_name(model: PreTrainedModel) -> str:
    """Name under which a model takes a cache; empty where it takes none."""
    return next((name for name in CACHE_NAMES if takes(model, name)), "")


def takes(model: nn.Module, name: str) -> bool:
    """Whether a model's forward has an argument."""
    return name in _arguments(model.__class__)


@functools.cache
def _arguments(cls: type[nn.Module]) -> frozenset[str]:
    return frozenset(inspect.signature(cls.forward).parameters)


def cache_of(outputs: Any) -> Any:
    """The cache among a model's outputs; None where there is none."""
    return next((outputs[name] for name in CACHE_NAMES if name in outputs and outputs[name] is not None), None)


def empty_cache(model: PreTrainedModel) -> Any:
    """A cache to give to a model that hands none on by itself."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))
