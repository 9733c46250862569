"""What is read off a study: windows of learning rates, steps to a level, late drops, plateaus, intervals, verdicts.

Needs the standard library only. A curve is a mapping from learning rate, or a list of (step, value), to a value of the
metric; NaN has been replaced by the chance level before anything arrives here.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

FOUR_POINTS = (1e-4, 4.64e-4, 2.15e-3, 1e-2)
"""The learning rates of Arora et al. (2024, Zoology): four points, evenly spaced on a logarithmic axis."""

Verdict = Literal["agrees", "disagrees", "not decided"]


def lr_window(curve: Mapping[float, float], theta: float) -> float:
    """Width, in decades, of the learning rates at which the value is at least ``theta``.

    Between grid points the value is linear in the logarithm of the rate; outside the grid nothing counts.

    >>> round(lr_window({1e-4: 0.0, 1e-3: 1.0, 1e-2: 1.0}, 0.5), 3)
    1.5
    """
    points = sorted((math.log10(rate), value) for rate, value in curve.items())
    width = 0.0
    for (left, low), (right, high) in itertools.pairwise(points):
        if min(low, high) >= theta:
            width += right - left
        elif max(low, high) > theta:
            width += (right - left) * (max(low, high) - theta) / abs(high - low)
    return width


def grid_regret(curve: Mapping[float, float], coarse: Sequence[float] = FOUR_POINTS) -> float:
    """What is lost by trying the ``coarse`` rates only: best of all minus best of these.

    Raises:
        ValueError: If a coarse rate is not in the curve (to one per cent).
    """
    found = []
    for rate in coarse:
        near = [value for tried, value in curve.items() if abs(math.log(tried / rate)) < 0.01]
        if not near:
            raise ValueError(f"curve must hold the rates {list(coarse)}, got {sorted(curve)}")
        found.append(near[0])
    return max(curve.values()) - max(found)


def best_of_n(values: Sequence[float]) -> list[float]:
    """Expected best of 1, 2, ... n of the values, drawn without replacement.

    The r-th smallest of n values is the best of m with probability C(r - 1, m - 1) / C(n, m).
    """
    ranked, n = sorted(values), len(values)
    return [
        sum(value * math.comb(rank, m - 1) for rank, value in enumerate(ranked)) / math.comb(n, m)
        for m in range(1, n + 1)
    ]


def steps_to(points: Sequence[tuple[int, float]], theta: float, hold: int = 3) -> int | None:
    """Steps at the first of ``hold`` evaluations in a row that reach ``theta``; None for a run that never holds it.

    Args:
        points: Steps and value of each evaluation, in order.
        theta: The level.
        hold: Evaluations that must reach it, the first one included; fewer do not count, at the end neither.
    """
    for index in range(len(points) - hold + 1):
        if all(value >= theta for _, value in points[index : index + hold]):
            return points[index][0]
    return None


def running_median(values: Sequence[float], width: int = 3) -> list[float]:
    """Median of each window of ``width`` values; of all where there are fewer."""
    if len(values) <= width:
        return [statistics.median(values)] if values else []
    return [statistics.median(values[first : first + width]) for first in range(len(values) - width + 1)]


def late_drop(values: Sequence[float]) -> float:
    """How far the running median of three evaluations ends below its largest value. NaN without an evaluation."""
    smooth = running_median(values)
    return max(smooth) - smooth[-1] if smooth else math.nan


def on_plateau(value: float, level: float) -> bool:
    """Whether a value lies within half of ``level`` of it (for recall, ``level`` is one over the number of pairs)."""
    return abs(value - level) < 0.5 * level


def left_plateau(value: float, level: float | None) -> bool:
    """Whether a value lies beyond the plateau; always where there is none."""
    return level is None or value >= 1.5 * level


def plateau(points: Sequence[tuple[int, float]], level: float) -> float:
    """Share of the training steps spent on the plateau; between evaluations the later one counts."""
    if not points:
        return math.nan
    spent, before = 0, 0
    for step, value in points:
        spent += (step - before) if on_plateau(value, level) else 0
        before = step
    return spent / before


def bump(points: Sequence[tuple[int, float]], share: float = 0.1) -> float:
    """Largest fall of the loss within ``share`` of the steps, over the whole fall; linear between evaluations.

    NaN where the loss did not fall, or with fewer than two evaluations.
    """
    if len(points) < 2 or points[0][1] <= points[-1][1]:
        return math.nan
    first, last = points[0][0], points[-1][0]
    window = share * last
    # The fall over a sliding window is piecewise linear, so its largest value lies where an end meets an evaluation.
    starts = {float(step) for step, _ in points} | {step - window for step, _ in points}
    falls = [
        interpolate(points, start) - interpolate(points, min(start + window, last))
        for start in starts
        if first <= start <= last
    ]
    return max(falls) / (points[0][1] - points[-1][1])


def interpolate(points: Sequence[tuple[int, float]], step: float) -> float:
    """Value at ``step``, linear between evaluations and constant beyond the first and the last."""
    index = bisect.bisect_left([at for at, _ in points], step)
    if index == 0 or index == len(points):
        return points[min(index, len(points) - 1)][1]
    (left, low), (right, high) = points[index - 1], points[index]
    return low + (high - low) * (step - left) / (right - left)


def log_spaced(points: int, last: int) -> list[int]:
    """At most ``points`` distinct steps from 1 to ``last``, evenly spaced on a logarithmic axis, both ends included."""
    if points < 1 or last < 1:
        return []
    if points == 1:
        return [last]
    return sorted({round(last ** (index / (points - 1))) for index in range(points)})


def binomial_interval(successes: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a success rate inside one run (Wilson, 1927).

    Raises:
        ValueError: Unless ``0 <= successes <= total``, ``total >= 1`` and ``0 < level < 1``.
    """
    if not 0 <= successes <= total or total < 1 or not 0 < level < 1:
        raise ValueError(f"successes must be in [0, total] and level in (0, 1), got {successes} of {total} at {level}")
    z = statistics.NormalDist().inv_cdf(0.5 + level / 2)
    rate, weight = successes / total, z * z / total
    centre = (rate + weight / 2) / (1 + weight)
    half = z * math.sqrt(rate * (1 - rate) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def seeds_that_pass(values: Sequence[float], threshold: float) -> tuple[int, int]:
    """How many of the runs are strictly above a threshold, and how many there are; NaN is a miss."""
    return sum(value > threshold for value in values), len(values)


def seed_reading(exact: Sequence[Sequence[Sequence[bool]]], share: float = 0.9) -> tuple[int, int]:
    """Read "3 of 5" over seeds: in how many runs at least ``share`` of all intervals are exact, and how many runs.

    Args:
        exact: For each run and sequence, whether each complete interval was exact.
        share: Share of the intervals of a run that must be exact.
    """
    rates = [[hit for sequence in run for hit in sequence] for run in exact]
    return sum(bool(hits) and sum(hits) >= share * len(hits) for hits in rates), len(exact)


def cycle_reading(run: Sequence[Sequence[bool]], needed: int = 3, cycles: int = 5) -> tuple[int, int]:
    """Read "3 of 5" over cycles: in how many sequences ``needed`` of the first ``cycles`` intervals are exact.

    The second number is that of the sequences. The run passes if more than half of them do.
    """
    return sum(sum(sequence[:cycles]) >= needed for sequence in run), len(run)


def needed_seeds(total: int) -> int:
    """Number of seeds in which a relation must hold: two thirds, so 1 of 1, 2 of 2, 2 of 3, 4 of 5."""
    return math.ceil(2 * total / 3)


def judge(holds: Sequence[bool], total: int | None = None) -> Verdict:
    """Verdict of a relation that was looked at in each seed: two thirds of them for it, or against it, decide.

    Args:
        holds: Whether it holds, for each seed that tells.
        total: Number of all seeds, those that do not tell included.
    """
    needed = needed_seeds(len(holds) if total is None else total)
    if holds and sum(holds) >= needed:
        return "agrees"
    return "disagrees" if holds and len(holds) - sum(holds) >= needed else "not decided"
