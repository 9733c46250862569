"""The best output for interval counting, expectations of the signal, and the number of its rows."""

import numpy as np

from hf_memory.tasks._intervals import elapsed_steps


def best_outputs(input_ids: np.ndarray, isi: int, iti_min: int, iti_max: int) -> np.ndarray:
    """Outputs (n, L) with the least expected squared error for one who knows the law.

    Within an interval: 1 until its last step, then 0. After j off-steps: 0 where j < iti_min, otherwise the
    probability 1 / (iti_max - j + 1) that the next step is on.
    """
    elapsed = elapsed_steps(input_ids)
    hazard = np.where(elapsed < iti_min, 0.0, 1.0 / np.maximum(iti_max - elapsed + 1, 1))
    return np.where(input_ids == 1, (elapsed < isi).astype(np.float64), hazard)


def expected_counts(length: int, isi: int, iti_min: int, iti_max: int) -> dict[str, float]:
    """Expectations per predicted step, exact, from the renewal equation of the onsets.

    Returns:
        ``on``, the share of on-steps among those whose successor is predicted; ``onsets`` and ``offsets``, the share
        of such steps whose successor is the first on-step or the first off-step; and ``best``, the mean squared error
        of :func:`best_outputs`.
    """
    gaps = np.arange(iti_min, iti_max + 1)
    # starts[t]: probability that an interval of off-steps starts at t; the first one starts at 0.
    starts = np.zeros(length + isi + iti_max + 1)
    starts[0] = 1.0
    onset = np.zeros_like(starts)
    for t in range(length):
        onset[t + gaps] += starts[t] / len(gaps)
        starts[t + isi + 1] = onset[t + 1]
    before = np.cumsum(onset)
    on = before - np.concatenate([np.zeros(isi), before[:-isi]])
    best = 0.0
    for elapsed in range(iti_min, iti_max + 1):
        # The off-interval has lasted `elapsed` steps; it goes on or ends, and nothing tells which.
        alive = (iti_max - elapsed + 1) / len(gaps)
        hazard = 1 / (iti_max - elapsed + 1)
        best += starts[: max(length - elapsed, 0)].sum() * alive * hazard * (1 - hazard)
    steps = length - 1
    return {
        "on": float(on[:steps].sum() / steps),
        "onsets": float(onset[1:length].sum() / steps),
        "offsets": float(starts[1:length].sum() / steps),
        "best": float(best / steps),
    }


def count_rows(length: int, isi: int, iti_min: int, iti_max: int) -> int:
    """Number of distinct rows of ``length`` steps, exact."""
    # ways[r]: distinct continuations with r steps left, an interval of off-steps being about to start.
    ways = [1] + [0] * length
    for left in range(1, length + 1):
        for wait in range(iti_min, min(iti_max, left - 1) + 1):
            ways[left] += ways[max(left - wait - isi, 0)]
        ways[left] += iti_max >= left
    return ways[length]


def all_waits(length: int, isi: int, iti_min: int, iti_max: int) -> np.ndarray:
    """Lengths (n, m) int32 of the intervals of off-steps of every distinct row of ``length`` steps."""
    choices = np.arange(iti_min, iti_max + 1, dtype=np.int32)
    waits = np.zeros((1, 0), dtype=np.int32)
    while True:
        # Rows that are full get one more wait, beyond their end; those alike in what is visible are merged.
        waits = np.concatenate([np.repeat(waits, len(choices), axis=0), np.tile(choices, len(waits))[:, None]], axis=1)
        onset = np.cumsum(waits + isi, axis=1) - isi
        waits = waits[np.unique(np.minimum(onset, length), axis=0, return_index=True)[1]]
        if (waits + isi).sum(axis=1).min() >= length:
            return waits
