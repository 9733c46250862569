"""What is read off curves: over steps, over learning rates, over test lengths."""

import math

import numpy as np
import pandas

HELD = 3
"""Looks in a row that must be at a level."""
FOUR_POINTS = (1e-4, 4.64e-4, 2.15e-3, 1e-2)


class MissingError(Exception):
    """Something was not measured, and there is no verdict."""


def standard_error(values: pandas.Series, targets: int) -> float:
    """Of the mean over seeds: what the targets leave open, with one right and one wrong more, or the seeds if more."""
    share = (np.clip(values.mean(), 0, 1) * targets + 1) / (targets + 2)
    within = math.sqrt(share * (1 - share) / targets / len(values))
    return within if len(values) == 1 else max(within, values.std() / math.sqrt(len(values)))


def reached(table: pandas.DataFrame, theta: float) -> pandas.Series:
    """For each line the longest length, the columns, that is above a level with every shorter one; 0 for none."""
    table = table.sort_index(axis=1)
    above = (table > theta).astype(int).cummin(axis=1)
    return (above * table.columns).max(axis=1).astype(float)


def steps_to(curve: pandas.Series, level: float, stop_at: float = math.nan) -> float:
    """Steps at the first of three looks in a row at a level; never is infinity.

    A run that its own rule ended above the level holds it from its last look on.
    """
    if level <= stop_at < curve.iloc[-1]:
        curve = pandas.concat([curve, *[curve[-1:]] * (HELD - 1)])
    held = (curve >= level).astype(float).rolling(HELD).sum().shift(1 - HELD) == HELD
    return float(held.idxmax()) if held.any() else math.inf


def late_drop(curve: pandas.Series) -> float:
    """How far the running median of three looks ends below its largest value."""
    values = curve.dropna()
    smooth = values.rolling(min(HELD, len(values))).median()
    return smooth.max() - smooth.iloc[-1]


def bump(curve: pandas.Series, below: float = math.inf) -> float:
    """The largest fall of the loss below a level in a tenth of all steps, over all of it; linear between looks."""
    steps, losses = curve.index.to_numpy(float), np.minimum(curve.to_numpy(), below)
    fall, tenth = losses[0] - losses[-1], 0.1 * steps[-1]
    if not fall > 0:
        raise MissingError("the loss did not fall")
    starts = np.concatenate([steps, steps - tenth])
    starts = starts[(steps[0] <= starts) & (starts <= steps[-1])]
    return (np.interp(starts, steps, losses) - np.interp(starts + tenth, steps, losses)).max() / fall


def window(solved: pandas.Series) -> float:
    """Decades of the rates at which a run solved its task: each stands for half the way to its neighbours."""
    places = np.log10(solved.index.to_numpy())
    edges = np.concatenate([places[:1], (places[1:] + places[:-1]) / 2, places[-1:]])
    return np.diff(edges)[solved].sum()


def regret(values: pandas.Series) -> float:
    """How much better the best of all rates is than that of four."""
    return values.max() - max(values[np.isclose(values.index, rate, rtol=0.01)].iloc[0] for rate in FOUR_POINTS)
