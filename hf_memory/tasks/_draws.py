"""Draws with constraints and running look-ups, one for each row, vectorised over rows."""

import functools
import math

import numpy as np

_INDEX_BITS = 20


def draw_distinct(rng: np.random.Generator, num_rows: int, count: int, size: int) -> np.ndarray:
    """Ordered draws (n, count) int64 of distinct integers in [0, size), uniform over all ordered choices.

    Repeats are drawn again until there are none. Which of two equal numbers is replaced depends on their places
    alone, never on their value, so no number is preferred, whatever the number of rounds.
    """
    if not 0 <= count <= size:
        raise ValueError(f"count must be between 0 and {size}, the number of values, got {count}")
    if 2 * count > size:
        # Repeats would be the rule: shuffle the whole range instead.
        return rng.permuted(np.broadcast_to(np.arange(size), (num_rows, size)), axis=1)[:, :count]
    values = rng.integers(0, size, size=(num_rows, count), dtype=np.int64)
    pending = np.arange(num_rows)
    while len(pending) and count > 1:
        # Value and place share one integer: one sort orders the values and keeps the places of equal ones in order.
        tagged = (values[pending] << _INDEX_BITS) | np.arange(count)
        tagged.sort(axis=1)
        ordered = tagged >> _INDEX_BITS
        repeated = ordered[:, 1:] == ordered[:, :-1]
        if not repeated.any():
            break
        row, later = np.nonzero(repeated)
        place = tagged[row, later + 1] & ((1 << _INDEX_BITS) - 1)
        values[pending[row], place] = rng.integers(0, size, size=len(row), dtype=np.int64)
        pending = pending[np.unique(row)]
    return values


def draw_weighted_distinct(rng: np.random.Generator, num_rows: int, count: int, weights: np.ndarray) -> np.ndarray:
    """Indices (n, count) int64 drawn one after the other without replacement, each in proportion to its weight.

    An index rings after an exponential time with its weight as rate; the order in which the first ``count`` ring is
    the order of such draws (Efraimidis and Spirakis, 2006).
    """
    times = rng.standard_exponential((num_rows, len(weights)), dtype=np.float32)
    times *= (1.0 / weights).astype(np.float32)
    if 4 * count < len(weights):
        first = np.argpartition(times, count - 1, axis=1)[:, :count]
        order = np.argsort(np.take_along_axis(times, first, axis=1), axis=1)
        return np.take_along_axis(first, order, axis=1)
    return np.argsort(times, axis=1)[:, :count]


def fill_avoiding(rng: np.random.Generator, ids: np.ndarray, free: np.ndarray, taken: np.ndarray, size: int) -> None:
    """Write ids drawn uniformly from [0, size) without those in ``taken`` (n, m) of the row, where ``free`` (n, L).

    ``ids`` (n, L) is changed in place. Draws that hit a taken id are drawn again.
    """
    block = max(1, (1 << 21) // size)
    for start in range(0, len(ids), block):
        rows = slice(start, start + block)
        row, column = np.nonzero(free[rows])
        is_taken = np.zeros((len(ids[rows]), size), dtype=bool)
        np.put_along_axis(is_taken, taken[rows], True, axis=1)
        flat = is_taken.reshape(-1)
        drawn = rng.integers(0, size, size=len(row), dtype=np.int32)
        again = np.flatnonzero(flat[row * size + drawn])
        while len(again):
            drawn[again] = rng.integers(0, size, size=len(again), dtype=np.int32)
            again = again[flat[row[again] * size + drawn[again]]]
        ids[rows][row, column] = drawn


def draw_balanced(rng: np.random.Generator, updates: np.ndarray, k: int) -> np.ndarray:
    """Keys (n, G) to query, given which key each event updates (n, G), -1 for none.

    One half of the draws is among the keys updated before, the other among those that were not.
    """
    n, num_events = updates.shape
    first = np.full((n, k), num_events)
    for key in range(k):
        is_key = updates == key
        first[:, key] = np.where(is_key.any(axis=1), np.argmax(is_key, axis=1), num_events)
    event = np.arange(num_events)
    num_updated = np.zeros((n, num_events), dtype=np.int32)
    for key in range(k):
        num_updated += first[:, key, None] < event
    from_updated = rng.integers(0, 2, size=(n, num_events), dtype=np.int8) == 1
    size = np.where(from_updated, num_updated, k - num_updated)
    from_all = size == 0
    rank = rng.integers(0, np.where(from_all, k, size), dtype=np.int32)
    which = np.zeros((n, num_events), dtype=np.int32)
    for key in range(k):
        allowed = ((first[:, key, None] < event) == from_updated) | from_all
        which[allowed & (rank == 0)] = key
        rank -= allowed
    return which


def last_in_group(group: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """For each column of (n, G) the largest of the ``marks`` up to it in columns of the same ``group``."""
    n, width = group.shape
    # Group, column and mark share one integer. Sorted, groups lie side by side, and one running maximum serves all.
    packed = (group.astype(np.int64) << 42) | (np.arange(width) << 21) | marks
    packed.sort(axis=1)
    column = (packed >> 21) & ((1 << 21) - 1)
    packed &= ~(((1 << 21) - 1) << 21)
    found = np.maximum.accumulate(packed, axis=1) & ((1 << 21) - 1)
    result = np.empty(n * width, dtype=np.int32)
    result[column + np.arange(n)[:, None] * width] = found
    return result.reshape(n, width)


@functools.lru_cache(maxsize=64)
def expected_largest_count(draws: int, values: int) -> float:
    """Expected count of the most frequent of ``draws`` draws with replacement from ``values`` values."""
    expected = 0.0
    for most in range(draws):
        # P(all counts <= most) is the coefficient of x^draws in (sum_{j <= most} x^j / j!)^values, scaled.
        single = np.array([1.0 / math.factorial(j) if j <= most else 0.0 for j in range(draws + 1)])
        power = np.zeros(draws + 1)
        power[0] = 1.0
        for _ in range(values):
            power = np.convolve(power, single)[: draws + 1]
        expected += 1.0 - float(power[draws]) * math.exp(math.lgamma(draws + 1) - draws * math.log(values))
    return expected
