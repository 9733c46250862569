"""Crossed words: two closing brackets of a balanced word exchanged, so that nothing less than a stack sees it.

A pair of brackets is *inner* where its closing bracket follows another closing one: it holds other pairs. A crossing
exchanges the closing bracket of an inner pair with that of a pair around it of another type. No count of a type is
changed by the end of the word, none falls below zero on the way, and no closing bracket stands right after an opening
one of another type.

Samplers take time-major arrays (L, n), as in :mod:`hf_memory.tasks._brackets`; the rest takes words (n, L).
"""

import functools
from collections.abc import Sequence

import numpy as np

from hf_memory.tasks import _brackets as brackets


def count_crossings(tokens: np.ndarray, num_types: int) -> np.ndarray:
    """How many crossings (L, n) each closing bracket of balanced words (L, n) has as its inner pair's."""
    length, num_rows = tokens.shape
    open_of_type = np.zeros((num_types, num_rows), dtype=np.int32)
    depth = np.zeros(num_rows, dtype=np.int32)
    crossings = np.zeros(tokens.shape, dtype=np.int32)
    row = np.arange(num_rows)
    for t in range(length):
        opens = tokens[t] < num_types
        kind = np.where(opens, tokens[t], tokens[t] - num_types)
        if t:
            around = depth - open_of_type[kind, row]
            crossings[t] = np.where(~opens & (tokens[t - 1] >= num_types), around, 0)
        change = np.where(opens, 1, -1).astype(np.int32)
        open_of_type[kind, row] += change
        depth += change
    return crossings


def walk_with_crossing(
    rng: np.random.Generator, num_types: int, max_depth: int, length: int, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Words and depths as :func:`_brackets.walk`, those without a crossing drawn again."""
    tokens, depths = brackets.walk(rng, num_types, max_depth, length, num_rows)
    pending = np.flatnonzero(~count_crossings(tokens, num_types).any(axis=0))
    while len(pending):
        tokens[:, pending], depths[:, pending] = brackets.walk(rng, num_types, max_depth, length, len(pending))
        pending = pending[~count_crossings(tokens[:, pending], num_types).any(axis=0)]
    return tokens, depths


def cross(
    rng: np.random.Generator, tokens: np.ndarray, balanced: np.ndarray, num_types: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cross each word (L, n) once, all its crossings being equally likely; as :func:`_brackets.swap_type`."""
    so_far = np.cumsum(count_crossings(tokens, num_types), axis=0, dtype=np.int32)
    pick = rng.integers(0, so_far[-1], dtype=np.int32)
    inner = (so_far <= pick).sum(axis=0)
    row = np.arange(tokens.shape[1])
    rank = pick - np.where(inner > 0, so_far[inner - 1, row], 0)
    words = np.ascontiguousarray(tokens.T)
    exchange(words, inner, rank, num_types)
    return np.ascontiguousarray(words.T), balanced & (np.arange(len(tokens))[:, None] < inner)


def exchange(words: np.ndarray, inner: np.ndarray, rank: np.ndarray, num_types: int) -> None:
    """Exchange in place the closing brackets ``inner`` (n,) of words (n, L) with those of pairs around them.

    ``rank`` (n,) counts the pairs around of another type, from the outermost.
    """
    opens = words < num_types
    depth = np.cumsum(np.where(opens, 1, -1), axis=1, dtype=np.int32)
    row, column = np.arange(len(words)), np.arange(words.shape[1])
    kind = words[row, inner] - num_types
    level_of_inner = depth[row, inner] + 1
    outer, left = np.zeros(len(words), dtype=np.intp), rank.copy()
    for level in range(1, int(level_of_inner.max(initial=1))):
        # The opening bracket at this level that is still open, and the first return to the level below.
        opened = (depth == level) & opens & (column < inner[:, None])
        place = words.shape[1] - 1 - np.argmax(opened[:, ::-1], axis=1)
        differs = (level < level_of_inner) & (words[row, place] != kind)
        closes = (depth == level - 1) & (column > inner[:, None])
        outer = np.where(differs & (left == 0), np.argmax(closes, axis=1), outer)
        left -= differs
    words[row, inner], words[row, outer] = words[row, outer], words[row, inner].copy()


def all_crossed(words: np.ndarray, num_types: int) -> np.ndarray:
    """Of balanced words (n, L), those that can be crossed, and then each of their crossings."""
    crossings = count_crossings(np.ascontiguousarray(words.T), num_types).T
    row, inner = np.nonzero(crossings)
    times = crossings[row, inner]
    rank = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    crossed = np.repeat(words[row], times, axis=0)
    exchange(crossed, np.repeat(inner, times), rank, num_types)
    return np.concatenate([words[crossings.any(axis=1)], crossed])


def count_crossed(length: int, max_depth: int, num_types: int) -> int:
    """Number of words that can be crossed and of their crossings, exact.

    The crossed pairs are the only two of a crossed word that do not match, so that no two crossings are alike. A word
    is a forest, its pairs the nodes, and its inner pairs those that are no leaves. It has no crossing where the inner
    pairs of each tree have one type; and an inner pair at depth d has d - 1 pairs around it, each of another type with
    probability 1 - 1/P.
    """
    half = length // 2
    shapes = _forests(half, max_depth, 1)
    uncrossed_trees = [0, num_types] + [
        num_types * forest for forest in _forests(half, max_depth - 1, num_types)[1:half]
    ]
    uncrossed = _sequences(uncrossed_trees[: half + 1], half)[half]
    pairs = _pairs_around(half, max_depth)[half]
    words = shapes[half] * num_types**half
    return words - uncrossed + pairs * num_types ** (half - 1) * (num_types - 1)


def _sequences(trees: Sequence[int], size: int) -> list[int]:
    """Weights of the sequences of trees by their number of nodes, given those of the trees."""
    forests = [1] + [0] * size
    for nodes in range(1, size + 1):
        forests[nodes] = sum(trees[m] * forests[nodes - m] for m in range(1, min(nodes, len(trees) - 1) + 1))
    return forests


@functools.lru_cache(maxsize=1024)
def _forests(size: int, height: int, leaf: int) -> tuple[int, ...]:
    """Forests by number of nodes, no higher than ``height``, where each leaf has the weight ``leaf``."""
    if height <= 0:
        return (1, *[0] * size)
    below = _forests(size, height - 1, leaf)
    return tuple(_sequences([0, leaf, *below[1:size]], size))


def _pairs_around(size: int, max_depth: int) -> list[int]:
    """Sum over all forests of the pairs around their inner pairs, by number of nodes."""
    total = [0] * (size + 1)
    for depth in range(max_depth, 0, -1):
        # Trees whose roots stand at this depth; `total` is of the forests below them.
        counts, below = _forests(size, max_depth - depth + 1, 1), _forests(size, max_depth - depth, 1)
        tree = [0, 0] + [below[n - 1] * (depth - 1) + total[n - 1] for n in range(2, size + 1)]
        weight = [0, 1] + [below[n - 1] for n in range(2, size + 1)]
        grown = [0] * (size + 1)
        for nodes in range(1, size + 1):
            grown[nodes] = sum(tree[m] * counts[nodes - m] + weight[m] * grown[nodes - m] for m in range(1, nodes + 1))
        total = grown
    return total
