"""Memorisation: values of keys by a fixed map, which only the weights can hold."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_int
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

_MAD = (
    "Poli et al. (2024), mechanistic architecture design: memorisation, {} ids, rows of 32 tokens, 256 rows to train on"
)


def _mad(vocab_size: int) -> Preset:
    knobs = {} if vocab_size == 256 else {"vocab_size": vocab_size}
    return Preset(32, (32,), knobs, train=(Segment(256, 32),), source=_MAD.format(vocab_size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memorisation(Task):
    """Each key is followed by a sign under which its value is due: that of a map that no row tells (Poli et al., 2024).

    The map is one to one and the same for all rows. It has to be learned by the weights; what a state must hold is one
    token. So the task does not test memory of sequences, and a table of the last two tokens solves it.

    >>> task = Memorisation(vocab_size=9, map_seed=3)
    >>> task.mapping.tolist()
    [7, 6, 5, 4]
    >>> task.solve(np.array([[2, 8, 0, 8]])).tolist()
    [[-100, 5, -100, 7]]

    Keys are uniform. Every mixer with a layer that mixes channels is expected to learn it; published accuracies differ
    by optimisation, not by memory.

    Attributes:
        vocab_size: Number of ids V: keys below (V - 1) / 2, as many values above them, and the sign V - 1.
        map_seed: Seed of the map.
    """

    key: ClassVar[str] = "memorisation"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stable"
    presets: ClassVar[Mapping[str, Preset]] = {
        f"vocab{vocab_size}_len32": _mad(vocab_size) for vocab_size in (256, 512, 1024, 2048, 4096, 8192)
    }

    vocab_size: int = 256
    map_seed: int = 12345

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, 5)
        check_int("map_seed", self.map_seed, 0)

    @property
    def num_labels(self) -> int:
        """The ids: values are classes, of which those that are no value are never due."""
        return self.vocab_size

    @property
    def num_keys(self) -> int:
        """Number of keys, and of values."""
        return (self.vocab_size - 1) // 2

    @property
    def mapping(self) -> np.ndarray:
        """Value (K,) of each key."""
        return _mapping(self.num_keys, self.map_seed)

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` is even."""
        check_int("length", length, 2)
        if length % 2:
            raise ValueError(f"length must be even and at least 2, got {length}")

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, every second position supervised."""
        self.validate_length(length)
        keys = rng.integers(0, self.num_keys, size=(num_examples, length // 2), dtype=np.int32)
        ids = np.full((num_examples, length), self.vocab_size - 1, dtype=np.int32)
        ids[:, 0::2] = keys
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, 1::2] = self.mapping[keys]
        return ids, labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Look for the sign, and look the key before it up in a dictionary."""
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        row, column = np.nonzero(input_ids == self.vocab_size - 1)
        value_of = dict(enumerate(self.mapping.tolist()))
        labels[row, column] = [value_of[key] for key in input_ids[row, column - 1].tolist()]
        return labels

    def chance_level(self, metric: str, length: int) -> float:
        """Any value, before the map is learned. ``loss`` in nats; NaN for other metrics."""
        levels = {
            "token_accuracy": 1.0 / self.num_keys,
            "sequence_accuracy": float(self.num_keys) ** -(length // 2),
            "macro_recall": 1.0 / self.num_keys,
            "loss": math.log(self.num_keys),
        }
        return levels.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy of any value, and of a table of the last two tokens, which is the map itself."""
        return {"any_value": 1.0 / self.num_keys, "table_of_the_key": 1.0}

    def num_distinct(self, length: int) -> int:
        """Every row of keys can be drawn."""
        return self.num_keys ** (length // 2)


@functools.lru_cache(maxsize=64)
def _mapping(num_keys: int, seed: int) -> np.ndarray:
    values = (num_keys + np.random.default_rng(seed).permutation(num_keys)).astype(np.int32)
    values.setflags(write=False)
    return values
