"""What copying and selective copying share: a pattern is shown, time passes, the pattern is asked for."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import LARGEST, check_choice, check_int
from hf_memory.tasks._draws import expected_largest_count
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Task

BLANK = 0
"""Id of the blank, in the input and as a class."""

MAX_ENUMERATED = 1 << 24
"""Largest number of rows that are enumerated."""

_LINEAR_RECURRENCE = "memory and generalization of linear recurrences: {} mixed in training, then extrapolated"
_SMALL = "the same law at a size that trains on a CPU"
_BLANKS = (10, 20, 30, 40, 50, 60, 75, 100, 150, 200, 300, 400, 500)
_PATTERNS = (2, 4, 6, 8, 10, 11, 12, 15, 20, 30, 50, 75, 100)

SHARED_PRESETS: dict[str, Preset] = {
    "blanks_50": Preset((1, 50), _BLANKS, source=_LINEAR_RECURRENCE.format("blank intervals up to 50")),
    "pattern_10": Preset(
        (1, 10), _PATTERNS, {"axis": "pattern"}, source=_LINEAR_RECURRENCE.format("pattern lengths up to 10")
    ),
    "blanks_20": Preset((1, 20), (5, 10, 20, 40, 80, 200), {"pattern_length": 5}, source=_SMALL),
    "pattern_5": Preset((1, 5), (3, 4, 5, 6, 8, 10, 20), {"axis": "pattern", "blank_length": 20}, source=_SMALL),
}
"""Presets of both tasks; the lengths are those of the swept axis."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallTask(Task):
    """Base of the two tasks. With S symbols and a blank interval T a row has exactly T + 2S columns.

    Attributes:
        axis: What ``length`` measures: the blank interval T (``"blank"``) or the number S of symbols (``"pattern"``).
        pattern_length: S where the axis is ``"blank"``.
        blank_length: T where the axis is ``"pattern"``.
        alphabet_size: Number of symbols.
        markers: ``"one"``: a marker ends the blank interval, which therefore holds T - 1 blanks, and S blanks follow
            in which the pattern is recalled. ``"many"``: T blanks, then S markers in which it is recalled.
        loss_region: ``"all"``: every position is supervised, blanks with class 0. ``"pattern"``: the last S only.
    """

    axis: str = "blank"
    pattern_length: int = 10
    blank_length: int = 50
    alphabet_size: int = 8
    markers: str = "one"
    loss_region: str = "all"

    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stable"
    headline_metric: ClassVar[str] = "token_accuracy"
    presets: ClassVar[Mapping[str, Preset]] = SHARED_PRESETS

    def __post_init__(self) -> None:
        check_choice("axis", self.axis, ("blank", "pattern"))
        check_choice("markers", self.markers, ("one", "many"))
        check_choice("loss_region", self.loss_region, ("all", "pattern"))
        check_int("pattern_length", self.pattern_length, 1)
        check_int("blank_length", self.blank_length, 1)
        check_int("alphabet_size", self.alphabet_size, 2, LARGEST - 2)  # blank and marker are ids too

    @property
    def vocab_size(self) -> int:
        """Blank, symbols and marker."""
        return self.alphabet_size + 2

    @property
    def num_labels(self) -> int:
        """Blank and symbols."""
        return self.alphabet_size + 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id: ``_`` is the blank and ``|`` the marker."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        short = self.alphabet_size <= len(letters)
        names = [letters[i] if short else f"s{i + 1}" for i in range(self.alphabet_size)]
        return ("_", *names, "|")

    @property
    def label_symbols(self) -> tuple[str, ...]:
        """A readable name of each class: blank and symbols, which are input ids too."""
        return self.symbols[:-1]

    def sizes(self, length: int) -> tuple[int, int]:
        """Number of symbols S and blank interval T of rows of ``length``."""
        return (self.pattern_length, length) if self.axis == "blank" else (length, self.blank_length)

    def row_length(self, length: int) -> int:
        """T + 2S."""
        pattern, blank = self.sizes(length)
        return blank + 2 * pattern

    def num_slots(self, length: int) -> int:
        """Number of positions before the first marker."""
        return sum(self.sizes(length)) - (self.markers == "one")

    @abc.abstractmethod
    def place(self, rng: np.random.Generator, slots: np.ndarray, pattern: np.ndarray) -> None:
        """Write ``pattern`` (n, S) in order into ``slots`` (n, S + T - 1 or S + T), which is blank, in place."""

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw patterns of uniform symbols with repetition and lay them out."""
        self.validate_length(length)
        size, columns = self.sizes(length)[0], self.row_length(length)
        pattern = rng.integers(1, self.alphabet_size + 1, size=(num_examples, size), dtype=np.int32)
        input_ids = np.full((num_examples, columns), BLANK, dtype=np.int32)
        slots = self.num_slots(length)
        self.place(rng, input_ids[:, :slots], pattern)
        self._write_markers(input_ids, slots)
        labels = np.full_like(input_ids, BLANK if self.loss_region == "all" else IGNORE_INDEX)
        labels[:, -size:] = pattern
        return input_ids, labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Collect the symbols of each row in reading order and write them from the row's first marker on."""
        ids = np.asarray(input_ids)
        first_marker = np.argmax(ids == self.alphabet_size + 1, axis=1)
        start = first_marker + (self.markers == "one")
        where = self._symbol_positions(ids, start)
        index = np.arange(ids.shape[1]) - start[:, None]
        recalled = np.take_along_axis(ids, np.take_along_axis(where, np.maximum(index, 0), axis=1), axis=1)
        elsewhere = BLANK if self.loss_region == "all" else IGNORE_INDEX
        return np.where(index >= 0, recalled, elsewhere).astype(np.int32)

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score`` marks the recalled symbols; ``recall_index`` is their place in the pattern, from 0, else -1.

        ``distance`` is the number of steps since the symbol was shown, 0 elsewhere. Blanks are never scored: with a
        long interval an output of blanks alone would look right almost everywhere.
        """
        score = labels > BLANK
        index = np.where(score, np.cumsum(score, axis=1) - 1, -1).astype(np.int32)
        where = self._symbol_positions(np.asarray(input_ids), np.argmax(score, axis=1))
        shown = np.take_along_axis(where, np.maximum(index, 0), axis=1)
        distance = np.where(score, np.arange(score.shape[1]) - shown, 0).astype(np.int32)
        return {"score": score, "recall_index": index, "distance": distance}

    def _symbol_positions(self, ids: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Positions (n, L) of each row with those of the symbols before column ``end`` (n,) first, in order."""
        symbol = (ids > BLANK) & (ids <= self.alphabet_size) & (np.arange(ids.shape[1]) < end[:, None])
        return np.argsort(~symbol, axis=1, kind="stable")

    def all_patterns(self, length: int) -> np.ndarray:
        """All patterns (A^S, S) in lexicographic order; only where there are few rows."""
        count = self.num_distinct(length)
        if count > MAX_ENUMERATED:
            raise ValueError(f"length {length} has {count} distinct rows; at most {MAX_ENUMERATED} can be enumerated")
        size = self.sizes(length)[0]
        numbers = np.arange(self.alphabet_size**size)
        return 1 + np.stack(np.unravel_index(numbers, (self.alphabet_size,) * size), axis=1).astype(np.int32)

    def rows_of(self, length: int, patterns: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Rows (n, T + 2S) that show ``patterns`` (n, S) at ``positions``, (n, S) or (1, S)."""
        rows = np.full((len(patterns), self.row_length(length)), BLANK, dtype=np.int32)
        self._write_markers(rows, self.num_slots(length))
        np.put_along_axis(rows, np.broadcast_to(positions, patterns.shape), patterns, axis=1)
        return rows

    def _write_markers(self, rows: np.ndarray, slots: int) -> None:
        rows[:, slots : slots + 1 if self.markers == "one" else rows.shape[1]] = self.alphabet_size + 1

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[int, int]]:
        """How the recall goes wrong: blanks or symbols that the row did not show; and the blanks outside the recall."""
        score = self.annotate(input_ids, labels)["score"]
        total = int(score.sum())
        ids = np.clip(input_ids, 0, self.vocab_size - 1)
        shown = np.zeros((len(ids), self.vocab_size), dtype=bool)
        shown[np.arange(len(ids))[:, None], ids] = True
        answer = np.clip(predictions, 0, self.num_labels - 1).astype(np.intp)
        foreign = (answer != BLANK) & ~np.take_along_axis(shown, answer, axis=1)
        counts = {
            "blank_answers": (int((score & (answer == BLANK)).sum()), total),
            "symbols_not_shown": (int((score & foreign).sum()), total),
        }
        if self.loss_region == "all":
            blank = labels == BLANK
            counts["blank_accuracy"] = (int((blank & (predictions == labels)).sum()), int(blank.sum()))
        return counts

    def chance_level(self, metric: str, length: int) -> float:
        """Value for an output that knows the layout and no symbol: a uniform guess among the symbols.

        ``loss`` is the mean cross-entropy in nats over the supervised positions, ``S ln A / (T + 2S)`` where all are
        (Arjovsky, Shah and Bengio, 2016). NaN for metrics that have no such level.
        """
        size = self.sizes(length)[0]
        share = size / self.row_length(length) if self.loss_region == "all" else 1.0
        levels = {
            "token_accuracy": 1 / self.alphabet_size,
            "sequence_accuracy": float(self.alphabet_size) ** -size,
            "loss": share * math.log(self.alphabet_size),
        }
        return levels.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy on the recalled symbols of blanks alone, of a fixed symbol, and of memories for one; exact."""
        size = self.sizes(length)[0]
        guess = 1 / self.alphabet_size
        return {
            "all_blank": 0.0,
            "constant_symbol": guess,
            "first_symbol_repeated": (1 + (size - 1) * guess) / size,
            "most_frequent_symbol": expected_largest_count(size, self.alphabet_size) / size,
        }
