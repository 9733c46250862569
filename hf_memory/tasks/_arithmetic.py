"""Expressions modulo m: drawn with their values, read by a machine with a stack, and what their last tokens tell.

Ids are digits 0 to m - 1, then plus, minus and perhaps times, then the two brackets.
"""

import functools

import numpy as np

_PLUS, _MINUS = 0, 1
_SHORTEST_SUM = 5
_BRACKETED = 3  # the smallest part that ends in a bracket
_WINDOW = 3
_SETTLED = 1e-16
"""Change of a probability by one step below which a chain counts as settled."""


def plain(
    rng: np.random.Generator, length: int, num_examples: int, modulus: int, num_operators: int
) -> tuple[np.ndarray, np.ndarray]:
    """Expressions (n, 2 * length - 1) without brackets, and their values (n,)."""
    digits = rng.integers(0, modulus, size=(length, num_examples), dtype=np.int16)
    operators = rng.integers(0, num_operators, size=(length - 1, num_examples), dtype=np.int16)
    ids = np.empty((2 * length - 1, num_examples), dtype=np.int16)
    ids[0::2], ids[1::2] = digits, operators + modulus
    # The value is what is summed up so far and the product that is still open.
    total, product = np.zeros(num_examples, dtype=np.int16), digits[0]
    for operator, digit in zip(operators, digits[1:], strict=True):
        closes = operator <= _MINUS
        total = (total + np.where(closes, product, 0)) % modulus
        product = np.where(closes, np.where(operator == _MINUS, modulus - digit, digit), product * digit) % modulus
    return np.ascontiguousarray(ids.T), (total + product) % modulus


def bracketed(
    rng: np.random.Generator, length: int, num_examples: int, modulus: int, num_operators: int
) -> tuple[np.ndarray, np.ndarray]:
    """Expressions (n, length) with brackets, and their values (n,).

    All parts of one depth are split at once, and their values put together from the deepest on.
    """
    ids = np.empty(num_examples * length, dtype=np.int16)
    start: np.ndarray = np.arange(num_examples) * length
    size: np.ndarray = np.full(num_examples, length)
    opening, closing = modulus + num_operators, modulus + num_operators + 1
    levels = []
    while len(start):
        is_sum = size >= _SHORTEST_SUM
        leaf_start, leaf_size = start[~is_sum], size[~is_sum]
        digit = rng.integers(0, modulus, size=len(leaf_start), dtype=np.int16)
        in_brackets, negative = leaf_size > 2, leaf_size % 2 == 0
        ids[leaf_start[in_brackets]] = opening
        ids[(leaf_start + leaf_size - 1)[in_brackets]] = closing
        ids[(leaf_start + in_brackets)[negative]] = modulus + _MINUS
        ids[leaf_start + in_brackets + negative] = digit
        values = np.empty(len(start), dtype=np.int16)
        values[~is_sum] = np.where(negative, modulus - digit, digit) % modulus

        start, size = start[is_sum], size[is_sum]
        left = rng.integers(1, size - 3, dtype=np.int64)
        operator = rng.integers(0, num_operators, size=len(start), dtype=np.int16)
        ids[start], ids[start + size - 1], ids[start + 1 + left] = opening, closing, operator + modulus
        levels.append((values, is_sum, operator))
        start = np.concatenate([start + 1, start + 2 + left])
        size = np.concatenate([left, size - 3 - left])
    below: np.ndarray = np.zeros(0, dtype=np.int16)
    for values, is_sum, operator in reversed(levels):
        left, right = below[: len(operator)], below[len(operator) :]
        values[is_sum] = _apply(operator, left, right) % modulus
        below = values
    return ids.reshape(num_examples, length), below


