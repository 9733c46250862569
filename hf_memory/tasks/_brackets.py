"""Rows of brackets: random walks with a stack, their labels, their number, and a matching by depth.

Brackets of P types have the ids 0 .. P - 1 (opening) and P .. 2P - 1 (closing). Samplers work on time-major arrays
(L, n), so that each step of the stack touches contiguous memory; everything else takes rows (n, L).
"""

import itertools
import math

import numpy as np


def walk(
    rng: np.random.Generator, num_types: int, max_depth: int, length: int, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Balanced words (L, n) int32, and the depth (L, n) int32 after each bracket.

    A walk closes when it must (``max_depth`` reached, or as many steps left as brackets open), opens when nothing is
    open, and otherwise does either with probability 1/2. Types of opening brackets are uniform.
    """
    coin = rng.integers(0, 2, size=(length, num_rows), dtype=np.uint8).view(bool)
    kind = rng.integers(0, num_types, size=(length, num_rows), dtype=np.uint16).astype(np.int32)
    tokens = np.empty((length, num_rows), dtype=np.int32)
    depths = np.empty((length, num_rows), dtype=np.int32)
    depth = np.zeros(num_rows, dtype=np.int32)
    stack = np.zeros((max_depth + 1) * num_rows, dtype=np.int32)
    row = np.arange(num_rows)
    for t in range(length):
        opens = ((coin[t] & (depth < max_depth)) | (depth == 0)) & (depth < length - t)
        # Written above the top, where a closing bracket leaves it unread; read at the top, unread where the row opens.
        place = depth * num_rows + row
        stack[place] = kind[t]
        top = stack[place - num_rows]
        np.copyto(tokens[t], np.where(opens, kind[t], top + num_types))
        depth += np.where(opens, 1, -1).astype(np.int32)
        depths[t] = depth
    return tokens, depths


def walk_law(length: int, max_depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (L,) that a walk is at depth zero after each bracket, and that the bracket closes; exact."""
    chance = np.zeros(max_depth + 2)
    chance[0] = 1.0
    depth = np.arange(max_depth + 2)
    zero, closing = np.empty(length), np.empty(length)
    for t in range(length):
        opens = np.where((depth < max_depth) & (depth < length - t), 0.5, 0.0)
        opens[0] = 1.0
        closing[t] = (chance * (1 - opens)).sum()
        chance = np.roll(chance * opens, 1) + np.roll(chance * (1 - opens), -1)
        zero[t] = chance[0]
    return zero, closing


def stack_labels(tokens: np.ndarray, num_types: int, size: int | None = None) -> np.ndarray:
    """Whether each prefix of ``tokens`` (L, n) is balanced, by running a stack that stops at the first fault.

    A stack of a given ``size`` forgets the types of the brackets below its top ``size``, and takes them for right.
    """
    length, num_rows = tokens.shape
    labels = np.empty((length, num_rows), dtype=bool)
    depth = np.zeros(num_rows, dtype=np.int32)
    alive = np.ones(num_rows, dtype=bool)
    stack = np.zeros((length + 1) * num_rows, dtype=np.int32)
    row = np.arange(num_rows)
    known = np.zeros(num_rows, dtype=np.int32)
    most = length if size is None else size
    for t in range(length):
        token = tokens[t]
        opens = token < num_types
        place = depth * num_rows + row
        stack[place] = token
        fits = (known <= 0) | (stack[place - num_rows] == token - num_types)
        alive &= opens | ((depth > 0) & fits)
        known = np.where(opens, np.minimum(known + 1, most), np.maximum(known - 1, 0))
        depth += np.where(opens, 1, -1).astype(np.int32)
        np.maximum(depth, 0, out=depth)
        labels[t] = alive & (depth == 0)
    return labels


def match_by_depth(rows: np.ndarray, num_types: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Running depth of rows (n, L) that ignores types, and where a first fault has come by each position.

    Brackets are matched without a stack: up to the first underflow, those between depths d - 1 and d alternate in
    time, an opening one and the one that closes it, so that a stable sort by level sets partners side by side.

    Returns:
        ``depth`` (n, L) int32, which is negative after an underflow that is not made up for; ``underflow`` and
        ``wrong_type`` (n, L), true from the row's first fault on where that fault is a closing bracket with nothing
        open, or one whose partner has another type.
    """
    opens = rows < num_types
    depth = np.cumsum(np.where(opens, 1, -1), axis=1, dtype=np.int32)
    level = np.where(opens, depth, depth + 1)
    order = np.argsort(level, axis=1, kind="stable")
    kind = np.take_along_axis(np.where(opens, rows, rows - num_types), order, axis=1)
    closes = ~np.take_along_axis(opens, order, axis=1)
    differs = np.zeros(rows.shape, dtype=bool)
    differs[:, 1:] = closes[:, 1:] & (kind[:, 1:] != kind[:, :-1])
    mismatch = np.empty_like(differs)
    np.put_along_axis(mismatch, order, differs, axis=1)
    underflow = np.logical_or.accumulate(depth < 0, axis=1)
    mismatch = np.logical_or.accumulate(mismatch & ~underflow, axis=1)
    # At the first underflow its bracket has no partner; a mismatch before it is the fault that came first.
    first = underflow & ~mismatch
    came_first = np.logical_or.accumulate(first, axis=1)
    return depth, came_first, mismatch & ~came_first


def _shuffle_suffixes(rng: np.random.Generator, rows: np.ndarray, start: np.ndarray, num_tokens: int) -> np.ndarray:
    """Rows (n, L) whose columns from ``start`` (n,) on are in uniformly random order."""
    bits = max(int(num_tokens - 1).bit_length(), 1)
    column = np.arange(rows.shape[1], dtype=np.uint64)
    # Each key holds the token in its low bits: columns before `start` keep their order, later ones get a random one.
    keys = rng.integers(0, 1 << (62 - bits), size=rows.shape, dtype=np.uint64) | np.uint64(1 << (62 - bits))
    keys = np.where(column < start[:, None], column, keys)
    keys = (keys << np.uint64(bits)) | rows.astype(np.uint64)
    keys.sort(axis=1)
    return (keys & np.uint64((1 << bits) - 1)).astype(np.int32)


def shuffle_after_prefix(
    rng: np.random.Generator, tokens: np.ndarray, balanced: np.ndarray, num_types: int
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle words (L, n) after one of their balanced prefixes, or whole words that have none but themselves.

    Args:
        rng: Source of randomness.
        tokens: Balanced words.
        balanced: Whether each prefix is balanced.
        num_types: Number of bracket types.

    Returns:
        The new ``tokens`` and ``balanced``.
    """
    so_far = np.cumsum(balanced[:-1], axis=0, dtype=np.int32)
    count = so_far[-1]
    pick = rng.integers(0, np.maximum(count, 1), dtype=np.int32)
    start = np.where(count > 0, (so_far <= pick).sum(axis=0) + 1, 0)
    rows = _shuffle_suffixes(rng, np.ascontiguousarray(tokens.T), start, 2 * num_types)
    shuffled = np.ascontiguousarray(rows.T)
    return shuffled, stack_labels(shuffled, num_types)


def swap_type(
    rng: np.random.Generator, tokens: np.ndarray, balanced: np.ndarray, num_types: int
) -> tuple[np.ndarray, np.ndarray]:
    """Give one closing bracket of each word (L, n), chosen uniformly, another type; as :func:`shuffle_after_prefix`."""
    length, count = tokens.shape
    pick = rng.integers(0, length // 2, size=count, dtype=np.int32)
    where = (np.cumsum(tokens >= num_types, axis=0, dtype=np.int32) <= pick).sum(axis=0)
    row = np.arange(count)
    shift = rng.integers(1, num_types, size=count, dtype=np.int32)
    swapped = tokens.copy()
    swapped[where, row] = num_types + (tokens[where, row] - num_types + shift) % num_types
    return swapped, balanced & (np.arange(length)[:, None] < where)


def count_walks(length: int, max_depth: int) -> int:
    """Number of balanced words of one type whose depth never exceeds ``max_depth``."""
    ways = [1] + [0] * max_depth
    for _ in range(length):
        ways = [(ways[d - 1] if d else 0) + (ways[d + 1] if d < max_depth else 0) for d in range(max_depth + 1)]
    return ways[0]


def count_rearrangements(length: int, num_types: int) -> int:
    """Number of words in which each type opens as often as it closes, in any order."""
    half = length // 2
    ways = [1] + [0] * half
    for _ in range(num_types):
        ways = [
            sum(ways[h - c] * math.comb(2 * h, 2 * c) * math.comb(2 * c, c) for c in range(h + 1))
            for h in range(half + 1)
        ]
    return ways[half]


def all_walks(length: int, max_depth: int, num_types: int) -> np.ndarray:
    """All balanced words (n, L) int32 whose depth never exceeds ``max_depth``."""
    steps = np.zeros((1, 0), dtype=np.int32)
    for t in range(length):
        grown = np.concatenate([np.pad(steps, ((0, 0), (0, 1)), constant_values=step) for step in (1, -1)])
        depth = grown.sum(axis=1)
        steps = grown[(depth >= 0) & (depth <= min(max_depth, length - t - 1))]
    opens = steps > 0
    # As in match_by_depth: sorted by level, openings and their partners alternate.
    depth = np.cumsum(steps, axis=1)
    order = np.argsort(np.where(opens, depth, depth + 1), axis=1, kind="stable")
    kinds = np.array(list(itertools.product(range(num_types), repeat=length // 2)), dtype=np.int32)
    words = np.empty((len(steps), len(kinds), length), dtype=np.int32)
    pairs = np.stack([kinds, kinds + num_types], axis=2).reshape(len(kinds), length)
    np.put_along_axis(words, np.broadcast_to(order[:, None], words.shape), np.broadcast_to(pairs, words.shape), axis=2)
    return words.reshape(-1, length)


def all_rearrangements(length: int, num_types: int) -> np.ndarray:
    """All words (n, L) int32 in which each type opens as often as it closes."""
    words = np.zeros((1, 0), dtype=np.int32)
    surplus = np.zeros((1, num_types), dtype=np.int32)
    for t in range(length):
        token = np.repeat(np.arange(2 * num_types, dtype=np.int32), len(words))
        words = np.concatenate([np.tile(words, (2 * num_types, 1)), token[:, None]], axis=1)
        surplus = np.tile(surplus, (2 * num_types, 1))
        surplus[np.arange(len(token)), token % num_types] += np.where(token < num_types, 1, -1).astype(np.int32)
        kept = np.abs(surplus).sum(axis=1) <= length - t - 1
        words, surplus = words[kept], surplus[kept]
    return words


def macro_recall(labels: np.ndarray, predictions: np.ndarray, where: np.ndarray) -> float:
    """Mean over the classes present of the share of their positions, among ``where``, that are predicted."""
    recalls = [
        float((predictions[where & (labels == value)] == value).mean())
        for value in (0, 1)
        if (where & (labels == value)).any()
    ]
    return sum(recalls) / len(recalls)
