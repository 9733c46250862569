"""Rows of pairs whose keys and values are tuples of tokens: drawn, and laid out from the right."""

import dataclasses
import functools
import itertools
import math

import numpy as np

from hf_memory.tasks._draws import draw_distinct

_MOST_LISTED = 1 << 19


@dataclasses.dataclass(frozen=True)
class Side:
    """What keys, or values, are made of.

    Attributes:
        first: The first id.
        count: Number of ids.
        longest: Largest number of tokens of a tuple.
        exact: Whether all tuples have that many.
    """

    first: int
    count: int
    longest: int
    exact: bool = False

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Ordered tuples (n, P, longest) of distinct ids, and how many of each count (n, P)."""
        low, tuples = self.longest if self.exact else 1, math.perm(self.count, self.longest)
        if tuples <= _MOST_LISTED:
            tokens = _listed(self.count, self.longest)[rng.integers(0, tuples, size=shape, dtype=np.int32)]
        else:
            tokens = draw_distinct(rng, shape[0] * shape[1], self.longest, self.count).reshape(*shape, self.longest)
        return (tokens + self.first).astype(np.int32), rng.integers(low, self.longest + 1, size=shape, dtype=np.int32)


@functools.lru_cache(maxsize=8)
def _listed(count: int, longest: int) -> np.ndarray:
    """All ordered tuples (T, longest) of distinct numbers below ``count``."""
    tuples = np.array(list(itertools.permutations(range(count), longest)), dtype=np.int32)
    tuples.setflags(write=False)
    return tuples


@dataclasses.dataclass
class Pairs:
    """Pairs (n, P) of tuples in the order of their rows; those that are not ``used`` are no part of them."""

    keys: np.ndarray
    key_sizes: np.ndarray
    values: np.ndarray
    value_sizes: np.ndarray
    used: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Tokens (n, P) of each pair."""
        return (self.key_sizes + self.value_sizes) * self.used

    def codes(self) -> np.ndarray:
        """An integer (n, P) for each key."""
        base, code = int(self.keys.max(initial=0)) + 2, np.zeros(self.key_sizes.shape, dtype=np.int64)
        for place in range(self.keys.shape[2]):
            code = code * base + np.where(place < self.key_sizes, self.keys[:, :, place] + 1, 0)
        return code

    def take(self, order: np.ndarray, used: np.ndarray) -> "Pairs":
        """The pairs in another order (n, Q)."""
        flat = order + np.arange(len(order))[:, None] * self.used.shape[1]
        keys, values = (side.reshape(-1, side.shape[2])[flat] for side in (self.keys, self.values))
        return Pairs(keys, self.key_sizes.ravel()[flat], values, self.value_sizes.ravel()[flat], used)


def draw_pairs(rng: np.random.Generator, num_rows: int, length: int, keys: Side, values: Side) -> Pairs:
    """Pairs of rows of ``length`` tokens: as many as fit, one of which, at a uniform place, comes again at the end.

    Tuples are uniform; a key has one value in a row.
    """
    smallest = (keys.longest if keys.exact else 1) + 1
    most, usual = length // smallest, (smallest + keys.longest + values.longest) / 2
    drawn = _draw(rng, num_rows, min(most, int(1.2 * length / usual) + 6), keys, values)
    while True:
        pairs = _settle(drawn)
        # The first pair is the one that is asked for; the others follow while they fit.
        budget = length - 2 * pairs.sizes[:, :1]
        total = np.cumsum(pairs.sizes[:, 1:], axis=1)
        if pairs.used.shape[1] >= most or (total[:, -1:] > budget).all():
            break
        more = _draw(rng, num_rows, most - pairs.used.shape[1], keys, values)
        drawn = [np.concatenate(parts, axis=1) for parts in zip(drawn, more, strict=True)]
    others = (total <= budget).sum(axis=1)
    place = rng.integers(0, others + 1)[:, None]
    column = np.arange(int(others.max(initial=0)) + 2)
    last = others[:, None] + 1
    order = np.where(column < place, column + 1, np.where(column == place, 0, column))
    return pairs.take(np.where(column >= last, 0, order), column <= last)


def _draw(rng: np.random.Generator, num_rows: int, count: int, keys: Side, values: Side) -> list[np.ndarray]:
    """Keys, their sizes, values and their sizes, all independent."""
    return [*keys.draw(rng, (num_rows, count)), *values.draw(rng, (num_rows, count))]


def _settle(drawn: list[np.ndarray]) -> Pairs:
    """Pairs in which a key that comes again has the value that it had first."""
    keys, key_sizes, values, value_sizes = drawn
    pairs = Pairs(keys, key_sizes, values, value_sizes, np.ones(key_sizes.shape, dtype=bool))
    first = pairs.take(first_in_group(pairs.codes()), pairs.used)
    return dataclasses.replace(pairs, values=first.values, value_sizes=first.value_sizes)


def first_in_group(group: np.ndarray) -> np.ndarray:
    """For each column of (n, P) the first column of the same group."""
    (num_rows, width), bits = group.shape, (group.shape[1] - 1).bit_length()
    largest = (int(group.max(initial=0)) + 1) << bits
    kind = np.int16 if largest < 1 << 15 else np.int32 if largest < 1 << 31 else np.int64
    # Group and column share one integer. Sorted, groups lie side by side, each beginning with its first column.
    packed = (group.astype(kind) << bits) | np.arange(width, dtype=kind)
    packed.sort(axis=1)
    column = (packed & ((1 << bits) - 1)).astype(np.intp)
    packed >>= bits
    begin = np.broadcast_to(np.arange(width, dtype=np.int32), group.shape).copy()
    begin[:, 1:][packed[:, 1:] == packed[:, :-1]] = 0
    np.maximum.accumulate(begin, axis=1, out=begin)
    offset = np.arange(num_rows)[:, None] * width
    first = np.empty(num_rows * width, dtype=np.int64)
    first[column + offset] = column.ravel()[begin + offset]
    return first.reshape(group.shape)


def lay_out(pairs: Pairs, length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids (n, length) of pairs that end with the row, after pads, and which of them (n, length) answer a query."""
    num_rows = len(pairs.used)
    ids = np.full(num_rows * length, pad, dtype=np.int32)
    answers = np.zeros(num_rows * length, dtype=bool)
    ends = np.cumsum(pairs.sizes, axis=1)
    start = np.arange(num_rows)[:, None] * length + length - ends[:, -1:] + ends - pairs.sizes
    again = first_in_group(pairs.codes()) < np.arange(pairs.used.shape[1])
    for place in range(pairs.keys.shape[2]):
        here = pairs.used & (place < pairs.key_sizes)
        ids[start[here] + place] = pairs.keys[:, :, place][here]
    for place in range(pairs.values.shape[2]):
        here = pairs.used & (place < pairs.value_sizes)
        column = (start + pairs.key_sizes)[here] + place
        ids[column] = pairs.values[:, :, place][here]
        answers[column] = again[here]
    return ids.reshape(num_rows, length), answers.reshape(num_rows, length)
