"""What is read off runs: windows of learning rates, steps to a level, late drops, plateaus.

Needs the standard library only. A curve is a mapping from learning rate, or a list of (step, value), to a value of the
metric; NaN has been replaced by the chance level before anything arrives here.
"""

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence

BEYOND = 0.05
"""How far above the level of a plateau a run has left it."""

HOLD = 3
"""Evaluations in a row that must reach a level before it counts."""

FOUR_POINTS = (1e-4, 4.64e-4, 2.15e-3, 1e-2)
"""The learning rates of Arora et al. (2024, Zoology): four points, evenly spaced on a logarithmic axis."""


def window(solved: Mapping[float, bool]) -> float:
    """Width, in decades, of the learning rates at which a run solved its task.

    Each rate stands for its share of the grid, half way to its neighbours on a logarithmic axis, and at the ends of the
    grid for half a step. Nothing is interpolated.

    >>> round(window({1e-4: False, 1e-3: True, 1e-2: True}), 3)
    1.5
    """
    rates = sorted(solved)
    places = [math.log10(rate) for rate in rates]
    width = 0.0
    for index, rate in enumerate(rates):
        if solved[rate]:
            low, high = places[max(index - 1, 0)], places[min(index + 1, len(places) - 1)]
            width += (high - low) / 2
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


def steps_to(points: Sequence[tuple[int, float]], theta: float, hold: int = HOLD) -> int | None:
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
    """Whether a value lies near a level, the best that a rule without memory reaches, or below by up to a half."""
    return 0.5 * level < value < level + BEYOND


def left_plateau(value: float, level: float | None) -> bool:
    """Whether a value lies beyond the plateau; always where there is none."""
    return level is None or value >= level + BEYOND


def plateau(points: Sequence[tuple[int, float]], level: float) -> float:
    """Share of the training steps spent on the plateau; between evaluations the later one counts."""
    if not points:
        return math.nan
    spent, before = 0, 0
    for step, value in points:
        spent += (step - before) if on_plateau(value, level) else 0
        before = step
    return spent / before


def bump(points: Sequence[tuple[int, float]], share: float = 0.1, below: float | None = None) -> float:
    """Largest fall of the loss within ``share`` of the steps, over the whole fall; linear between evaluations.

    Args:
        points: Steps and the loss after them.
        share: Share of the steps of the last evaluation.
        below: Losses above it are taken for it, so that what a run unlearns of its first weights is no fall.

    Returns:
        The ratio. NaN where the loss did not fall, or with fewer than two evaluations.
    """
    points = [(step, value if below is None else min(value, below)) for step, value in points]
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


def seeds_that_pass(values: Sequence[float], threshold: float) -> tuple[int, int]:
    """How many of the runs are strictly above a threshold, and how many there are; NaN is a miss."""
    return sum(value > threshold for value in values), len(values)


def seed_reading(shares: Sequence[float], share: float = 0.9) -> tuple[int, int]:
    """Read "3 of 5" over seeds: in how many runs at least ``share`` of all intervals are exact, and how many runs.

    Args:
        shares: For each run, the share of its complete intervals that are exact; NaN is a miss.
        share: Share of the intervals of a run that must be exact.
    """
    return sum(found >= share for found in shares), len(shares)


def cycle_reading(shares: Sequence[float]) -> tuple[int, int]:
    """Read "3 of 5" over cycles: in how many runs more than half of the sequences pass, and how many runs.

    Args:
        shares: For each run, the share of its sequences with at least three exact intervals among their first five;
            NaN is a miss.
    """
    return seeds_that_pass(shares, 0.5)
