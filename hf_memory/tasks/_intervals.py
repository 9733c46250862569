"""Intervals of on-steps in binary signals: where they are, and whether their ends were foretold.

An output at step ``t`` is a prediction of the input at ``t + 1``. For an interval on the steps ``s .. e`` a perfect
output is therefore 1 on ``s .. e - 1`` and falls below 0.5 at ``e``, its last on-step.
"""

import dataclasses

import numpy as np

MISSED = np.iinfo(np.int32).max
"""Offset error of an interval whose end no downward crossing marks."""

INTERIOR_SHARE = 0.8
"""Share of the steps before an interval's end at which the output must be at least 0.5."""


@dataclasses.dataclass(frozen=True)
class Intervals:
    """The complete intervals of some rows, one entry each (m,), in the order of rows and of time.

    Attributes:
        row: Row of the interval.
        onset: Its first on-step.
        end: Its last on-step. The next step, which is off, is in the row.
        next_onset: First on-step of the following interval, complete or not; the number of columns where there is none.
    """

    row: np.ndarray
    onset: np.ndarray
    end: np.ndarray
    next_onset: np.ndarray


def find_intervals(input_ids: np.ndarray, supervised: np.ndarray) -> Intervals:
    """Find the complete intervals of rows (n, L).

    The step at which an interval ends is supervised only where its successor is in the row, so that an interval cut
    by the end of the row, padded or not, is left out.
    """
    columns = input_ids.shape[1]
    on = np.pad(input_ids == 1, ((0, 0), (1, 1)))
    row, onset = np.nonzero(on[:, 1:] & ~on[:, :-1])
    _, after = np.nonzero(~on[:, 1:] & on[:, :-1])
    following = np.full(len(onset), columns)
    same_row = row[1:] == row[:-1]
    following[:-1][same_row] = onset[1:][same_row]
    complete = supervised[row, after - 1]
    return Intervals(row[complete], onset[complete], after[complete] - 1, following[complete])


def elapsed_steps(input_ids: np.ndarray) -> np.ndarray:
    """How many steps (n, L) int32 the input has had its value, this one included."""
    step = np.arange(input_ids.shape[1])
    changed = np.zeros(input_ids.shape, dtype=bool)
    changed[:, 1:] = input_ids[:, 1:] != input_ids[:, :-1]
    return (step - np.maximum.accumulate(np.where(changed, step, 0), axis=1) + 1).astype(np.int32)


def offset_errors(intervals: Intervals, predictions: np.ndarray, isi: int) -> np.ndarray:
    """Signed error in steps (m,) of the downward crossing nearest to each interval's end, or ``MISSED``.

    A crossing is a step whose output is below 0.5 after one that was not. Those count that lie after the first
    on-step and no later than ``isi`` steps after the end, nor than the next onset. Of two equally near, the earlier
    is taken.
    """
    columns = predictions.shape[1]
    high = predictions >= 0.5
    falls = np.zeros(high.shape, dtype=bool)
    falls[:, 1:] = high[:, :-1] & ~high[:, 1:]
    step = np.arange(columns)
    before = np.maximum.accumulate(np.where(falls, step, -1), axis=1)[intervals.row, intervals.end]
    after = np.where(falls, step, columns)[:, ::-1]
    first = np.maximum(intervals.end, intervals.onset + 1)
    after = np.minimum.accumulate(after, axis=1)[:, ::-1][intervals.row, first]
    latest = np.minimum(np.minimum(intervals.end + isi, intervals.next_onset), columns - 1)
    early = np.where(before > intervals.onset, before - intervals.end, -MISSED)
    late = np.where(after <= latest, after - intervals.end, MISSED)
    return np.where(-early <= late, np.where(early == -MISSED, MISSED, early), late)


