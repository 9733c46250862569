"""The copying memory task: hold a pattern over a blank interval, then repeat it."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hf_memory.tasks._recall import SHARED_PRESETS, RecallTask
from hf_memory.tasks.base import Preset

_UNITARY = "Arjovsky, Shah and Bengio (2016), unitary evolution RNNs: 10 of 8 symbols over a fixed interval"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying(RecallTask):
    """A pattern of S symbols stands at the start, and after a blank interval T it is recalled.

    Symbols are 1 to 8, the blank is 0 and the marker 9. Three symbols and an interval of four, with one marker (three
    blanks and the marker make the interval) and with a marker for each symbol:

    >>> one = Copying(pattern_length=3)
    >>> one.solve(np.array([[5, 1, 5, 0, 0, 0, 9, 0, 0, 0]])).tolist()
    [[0, 0, 0, 0, 0, 0, 0, 5, 1, 5]]
    >>> many = Copying(pattern_length=3, markers="many", loss_region="pattern")
    >>> many.solve(np.array([[5, 1, 5, 0, 0, 0, 0, 9, 9, 9]])).tolist()
    [[-100, -100, -100, -100, -100, -100, -100, 5, 1, 5]]

    The loss covers all positions, as published; the score covers the recalled symbols only. The layout is that of
    Hochreiter and Schmidhuber (1997) as given by Arjovsky, Shah and Bengio (2016). The knobs are those of
    :class:`~hf_memory.tasks._recall.RecallTask`.
    """

    key: ClassVar[str] = "copying"
    presets: ClassVar[Mapping[str, Preset]] = {
        **SHARED_PRESETS,
        **{f"interval_{blank}": Preset(blank, (blank,), source=_UNITARY) for blank in (100, 200, 300, 500)},
    }

    def place(self, rng: np.random.Generator, slots: np.ndarray, pattern: np.ndarray) -> None:
        """Write the pattern at the start."""
        slots[:, : pattern.shape[1]] = pattern

    def num_distinct(self, length: int) -> int:
        """Number of patterns."""
        return self.alphabet_size ** self.sizes(length)[0]

    def enumerate(self, length: int) -> np.ndarray:
        """One row for each pattern, in lexicographic order."""
        self.validate_length(length)
        return self.rows_of(length, self.all_patterns(length), np.arange(self.sizes(length)[0])[None])
