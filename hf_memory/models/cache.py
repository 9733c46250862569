"""The container that carries the states of all layers between calls, as transformers' generation expects it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import Cache

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.layers import State


class MemoryCacheLayer:
    """The state of one block. Its leaves carry the name of their part: ``conv.``, ``mixer.`` or ``mlp.``."""

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, state: State | None = None):
        self.state: State = state if state is not None else {}

    def __repr__(self) -> str:
        leaves = ", ".join(f"{name}: {tuple(leaf.shape)}" for name, leaf in self.state.items())
        return f"MemoryCacheLayer({leaves})"

    @property
    def is_initialized(self) -> bool:
        """Whether a model has written a state."""
        return bool(self.state)

    def get_max_length(self) -> int:
        """-1: no state here has a longest length of its own."""
        return -1


class MemoryCache(Cache):
    """States of all blocks of a model, and how far each row has come.

    A forward pass never writes into the cache that it is given: it returns another one as ``outputs.cache``. So one
    cache can be continued in several ways, and gradients through a state are those of the functions that made it.

    Args:
        layers: One state per block; leaves are batch first.
        positions: Real tokens seen per row (B,), int64.
        num_columns: Columns fed so far, padding included.
        owner: What shaped the states, see :func:`state_owner`; None where nobody said.
    """

    def __init__(
        self,
        layers: list[State] | None = None,
        positions: torch.Tensor | None = None,
        num_columns: int = 0,
        owner: Mapping[str, Any] | None = None,
    ):
        super().__init__(layers=[MemoryCacheLayer(state) for state in layers or []])
        self.positions = positions
        self.num_columns = num_columns
        self.owner = owner

    def __repr__(self) -> str:
        return f"MemoryCache(num_columns={self.num_columns}, layers={self.layers})"

    @property
    def states(self) -> list[State]:
        """The state of each block."""
        return [layer.state for layer in self.layers]

    @property
    def is_compileable(self) -> bool:
        """False: states may grow."""
        return False

    @property
    def is_linear(self) -> list[bool]:
        """False for each layer, so that ``generate`` cuts the prompt by :meth:`get_seq_length`."""
        return [False] * len(self.layers)

    @property
    def is_sliding(self) -> list[bool]:
        """False for each layer: windows are the mixer's own affair."""
        return [False] * len(self.layers)

    @property
    def batch_size(self) -> int:
        """Number of rows; -1 before the first forward pass."""
        return -1 if self.positions is None else len(self.positions)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns fed so far, padding included."""
        return self.num_columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is no longest length."""
        return -1

    get_max_cache_shape = get_max_length

    def update(self, *args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
        """Refuse: states are written by the model, not key by key."""
        raise ValueError("a MemoryCache is written by its model only; pass it as `cache=` and read `outputs.cache`")

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: a recurrent state does not remember what it was."""
        raise ValueError("a recurrent state cannot be cropped to an earlier token; keep the earlier cache instead")

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "MemoryCache":
        """A new cache with ``function`` applied to every leaf and to the positions."""
        return MemoryCache(
            [{name: function(leaf) for name, leaf in state.items()} for state in self.states],
            None if self.positions is None else function(self.positions),
            self.num_columns,
            self.owner,
        )

    def detach(self) -> "MemoryCache":
        """A new cache outside of the graph, for truncated backpropagation through time."""
        return self.map(torch.Tensor.detach)

    def to(self, *args: object, **kwargs: object) -> "MemoryCache":
        """A new cache moved like ``torch.Tensor.to``.

        Integer leaves keep their dtype, and complex ones become the nearest complex numbers that hold real and
        imaginary part in at least float32.
        """

        def move(leaf: torch.Tensor) -> torch.Tensor:
            if leaf.is_floating_point():
                return leaf.to(*args, **kwargs)
            # What the arguments ask for is seen on an empty tensor of real numbers.
            real = leaf.dtype.to_real() if leaf.is_complex() else torch.float32
            asked = torch.empty(0, dtype=real, device=leaf.device).to(*args, **kwargs)
            dtype = torch.promote_types(asked.dtype, torch.complex64) if leaf.is_complex() else leaf.dtype
            return leaf.to(asked.device, dtype)

        return self.map(move)

    def nbytes(self) -> int:
        """Bytes of all leaves that ``state_size`` counts."""
        return sum(leaf.numel() * leaf.element_size() for leaf in self._counted_leaves())

    def state_size(self) -> int:
        """Numbers held per sequence, counted on the live tensors."""
        return sum(leaf[0].numel() for leaf in self._counted_leaves())

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the rows ``beam_idx``, in place: the contract of beam search."""
        self._replace(self.map(lambda leaf: leaf.index_select(0, beam_idx.to(leaf.device))))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row ``repeats`` times, in place."""
        self._replace(self.map(lambda leaf: leaf.repeat_interleave(repeats, dim=0)))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows ``indices``, in place."""
        self._replace(self.map(lambda leaf: leaf[indices.to(leaf.device)]))

    def reset(self) -> None:
        """Forget everything, in place."""
        self._replace(MemoryCache())

    def _replace(self, other: "MemoryCache") -> None:
        self.layers, self.positions, self.num_columns = other.layers, other.positions, other.num_columns
        self.owner = other.owner

    def _counted_leaves(self) -> Iterator[torch.Tensor]:
        return (leaf for state in self.states for leaf in state.values() if leaf.is_floating_point())


def one_cache(*caches: Any) -> MemoryCache | None:
    """The one cache that was given, under whichever name; a ``ValueError`` for two, or for one of another class."""
    given = [cache for cache in caches if cache is not None]
    if len(given) > 1:
        raise ValueError("give the state once: as cache, past_key_values or cache_params")
    if given and not isinstance(given[0], MemoryCache):
        raise ValueError(
            f"cache must be a MemoryCache, as `outputs.cache` of this model is; got {type(given[0]).__name__}"
        )
    return given[0] if given else None


def state_owner(config: MemoryConfig) -> dict[str, Any]:
    """What shapes the states of a model, by name: its type, its sizes, and the fields of its mixer but for dropouts."""
    shared = {field.name for field in dataclasses.fields(MemoryConfig)}
    sizes = {"hidden_size", "num_hidden_layers", "intermediate_size", "block_conv_kernel", "position_embedding"}
    if config.limited_length:
        sizes.add("max_position_embeddings")
    names = [field.name for field in dataclasses.fields(config) if field.name in sizes or field.name not in shared]
    fields = {name: getattr(config, name) for name in names if "dropout" not in name}
    return {"model_type": config.model_type, **fields}


def check_owner(cache: MemoryCache, owner: Mapping[str, Any], num_layers: int) -> None:
    """Raise a ``ValueError`` that names the difference where a cache with states is one of another model."""
    if not cache.layers:
        return
    if cache.owner is not None and cache.owner != owner:
        names = [name for name in {**owner, **cache.owner} if owner.get(name) != cache.owner.get(name)]
        name = "model_type" if "model_type" in names else names[0]
        raise ValueError(
            f"cache is of another model: its {name} is {cache.owner.get(name)!r}, "
            f"and that of this model is {owner.get(name)!r}"
        )
    if len(cache.layers) != num_layers:
        raise ValueError(f"cache holds the states of {len(cache.layers)} layers, and this model has {num_layers}")