def share_high(predictions: np.ndarray, row: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Share (m,) of the steps ``start .. stop - 1`` at which the output is at least 0.5; 1 where there is no step."""
    total = np.zeros((len(predictions), predictions.shape[1] + 1), dtype=np.int64)
    np.cumsum(predictions >= 0.5, axis=1, out=total[:, 1:])
    count = np.maximum(stop - start, 0)
    return np.where(count > 0, (total[row, stop] - total[row, start]) / np.maximum(count, 1), 1.0)


def exact_intervals(intervals: Intervals, predictions: np.ndarray, isi: int, tolerance: int = 0) -> np.ndarray:
    """Whether the end of each interval (m,) is foretold within ``tolerance`` steps and its interior is held.

    An interval of ``2 isi`` steps is two that follow immediately: the output must be below 0.5 at the last step of
    each half, and at least 0.5 on 80 % of the steps between; the tolerance does not apply.
    """
    row, onset, end = intervals.row, intervals.onset, intervals.end
    single = np.abs(offset_errors(intervals, predictions, isi)) <= tolerance
    single &= share_high(predictions, row, onset, end) >= INTERIOR_SHARE
    middle = np.minimum(onset + isi - 1, end)
    double = (predictions[row, middle] < 0.5) & (predictions[row, end] < 0.5)
    double &= share_high(predictions, row, middle + 1, end) >= INTERIOR_SHARE
    return np.where(is_double(intervals, isi), double, single)


def is_double(intervals: Intervals, isi: int) -> np.ndarray:
    """Whether each interval (m,) is two in one run."""
    return intervals.end - intervals.onset + 1 == 2 * isi


def offset_counts(
    input_ids: np.ndarray, outputs: np.ndarray, supervised: np.ndarray, isi: int
) -> dict[str, tuple[float, float]]:
    """Counts of exact, near, early, late and missed ends, and of rows by their exact intervals, each with its total."""
    intervals = find_intervals(input_ids, supervised)
    exact = exact_intervals(intervals, outputs, isi)
    near = exact_intervals(intervals, outputs, isi, tolerance=1)
    error = offset_errors(intervals, outputs, isi)[~is_double(intervals, isi)]
    in_row = np.bincount(intervals.row, minlength=len(input_ids))
    exact_in_row = np.bincount(intervals.row[exact], minlength=len(input_ids))
    scored = in_row > 0
    return {
        "exact_offsets": (int(exact.sum()), len(exact)),
        "offsets_within_1": (int(near.sum()), len(exact)),
        "early_offsets": (int((error < 0).sum()), len(error)),
        "late_offsets": (int(((error > 0) & (error != MISSED)).sum()), len(error)),
        "missed_offsets": (int((error == MISSED).sum()), len(error)),
        "rows_exact": (int(((in_row == exact_in_row) & scored).sum()), int(scored.sum())),
        "rows_3_of_5": _cycles(intervals.row, exact, in_row),
    }


def _cycles(row: np.ndarray, exact: np.ndarray, in_row: np.ndarray) -> tuple[int, int]:
    """Rows with at least three exact intervals among their first five, of the rows that have five."""
    first = np.cumsum(in_row) - in_row
    early = np.arange(len(row)) - first[row] < 5
    hits = np.bincount(row[early & exact], minlength=len(in_row))
    return int(((hits >= 3) & (in_row >= 5)).sum()), int((in_row >= 5).sum())


def false_alarms(input_ids: np.ndarray, outputs: np.ndarray, supervised: np.ndarray) -> tuple[int, int]:
    """Off-steps with an output above 0.5 between two intervals of a row, and the number of such steps.

    The last on-step before them is left out, and so is the step whose successor is the next onset.
    """
    intervals = find_intervals(input_ids, supervised)
    has_next = intervals.next_onset < outputs.shape[1]
    row, start = intervals.row[has_next], intervals.end[has_next] + 1
    stop = intervals.next_onset[has_next] - 1
    above = np.pad(np.cumsum(outputs > 0.5, axis=1), ((0, 0), (1, 0)))
    return int((above[row, stop] - above[row, start]).sum()), int((stop - start).sum())
