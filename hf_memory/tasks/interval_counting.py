"""Interval counting: foretell when a signal that is on for a fixed time will switch off."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks import _intervals as signals
from hf_memory.tasks import _renewal as renewal
from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task
from hf_memory.tasks.heuristics import heuristic_levels

_MAX_ENUMERATED = 1 << 22
_SOURCE = "memory and generalization of linear recurrences, counting: total {}, on for {}, off for {} to {}"


def _preset(length: int, isi: int, iti_min: int, iti_max: int) -> Preset:
    """The published law with 200 training rows, and its phase tests over several gaps.

    A phase test has one row for each length of the first off-interval.
    """
    rows = iti_max - iti_min + 1
    tests = {"test": (Segment(100, length),)}
    for gap in (iti_max * 5 // 4, iti_max * 3 // 2, iti_max * 2, iti_max * 3):
        tests[f"test_two_isi_{gap}"] = (Segment(rows, length, {"phase_test": "two_isi", "gap": gap}),)
    for gap in (0, 1, 2, 5):
        tests[f"test_double_isi_{gap}"] = (Segment(rows, length, {"phase_test": "double_isi", "gap": gap}),)
    return Preset(
        length,
        (length, 2 * length, 4 * length),
        {"isi": isi, "iti_min": iti_min, "iti_max": iti_max},
        tests,
        train=(Segment(200, length),),
        source=_SOURCE.format(length, isi, iti_min, iti_max),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntervalCounting(Task):
    """A signal is off for a random time, on for a fixed time ``isi``, and so on; the label is its next value.

    Only the end of an on-interval can be known in advance, by counting. With intervals of three on-steps:

    >>> task = IntervalCounting(isi=3, iti_min=2, iti_max=4)
    >>> task.solve(np.array([[0, 0, 1, 1, 1, 0, 0, 0, 1, 1]])).tolist()
    [[0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, -100.0]]

    Here the output must fall below 0.5 at the fifth step, the last on-step of the first interval; the second interval
    is cut by the end of the row and not scored. An output that repeats its input is right at all steps but the first
    and last of each interval, and never exact: it falls one step late. The signal starts with an off-interval whose
    length, as every other's, is a uniform integer between ``iti_min`` and ``iti_max``, both included.

    Phase tests hold two on-intervals at an unseen distance: off for a uniform time as in training, on, off for
    ``gap``, on, then off to the end of the row, for at least ``iti_min``.

    Attributes:
        isi: Number of steps of every on-interval.
        iti_min: Smallest number of steps of an off-interval.
        iti_max: Largest number of steps of an off-interval.
        phase_test: ``None`` for the training law; ``"two_isi"``, with a gap longer than ``iti_max``; or
            ``"double_isi"``, with one shorter than ``iti_min``, where gap 0 makes one run of ``2 isi`` on-steps.
        gap: Distance in steps of the two on-intervals of a phase test; 0 in the training law.
    """

    isi: int = 10
    iti_min: int = 20
    iti_max: int = 40
    phase_test: str | None = None
    gap: int = 0

    key: ClassVar[str] = "interval_counting"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    problem_type: ClassVar[Literal["classification", "regression"]] = "regression"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "counting"
    headline_metric: ClassVar[str] = "exact_offsets"
    levels_until: ClassVar[int | None] = 8_192
    presets: ClassVar[Mapping[str, Preset]] = {
        "isi10_len200": _preset(200, 10, 20, 40),
        "isi30_len600": _preset(600, 30, 60, 120),
        "isi50_len1000": _preset(1000, 50, 100, 200),
    }

    def __post_init__(self) -> None:
        check_int("isi", self.isi, 2)
        check_int("iti_min", self.iti_min, 1)
        check_int("iti_max", self.iti_max, self.iti_min)
        if self.phase_test is None:
            check_int("gap without a phase_test", self.gap, 0, 0)
            return
        check_choice("phase_test", self.phase_test, ("two_isi", "double_isi"))
        if self.phase_test == "two_isi":
            check_int("gap of two_isi", self.gap, self.iti_max + 1)
        else:
            check_int("gap of double_isi", self.gap, 0, self.iti_min - 1)

    @property
    def vocab_size(self) -> int:
        """Off and on."""
        return 2

    @property
    def num_labels(self) -> int:
        """One real number."""
        return 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        return (".", "#")

    def validate_length(self, length: int) -> None:
        """Raise where a row cannot hold, in every case, what is scored: an on-interval and the step after it."""
        needed = self.iti_max + self.isi + 1
        if self.phase_test is not None:
            needed = self.iti_max + 2 * self.isi + self.gap + self.iti_min
        name = f"length with isi {self.isi}, iti_max {self.iti_max} and gap {self.gap}"
        check_int(name, length, needed)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``labels`` are float32, ``IGNORE_INDEX`` at the last step, whose successor is not in the row."""
        self.validate_length(length)
        size = (num_examples, 1 if self.phase_test else length // (self.isi + self.iti_min) + 1)
        waits = rng.integers(self.iti_min, self.iti_max + 1, size=size, dtype=np.int32)
        input_ids = self._signal(waits, length)
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.float32)
        labels[:, :-1] = input_ids[:, 1:]
        return input_ids, labels

    def _signal(self, waits: np.ndarray, length: int) -> np.ndarray:
        """Rows (n, L) int32 whose off-intervals last ``waits`` (n, m), from the first on."""
        onset = np.cumsum(waits + self.isi, axis=1, dtype=np.int64) - self.isi
        offset = onset + self.isi
        if self.phase_test:
            second = onset + self.isi + self.gap
            onset = np.concatenate([onset, second], axis=1)
            offset = np.concatenate([offset, second + self.isi], axis=1)
        # Jumps up and down, summed; those beyond the row fall on a column that is cut off.
        jumps = np.zeros((len(waits), length + 1), dtype=np.int8)
        row = np.arange(len(waits))[:, None]
        jumps[row, np.minimum(onset, length)] += 1
        jumps[row, np.minimum(offset, length)] -= 1
        return np.cumsum(jumps[:, :-1], axis=1, dtype=np.int32)

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Shift each row by one step."""
        shifted = np.roll(np.asarray(input_ids, dtype=np.float32), -1, axis=1)
        shifted[:, -1] = IGNORE_INDEX
        return shifted

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``; ``offset``, the last step of each complete interval; ``elapsed``, steps since the last change."""
        input_ids = np.asarray(input_ids)
        intervals = signals.find_intervals(input_ids, labels != IGNORE_INDEX)
        offset = np.zeros(input_ids.shape, dtype=bool)
        offset[intervals.row, intervals.end] = True
        return {**super().annotate(input_ids, labels), "offset": offset, "elapsed": signals.elapsed_steps(input_ids)}

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[float, float]]:
        """Counts over complete on-intervals and over rows, and the error on a scale from the best to persistence.

        * ``exact_offsets``: intervals whose end is foretold at the very step, with at least 80 % of the steps before
          it on; ``offsets_within_1`` allows one step, which an output that repeats its input passes.
        * ``early_offsets``, ``late_offsets``, ``missed_offsets``: where the others fall.
        * ``rows_exact``: rows all of whose intervals are exact, the verdict of the phase tests; ``rows_3_of_5``: rows
          with at least three exact among their first five intervals, of the rows that have five.
        * ``false_alarms``: off-steps of the gap of ``two_isi`` with an output above 0.5; the step at which the first
          interval ends and the step before the second begins are left out.
        * ``normalised_error``: (squared error - best) / (persistence - best) on these rows; not in phase tests, whose
          rows are of another law than the one that the best output knows.
        """
        input_ids, outputs = np.asarray(input_ids), np.asarray(predictions, dtype=np.float64)
        where = labels != IGNORE_INDEX
        counts = signals.offset_counts(input_ids, outputs, where, self.isi)
        if self.phase_test == "two_isi":
            counts["false_alarms"] = signals.false_alarms(input_ids, outputs, where)
        if self.phase_test is None:
            counts["normalised_error"] = self._normalised_error(input_ids, labels, outputs)
        return counts

    def _normalised_error(self, input_ids: np.ndarray, labels: np.ndarray, outputs: np.ndarray) -> tuple[float, float]:
        where = labels != IGNORE_INDEX
        target = labels[where].astype(np.float64)

        def squared(values: np.ndarray) -> float:
            return float(np.square(values[where] - target).sum())

        best = squared(renewal.best_outputs(input_ids, self.isi, self.iti_min, self.iti_max))
        return squared(outputs) - best, squared(input_ids.astype(np.float64)) - best

    def persistence_mse(self, length: int) -> float:
        """Expected squared error of an output that repeats its input, on the training law."""
        expected = _expected(self, length)
        return expected["onsets"] + expected["offsets"]

    def best_mse(self, length: int) -> float:
        """Expected squared error of the best output for one who knows the law and counts, on the training law."""
        return _expected(self, length)["best"]

    def chance_level(self, metric: str, length: int) -> float:
        """Value for an output that knows its position and current input; NaN for metrics that have no such level.

        ``exact_offsets`` and shares of exact rows are those of the output that is nearest in squares, estimated on
        fixed rows: where a row begins is known, so that the end of its first interval can be foretold in a few rows.
        ``offsets_within_1`` is that of an output that repeats its input, and the
        errors are those of the current input alone.
        ``mse`` is that of the mean of the next input given the current one, on the training law. It lies far below
        the variance and says little by itself: see :meth:`persistence_mse` and :meth:`best_mse`.
        """
        if metric in ("exact_offsets", "rows_exact", "rows_3_of_5"):
            return _by_position(self, length, metric)
        if metric == "offsets_within_1":
            return 1.0
        if metric not in ("mse", "normalised_error") or self.phase_test:
            return math.nan
        expected = _expected(self, length)
        falls, rises = expected["offsets"] / expected["on"], expected["onsets"] / (1 - expected["on"])
        error = expected["on"] * falls * (1 - falls) + (1 - expected["on"]) * rises * (1 - rises)
        if metric == "mse":
            return error
        return (error - expected["best"]) / (self.persistence_mse(length) - expected["best"])

    def baselines(self, length: int) -> dict[str, float]:
        """Share of exact offsets of outputs that repeat the input, are always off, or know position and input."""
        return {"persistence": 0.0, "always_off": 0.0, "position_and_input": self.chance_level("exact_offsets", length)}

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        self.validate_length(length)
        if self.phase_test:
            return self.iti_max - self.iti_min + 1
        return renewal.count_rows(length, self.isi, self.iti_min, self.iti_max)

    def enumerate(self, length: int) -> np.ndarray:
        """All distinct rows."""
        count = self.num_distinct(length)
        if count > _MAX_ENUMERATED:
            raise ValueError(f"length {length} has {count} distinct rows; at most {_MAX_ENUMERATED} can be enumerated")
        if self.phase_test:
            return self._signal(np.arange(self.iti_min, self.iti_max + 1, dtype=np.int32)[:, None], length)
        return self._signal(renewal.all_waits(length, self.isi, self.iti_min, self.iti_max), length)


@functools.lru_cache(maxsize=64)
def _expected(task: IntervalCounting, length: int) -> dict[str, float]:
    return renewal.expected_counts(length, task.isi, task.iti_min, task.iti_max)


@functools.lru_cache(maxsize=256)
def _by_position(task: IntervalCounting, length: int, metric: str) -> float:
    """Value of the best table from position and input to outputs, fitted and scored on fixed rows."""
    rule = "position_and_token"
    return heuristic_levels(task, length, np.random.default_rng(0), 1_000, metric, (rule,))[rule][0]
