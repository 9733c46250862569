"""Finite groups as multiplication tables, numbered as the published word problems number them.

A name is a product of cyclic (``Z60``), symmetric (``S5``) and alternating (``A5``) groups joined by ``x``, as in
``A4xZ5``. Elements of ``Z<n>`` are the integers; permutations are numbered in the lexicographic order of their one-line
notation, even ones only for ``A<n>``; a direct product is numbered row-major, ``id(A4xZ5) = 5 * id(A4) + id(Z5)``. The
identity is always element 0. Products read ``(p q)(i) = p(q(i))``: the right factor acts first. Numbering and side
are those of the word-problem data of Merrill, Petty and Sabharwal (2024).
"""

import dataclasses
import functools
import itertools
import math
import re

import numpy as np

MAX_ORDER = 2520
"""Largest order of a group: that of A7, whose table takes 25 MB."""


@dataclasses.dataclass(frozen=True)
class Factor:
    """One factor of a direct product: its kind, ``Z``, ``S`` or ``A``, and its degree."""

    kind: str
    degree: int

    @property
    def order(self) -> int:
        """Number of elements, or ``MAX_ORDER + 1`` where the factor is larger than any accepted group."""
        if self.kind == "Z":
            return min(self.degree, MAX_ORDER + 1)
        order = math.factorial(min(self.degree, 8))
        return min(order if self.kind == "S" else max(order // 2, 1), MAX_ORDER + 1)


@functools.cache
def parse_group(name: str) -> tuple[Factor, ...]:
    """Split a group's name into its factors.

    Raises:
        ValueError: Where the name is not a product of ``Z<n>``, ``S<n>``, ``A<n>``, or the order lies outside 2..2520.
    """
    parts = str(name).split("x")
    if not all(re.fullmatch(r"[ZSA][1-9][0-9]{0,5}", part) for part in parts):
        raise ValueError(f"group must be a product of Z<n>, S<n> and A<n> joined by 'x', such as 'A4xZ5', got {name!r}")
    factors = tuple(Factor(part[0], int(part[1:])) for part in parts)
    order = math.prod(factor.order for factor in factors)
    if not 2 <= order <= MAX_ORDER:
        raise ValueError(f"group must have between 2 and {MAX_ORDER} elements, got {name!r}")
    return factors


def group_order(name: str) -> int:
    """Number of elements of a group."""
    return math.prod(factor.order for factor in parse_group(name))


@functools.cache
def permutations(factor: Factor) -> np.ndarray:
    """One-line notation (order, degree) of the elements of a permutation group, in lexicographic order."""
    lines = np.array(list(itertools.permutations(range(factor.degree))), dtype=np.int8)
    if factor.kind == "A":
        inversions = np.zeros(len(lines), dtype=np.int64)
        for first, second in itertools.combinations(range(factor.degree), 2):
            inversions += lines[:, first] > lines[:, second]
        lines = lines[inversions % 2 == 0]
    lines.setflags(write=False)
    return lines


def _factor_table(factor: Factor) -> np.ndarray:
    """Multiplication table (order, order) of one factor."""
    if factor.kind == "Z":
        ids = np.arange(factor.degree, dtype=np.int32)
        return (ids[:, None] + ids) % factor.degree
    lines = permutations(factor)
    # A number in base `degree` per permutation: sorted like the lines, so that its place is the element's id.
    code = np.zeros(len(lines), dtype=np.int32)
    composed = np.zeros((len(lines), len(lines)), dtype=np.int32)
    for column in range(factor.degree):
        code = code * factor.degree + lines[:, column]
        composed = composed * factor.degree + lines[:, lines[:, column]]
    return np.searchsorted(code, composed).astype(np.int32)


@functools.lru_cache(maxsize=16)
def multiplication_table(name: str) -> np.ndarray:
    """Table (order, order) int32 whose entry ``[p, q]`` is the id of the product ``p q``; composed once, read-only."""
    table = np.zeros((1, 1), dtype=np.int32)
    for factor in parse_group(name):
        right = _factor_table(factor)
        table = table[:, None, :, None] * factor.order + right[None, :, None, :]
        table = table.reshape(table.shape[0] * table.shape[1], -1)
    table = np.ascontiguousarray(table, dtype=np.int32)
    table.setflags(write=False)
    return table


def prefix_products(name: str, ids: np.ndarray) -> np.ndarray:
    """All prefix products ``x_1 x_2 ... x_t`` of rows (n, L), computed on the elements themselves, without the table.

    Cyclic parts are sums modulo n; permutations are composed in one-line notation and numbered by their Lehmer code.
    """
    result = np.zeros_like(ids)
    rest = np.asarray(ids)
    scale = 1
    for factor in reversed(parse_group(name)):
        part, rest = rest % factor.order, rest // factor.order
        result = result + scale * _factor_prefix_products(factor, part)
        scale *= factor.order
    return result.astype(ids.dtype)


def _factor_prefix_products(factor: Factor, ids: np.ndarray) -> np.ndarray:
    if factor.kind == "Z":
        return np.cumsum(ids, axis=1, dtype=np.int64) % factor.degree
    steps = permutations(factor)[ids].astype(np.intp)
    for t in range(1, steps.shape[1]):
        steps[:, t] = np.take_along_axis(steps[:, t - 1], steps[:, t], axis=-1)
    rank = np.zeros(ids.shape, dtype=np.int64)
    for column in range(factor.degree):
        smaller = (steps[..., column + 1 :] < steps[..., column, None]).sum(axis=-1)
        rank = rank * (factor.degree - column) + smaller
    # Lexicographic neighbours 2m and 2m + 1 differ by a swap of the last two places: one of each pair is even.
    return rank // 2 if factor.kind == "A" and factor.degree > 1 else rank


@functools.lru_cache(maxsize=16)
def commutator_order(name: str) -> int:
    """Number of elements of the commutator subgroup: 1 for a commutative group, the order for a perfect one."""
    table = multiplication_table(name)
    inverse = np.argmin(table, axis=1)
    members = np.unique(table[table, inverse[table.T]])
    while True:
        grown = np.unique(table[np.ix_(members, members)])
        if len(grown) == len(members):
            return len(members)
        members = grown


def element_names(name: str) -> tuple[str, ...]:
    """A readable name of every element, without spaces: integers, one-line notation, parts joined by ``|``.

    >>> element_names("A4xZ5")[7]
    '0231|2'
    """
    names = []
    for factor in parse_group(name):
        if factor.kind == "Z":
            names.append([str(value) for value in range(factor.degree)])
        else:
            names.append(["".join(map(str, line)) for line in permutations(factor).tolist()])
    return tuple("|".join(parts) for parts in itertools.product(*names))
