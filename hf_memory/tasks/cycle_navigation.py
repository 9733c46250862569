"""Cycle navigation: the place on a cycle after steps back, forth or none."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hf_memory.tasks._answers import AnswerTask
from hf_memory.tasks._checks import check_int
from hf_memory.tasks.base import Preset, Segment

_MAX_ENUMERATED = 14
_BACK = 2
_CHOMSKY = (
    "Delétang et al. (2023), Chomsky hierarchy: 1 to 40 steps on a cycle of 5, the answer read at an empty token after "
    "them; lengths 41 to 500, whose mean is their score, are one split"
)
_XLSTM = (
    "Beck et al. (2024), xLSTM: trained at 3 to 40 tokens, tested at 40 to 256; one of them is the answer, which is "
    "not counted here; the code's default vocabulary makes a cycle of {}"
)
_THREE_TO_FORTY = (
    "Walker et al. (2025), SLiCE, and the PD-SSM paper (2025): 3 to 40 steps on a cycle of 5, the answer due at the "
    "last; their lengths from 40 to 256 are one split"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CycleNavigation(AnswerTask):
    """Where on a cycle does one stand after all steps, of 0, +1 or -1 each?

    The ids 0, 1 and 2 are the steps 0, +1 and -1; one starts at place 0 (Delétang et al., 2023).

    >>> CycleNavigation(modulus=5).solve(np.array([[1, 1, 0, 1], [2, 0, 2, 1]]))[:, -1].tolist()
    [3, 4]

    Steps are independent and uniform. The order of the steps is of no account, so counters modulo m solve the task. Of
    linear recurrences those with complex eigenvalues, or with products of several Householder steps, are expected to;
    eigenvalues in [-1, 1] alone count modulo 2 only (Grazzi et al., 2025). Nonlinear recurrences learn it at any
    length, attention does not go beyond the trained ones.

    Attributes:
        modulus: Number of places m.
    """

    modulus: int = 5

    key: ClassVar[str] = "cycle_navigation"
    num_symbols: ClassVar[int] = 3
    levels_until: ClassVar[int | None] = 2_048
    presets: ClassVar[Mapping[str, Preset]] = {
        "len3_40": Preset(
            (3, 40),
            (40, 64, 128, 256),
            tests={"test_40_to_256": (Segment(8_192, (40, 256)),)},
            source=_THREE_TO_FORTY,
        ),
        "len2_39": Preset((2, 39), (39, 63, 127, 255), source=_XLSTM.format("6, and one of 9 this cycle of 5")),
        "len2_39_cycle_6": Preset((2, 39), (39, 63, 127, 255), {"modulus": 6}, source=_XLSTM.format("6, as here")),
        "len1_40_separator": Preset(
            (1, 40),
            (40, 100, 250, 500),
            {"separator": True},
            {"test_41_to_500": (Segment(3_000, (41, 500)),)},
            source=_CHOMSKY,
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("modulus", self.modulus, 2)

    @property
    def num_labels(self) -> int:
        """One class for each place."""
        return self.modulus

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        return ("0", "+1", "-1", "=")[: self.vocab_size]

    def draw(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw steps, and count those forth and those back."""
        steps = rng.integers(0, 3, size=(num_examples, length), dtype=np.int8)
        forth = np.count_nonzero(steps == 1, axis=1) - np.count_nonzero(steps == _BACK, axis=1)
        return steps, forth % self.modulus

    def answers(self, symbols: np.ndarray) -> np.ndarray:
        """Walk around the cycle, a step at a time."""
        place = np.zeros(len(symbols), dtype=np.int32)
        for step in symbols.T:
            place = np.where(step == 1, place + 1, np.where(step == _BACK, place - 1, place))
            place[place == self.modulus] = 0
            place[place < 0] = self.modulus - 1
        return place

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score`` and ``displacement``, the steps forth less those back up to each position."""
        steps = (input_ids == 1).astype(np.int32) - (input_ids == _BACK)
        return {**super().annotate(input_ids, labels), "displacement": np.cumsum(steps, axis=1, dtype=np.int32)}

    def baselines(self, length: int) -> dict[str, float]:
        """As for all such tasks, and the best guess from the step that came most often, exact."""
        return {**super().baselines(length), "majority_so_far": _majority_level(length, self.modulus)}

    def joint(self, length: int, width: int) -> np.ndarray:
        """The place before the last steps is that of a random walk."""
        before = _walk(length - width, self.modulus)
        windows = np.array(list(itertools.product((0, 1, -1), repeat=width)))
        return np.stack([np.roll(before, window.sum()) for window in windows]) / len(windows)

    def num_distinct(self, length: int) -> int:
        """Every row of steps can be drawn."""
        return 3**length

    def enumerate(self, length: int) -> np.ndarray:
        """All rows in lexicographic order."""
        if length > _MAX_ENUMERATED:
            raise ValueError(f"length must be at most {_MAX_ENUMERATED} to list all rows, got {length}")
        steps = np.stack(np.unravel_index(np.arange(3**length), (3,) * length), axis=1)
        return np.pad(steps, ((0, 0), (0, int(self.separator))), constant_values=3).astype(np.int32)


def _walk(steps: int, modulus: int) -> np.ndarray:
    """Probability (m,) of each place after uniform steps."""
    place = (np.arange(modulus) == 0).astype(np.float64)
    for _ in range(steps):
        place = (place + np.roll(place, 1) + np.roll(place, -1)) / 3
    return place


@functools.lru_cache(maxsize=256)
def _majority_level(length: int, modulus: int) -> float:
    """Share of right answers of the best table from the commonest step to a place; of equals the first id counts."""
    forth, back = np.meshgrid(np.arange(length + 1), np.arange(length + 1), indexing="ij")
    inside = forth + back <= length
    counts = np.stack([length - forth - back, forth, back])[:, inside]
    factorials = np.array([math.lgamma(k + 1) for k in range(length + 1)])
    chance = np.exp(factorials[length] - factorials[counts].sum(axis=0) - length * math.log(3))
    cell = counts.argmax(axis=0) * modulus + (counts[1] - counts[2]) % modulus
    return float(np.bincount(cell, chance, minlength=3 * modulus).reshape(3, modulus).max(axis=1).sum())