def _apply(operator: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sum, difference or product of two operands, not yet reduced."""
    return np.where(operator == _PLUS, left + right, np.where(operator == _MINUS, left - right, left * right))


def evaluate(ids: np.ndarray, modulus: int, num_operators: int) -> np.ndarray:
    """Values (n,) of expressions (n, k), read from the left.

    For each open bracket a row keeps the sum so far, the product that is still open, and the operator that waits for
    its right side. A minus after nothing but an operator or a bracket is a sign.
    """
    n, row = len(ids), np.arange(len(ids))
    most = 1 + int((ids == modulus + num_operators).sum(axis=1).max(initial=0))
    total = np.zeros((n, most), dtype=np.int64)
    product, waiting = np.zeros_like(total), np.zeros_like(total)
    negative, depth = np.zeros((n, most), dtype=bool), np.zeros(n, dtype=np.intp)
    after_operand = np.zeros(n, dtype=bool)
    for token in ids.T:
        operand = np.where(token < modulus, token, -1).astype(np.int64)
        closes = np.flatnonzero(token == modulus + num_operators + 1)
        operand[closes] = (total + product)[closes, depth[closes]] % modulus
        depth[closes] -= 1
        got = np.flatnonzero(operand >= 0)
        at = (got, depth[got])
        value = np.where(negative[at], -operand[got], operand[got])
        times = waiting[at] > _MINUS
        total[at] += np.where(times, 0, product[at])
        product[at] = np.where(times, product[at] * value, np.where(waiting[at] == _MINUS, -value, value)) % modulus
        negative[at] = False

        is_operator = (token >= modulus) & (token < modulus + num_operators)
        is_sign = is_operator & ~after_operand
        negative[row[is_sign], depth[is_sign]] = True
        binary = np.flatnonzero(is_operator & after_operand)
        waiting[binary, depth[binary]] = token[binary] - modulus
        opens = np.flatnonzero(token == modulus + num_operators)
        depth[opens] += 1
        for stack in (total, product, waiting, negative):
            stack[opens, depth[opens]] = 0
        after_operand = operand >= 0
    return (total[:, 0] + product[:, 0]) % modulus


@functools.lru_cache(maxsize=256)
def _plain_states(length: int, modulus: int, num_operators: int) -> np.ndarray:
    """Probability (m, m) of a sum T and a factor F, so that the value is T + F x for the digit x that comes next.

    ``length`` digits have been read, each with the operator after it.
    """
    states = np.zeros((modulus, modulus))
    states[0, 1 % modulus] = 1.0
    for _ in range(length):
        after = _after_digit(states, num_operators)
        if np.allclose(after, states, rtol=0, atol=_SETTLED):  # what more digits would not change
            return after
        states = after
    return states


def _after_digit(before: np.ndarray, num_operators: int) -> np.ndarray:
    """The states (m, m) after one more digit and the operator that follows it."""
    modulus = len(before)
    states = np.zeros_like(before)
    total, factor, digit = np.indices((modulus,) * 3)
    share = np.broadcast_to(before[:, :, None] / (modulus * num_operators), total.shape)
    value = (total + factor * digit) % modulus
    np.add.at(states, (value, np.full_like(value, 1 % modulus)), share)
    np.add.at(states, (value, np.full_like(value, modulus - 1)), share)
    if num_operators > _MINUS + 1:
        np.add.at(states, (total, factor * digit % modulus), share)
    return states


def plain_joint(length: int, modulus: int, num_operators: int, width: int) -> np.ndarray:
    """Probability (W, m) of the last ``width`` tokens, at most three, of a plain expression, and of its value."""
    if width == 1:
        states = _plain_states(length - 1, modulus, num_operators)
        total, factor, digit = np.indices((modulus,) * 3)
        return _shares(digit, (total + factor * digit) % modulus, states[..., None], modulus) / modulus
    states = _plain_states(length - 2, modulus, num_operators)
    shape = (modulus, modulus, modulus, num_operators, modulus)
    total, factor, digit, operator, last = np.indices(shape)
    value = (total + factor * digit) + np.where(operator == _MINUS, -last, last)
    value = np.where(operator > _MINUS, total + factor * digit * last, value) % modulus
    window = operator * modulus + last + (width == _WINDOW) * digit * num_operators * modulus
    return _shares(window, value, states[..., None, None, None], modulus) / (modulus**2 * num_operators)


def _shares(window: np.ndarray, value: np.ndarray, chance: np.ndarray, modulus: int) -> np.ndarray:
    """Sums (W, m) of chances over the cells that have a window and a value."""
    cells = (window * modulus + value).ravel()
    size = (int(window.max()) + 1) * modulus
    return np.bincount(cells, np.broadcast_to(chance, window.shape).ravel(), minlength=size).reshape(-1, modulus)


def bracketed_joint(length: int, modulus: int, num_operators: int, width: int) -> np.ndarray:
    """Probability (W, m) of the last ``width`` tokens, at most three, of an expression with brackets, and its value."""
    digit = np.eye(modulus) / modulus
    negative = digit[(-np.arange(modulus)) % modulus]
    if length < _SHORTEST_SUM:
        joint = negative if length % 2 == 0 else digit
        # A closing bracket alone hides the digit.
        return joint.sum(axis=0, keepdims=True) if length > 2 and width == 1 else joint
    values, ends = _bracketed_sizes(length, modulus, num_operators)
    if width == 1:
        return values[length][None]
    if width < _WINDOW:
        return ends[length]
    # Before the last bracket stand two tokens of the right part, or the operator and a digit.
    apply, share = _operations(modulus, num_operators), 1 / (length - 4)
    right = np.arange(_BRACKETED, length - 3)
    pairs = np.einsum("la,lwb->wab", values[length - 3 - right], ends[right])
    after_operator = np.einsum("a,db,oabv->odv", values[length - 4], digit, apply)
    # The sign of a right part of two tokens looks like the operator; of size 0 there is no left part, nor a value.
    after_operator[_MINUS] += np.einsum("a,db,oabv->dv", values[length - 5], negative, apply)
    rows = [np.einsum("wab,oabv->wv", pairs, apply), after_operator.reshape(-1, modulus)]
    return np.concatenate(rows) * share


def _operations(modulus: int, num_operators: int) -> np.ndarray:
    """Probability (O, m, m, m) that each operator is drawn, and makes a value of two others."""
    operator, left, right = np.indices((num_operators, modulus, modulus))
    return np.eye(modulus)[_apply(operator, left, right) % modulus] / num_operators


@functools.lru_cache(maxsize=64)
def _bracketed_sizes(length: int, modulus: int, num_operators: int) -> tuple[np.ndarray, np.ndarray]:
    """What is known of expressions of each size up to ``length``.

    Probability (L + 1, m) of the value, and (L + 1, m + 1, m) of it and of the token before the last bracket, which is
    a digit or, as the last row, another bracket; the latter from size 3 on.
    """
    digit = np.eye(modulus) / modulus
    negative = digit[(-np.arange(modulus)) % modulus]
    values, ends = np.zeros((length + 1, modulus)), np.zeros((length + 1, modulus + 1, modulus))
    values[1:_SHORTEST_SUM] = 1 / modulus
    ends[3:_SHORTEST_SUM, :modulus] = digit, negative
    mixed = _operations(modulus, num_operators).sum(axis=0)
    for size in range(_SHORTEST_SUM, length + 1):
        right = np.arange(_BRACKETED, size - 3)
        ends[size, modulus] = np.einsum("la,lb,abv->v", values[size - 3 - right], values[right], mixed)
        # Of size 0 there is no left part, nor a value.
        ends[size, :modulus] = np.einsum("a,db,abv->dv", values[size - 4], digit, mixed)
        ends[size, :modulus] += np.einsum("a,db,abv->dv", values[size - 5], negative, mixed)
        ends[size] /= size - 4
        values[size] = ends[size].sum(axis=0)
    return values, ends


def count_bracketed(length: int, modulus: int, num_operators: int) -> int:
    """Number of distinct expressions with brackets."""
    counts = [0] + [modulus] * 4
    for size in range(_SHORTEST_SUM, length + 1):
        counts.append(num_operators * sum(counts[left] * counts[size - 3 - left] for left in range(1, size - 3)))
    return counts[length]


def list_bracketed(length: int, modulus: int, num_operators: int) -> np.ndarray:
    """All expressions (n, length) with brackets."""
    opening, minus = modulus + num_operators, modulus + _MINUS
    if length < _SHORTEST_SUM:
        before, after = [[], [minus], [opening], [opening, minus]][length - 1], [opening + 1] * (length > 2)
        return np.array([[*before, digit, *after] for digit in range(modulus)])
    rows = []
    for size in range(1, length - 3):
        left = list_bracketed(size, modulus, num_operators)
        right = list_bracketed(length - 3 - size, modulus, num_operators)
        first, second = (side.ravel() for side in np.indices((len(left), len(right))))
        for operator in range(modulus, modulus + num_operators):
            signs = [np.full((len(first), 1), sign) for sign in (opening, operator, opening + 1)]
            rows.append(np.concatenate([signs[0], left[first], signs[1], right[second], signs[2]], axis=1))
    return np.concatenate(rows)
