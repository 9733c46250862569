"""Intervals for shares whose counts come in clusters.

All rows of one draw of words share what the model prefers among these words, so that rows are no independent tries:
the draw is the unit that varies.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
"""Coverage of the intervals."""


def clustered_interval(hits: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Interval of a share, from the hits and counts of each cluster (Korn and Graubard, 1998).

    The exact interval of a binomial share at the effective number of tries, which is smaller than their number where
    clusters differ by more than chance, and smaller again for few clusters.

    >>> low, high = clustered_interval([10, 10, 10], [10, 10, 10])
    >>> round(low, 2), high
    (0.58, 1.0)

    Raises:
        ValueError: There are fewer than two clusters, or no tries.
    """
    own, sizes = np.asarray(hits, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    clusters, total = len(own), float(sizes.sum())
    if clusters < 2 or total <= 0:
        raise ValueError(f"clusters: at least two with tries are needed, got {clusters} with {total:g} tries")
    value = float(own.sum()) / total
    variance = clusters / (clusters - 1) * float(((own - value * sizes) ** 2).sum()) / total**2
    effective = total if variance == 0 else min(total, value * (1 - value) / variance)
    tail = (1 + level) / 2
    effective *= (stats.t.ppf(tail, max(total - 1, 1)) / stats.t.ppf(tail, clusters - 1)) ** 2
    hit, miss = effective * value, effective * (1 - value)
    low = 0.0 if hit <= 0 else float(stats.beta.ppf(1 - tail, hit, miss + 1))
    high = 1.0 if miss <= 0 else float(stats.beta.ppf(tail, hit + 1, miss))
    return low, high
