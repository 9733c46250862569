"""Selective copying, also called denoising: recall symbols that were scattered among blanks."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hf_memory.tasks._recall import SHARED_PRESETS, RecallTask
from hf_memory.tasks.base import Preset

_MAMBA = "Gu and Dao (2023), Mamba: 16 of 14 symbols among 4,096 blanks, an answer slot for each"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopying(RecallTask):
    """S symbols are scattered among blanks, and after a marker they are recalled in the order of their appearance.

    Positions are a uniform S-subset of the slots before the marker: drawn without replacement, so that every symbol
    of the pattern is in the row. Symbols are 1 to 8, the blank is 0 and the marker 9:

    >>> task = SelectiveCopying(pattern_length=3)
    >>> task.solve(np.array([[0, 5, 0, 1, 5, 0, 9, 0, 0, 0]])).tolist()
    [[0, 0, 0, 0, 0, 0, 0, 5, 1, 5]]
    >>> task.replace(markers="many").solve(np.array([[7, 0, 0, 2, 0, 0, 2, 9, 9, 9]])).tolist()
    [[0, 0, 0, 0, 0, 0, 0, 7, 2, 2]]

    The layout with one marker is that of the denoising task of Jing et al. (2019), gated orthogonal recurrent units,
    whose positions were drawn with replacement; a marker for each symbol is the layout of Gu and Dao (2023). The knobs
    are those of :class:`~hf_memory.tasks._recall.RecallTask`; the row has T + 2S columns in both layouts.
    """

    key: ClassVar[str] = "selective_copying"
    presets: ClassVar[Mapping[str, Preset]] = {
        **SHARED_PRESETS,
        "noise_4096": Preset(
            4096,
            (4096, 8192),
            {"pattern_length": 16, "alphabet_size": 14, "markers": "many", "loss_region": "pattern"},
            source=_MAMBA,
        ),
    }

    def place(self, rng: np.random.Generator, slots: np.ndarray, pattern: np.ndarray) -> None:
        """Write the pattern, in order, at a uniform subset of the slots."""
        num_rows, num_slots = slots.shape
        chosen = np.empty((num_slots, num_rows), dtype=bool)
        left = np.full(num_rows, pattern.shape[1], dtype=np.uint32)
        for slot in range(num_slots):
            # Of the slots that remain, `left` will be taken, each of them with the same probability.
            np.less(rng.integers(0, num_slots - slot, size=num_rows, dtype=np.uint32), left, out=chosen[slot])
            left -= chosen[slot]
        slots[np.ascontiguousarray(chosen.T)] = pattern.reshape(-1)

    def num_distinct(self, length: int) -> int:
        """Number of patterns times number of subsets of the slots."""
        size = self.sizes(length)[0]
        return self.alphabet_size**size * math.comb(self.num_slots(length), size)

    def enumerate(self, length: int) -> np.ndarray:
        """One row for each pattern and subset of the slots."""
        self.validate_length(length)
        # First, because it refuses a space that is too large to list.
        patterns = self.all_patterns(length)
        size = self.sizes(length)[0]
        subsets = np.array(list(itertools.combinations(range(self.num_slots(length)), size)), dtype=np.intp)
        return self.rows_of(length, np.tile(patterns, (len(subsets), 1)), np.repeat(subsets, len(patterns), axis=0))
