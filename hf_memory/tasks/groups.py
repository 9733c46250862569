"""Finite groups as multiplication tables, numbered as the published word problems number them.

A name is a product of cyclic (``Z60``), symmetric (``S5``), alternating (``A5``) and dihedral (``D7``) groups joined by
``x``, as in ``A4xZ5``; any other group of permutations is named by elements that generate it, in cycles of points from
0, as in ``(0 1 2 3 4),(1 2 4 3)``. Elements of ``Z<n>`` are the integers; permutations are numbered in the
lexicographic order of their one-line notation, even ones only for ``A<n>``; ``D<n>`` has the n rotations ``i -> r + i``
of n points first, then the n reflections ``i -> r - i``; a direct product is numbered row-major,
``id(A4xZ5) = 5 * id(A4) + id(Z5)``. The identity is always element 0. Products read ``(p q)(i) = p(q(i))``: the right
factor acts first. Numbering and side are those of the word-problem data of Merrill, Petty and Sabharwal (2024).
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

MAX_ORDER = 5040
"""Largest order of a group: that of S7, whose table takes 102 MB."""

MAX_POINTS = 64
"""Largest number of points of a group that is named by generators."""

_CYCLES = r"(?:\([0-9]{1,2}(?: [0-9]{1,2})*\))+"
_FACTOR = re.compile(rf"[ZSAD][1-9][0-9]{{0,5}}|{_CYCLES}(?:,{_CYCLES})*")


@dataclasses.dataclass(frozen=True)
class Factor:
    """One factor of a direct product: its kind, ``Z``, ``S``, ``A`` or ``D``, and its degree.

    A group of permutations that is given by generators is of kind ``P``, and ``generators`` are their one-line forms.
    """

    kind: str
    degree: int
    generators: tuple[tuple[int, ...], ...] = ()

    @property
    def order(self) -> int:
        """Number of elements, or ``MAX_ORDER + 1`` where the factor is larger than any accepted group."""
        if self.kind in "ZD":
            return min(self.degree * (1 + (self.kind == "D")), MAX_ORDER + 1)
        if self.kind == "P":
            return len(_closure(self.generators))
        order = math.factorial(min(self.degree, 8))
        return min(order if self.kind == "S" else max(order // 2, 1), MAX_ORDER + 1)


@functools.cache
def parse_group(name: str) -> tuple[Factor, ...]:
    """Split a group's name into its factors.

    Raises:
        ValueError: Where the name is not a product of ``Z<n>``, ``S<n>``, ``A<n>``, ``D<n>`` and generators in cycles,
            or the order lies outside 2..5040.
    """
    parts = str(name).split("x")
    if not all(_FACTOR.fullmatch(part) for part in parts):
        raise ValueError(
            "group must be a product of Z<n>, S<n>, A<n>, D<n> and generators in cycles such as '(0 1 2),(0 1)', "
            f"joined by 'x', such as 'A4xZ5', got {name!r}"
        )
    factors = tuple(_factor(part, str(name)) for part in parts)
    order = math.prod(factor.order for factor in factors)
    if not 2 <= order <= MAX_ORDER:
        raise ValueError(f"group must have between 2 and {MAX_ORDER} elements, got {name!r}")
    return factors


def _factor(part: str, name: str) -> Factor:
    if part[0] == "D" and int(part[1:]) < 3:
        raise ValueError(f"group must have dihedral factors D<n> with n of at least 3, got {name!r}")
    if part[0] != "(":
        return Factor(part[0], int(part[1:]))
    cycles = [
        [[int(point) for point in cycle.split()] for cycle in re.findall(r"\(([^)]*)\)", one)]
        for one in part.split(",")
    ]
    degree = 1 + max(point for one in cycles for cycle in one for point in cycle)
    lines = []
    for one in cycles:
        moved = [point for cycle in one for point in cycle]
        if len(set(moved)) < len(moved) or degree > MAX_POINTS:
            raise ValueError(f"group must have disjoint cycles of points from 0 to {MAX_POINTS - 1}, got {name!r}")
        line = list(range(degree))
        for cycle in one:
            for point, image in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                line[point] = image
        lines.append(tuple(line))
    return Factor("P", degree, tuple(lines))


@functools.cache
def _closure(generators: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The elements that permutations generate, in lexicographic order; some of them where there are too many."""
    found = {tuple(range(len(generators[0])))}
    fresh = list(found)
    while fresh and len(found) <= MAX_ORDER:
        made = {tuple(p[i] for i in q) for p in fresh for q in generators}
        fresh = list(made - found)
        found |= made
    return tuple(sorted(found))


def group_order(name: str) -> int:
    """Number of elements of a group."""
    return math.prod(factor.order for factor in parse_group(name))


@functools.cache
def permutations(factor: Factor) -> np.ndarray:
    """One-line notation (order, degree) of the elements of a permutation group, in lexicographic order."""
    members = _closure(factor.generators) if factor.kind == "P" else itertools.permutations(range(factor.degree))
    lines = np.array(list(members), dtype=np.int8)
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
    if factor.kind == "D":
        flipped, turn = np.divmod(np.arange(factor.order, dtype=np.int32), factor.degree)
        turned = (turn[:, None] + np.where(flipped == 1, -1, 1)[:, None] * turn) % factor.degree
        return (turned + factor.degree * (flipped[:, None] ^ flipped)).astype(np.int32)
    return _permutation_table(permutations(factor))


def _permutation_table(lines: np.ndarray) -> np.ndarray:
    """Multiplication table of permutations (order, degree), one row from another: ``(g q) p = g (q p)``."""
    number = {line: place for place, line in enumerate(map(tuple, lines.tolist()))}
    table = np.zeros((len(lines),) * 2, dtype=np.int32)
    table[0] = np.arange(len(lines))
    reached, steps = {0: None}, []
    for generator in range(1, len(lines)):
        if generator in reached:
            continue
        steps.append(np.array([number[line] for line in map(tuple, lines[generator][lines].tolist())], dtype=np.int32))
        queue = list(reached)
        for q in queue:
            for step in steps:
                p = int(step[q])
                if p not in reached:
                    np.take(step, table[q], out=table[p])
                    reached[p] = None
                    queue.append(p)
    return table


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

    Cyclic parts are sums modulo n, dihedral ones a turn and a side; permutations are composed in one-line notation and
    numbered by their Lehmer code, or looked up among the members where not all are.
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
    if factor.kind == "D":
        flips = np.cumsum(ids >= factor.degree, axis=1) % 2
        # A turn counts backwards where an odd number of reflections came before it.
        before = np.concatenate([np.zeros_like(flips[:, :1]), flips[:, :-1]], axis=1)
        turns = np.cumsum(ids % factor.degree * (1 - 2 * before), axis=1) % factor.degree
        return flips * factor.degree + turns
    steps = permutations(factor)[ids].astype(np.intp)
    for t in range(1, steps.shape[1]):
        steps[:, t] = np.take_along_axis(steps[:, t - 1], steps[:, t], axis=-1)
    if factor.kind == "P":
        number = {line: place for place, line in enumerate(_closure(factor.generators))}
        flat = map(tuple, steps.reshape(-1, factor.degree).tolist())
        return np.array([number[line] for line in flat], dtype=np.int64).reshape(ids.shape)
    rank = np.zeros(ids.shape, dtype=np.int64)
    for column in range(factor.degree):
        smaller = (steps[..., column + 1 :] < steps[..., column, None]).sum(axis=-1)
        rank = rank * (factor.degree - column) + smaller
    # Lexicographic neighbours 2m and 2m + 1 differ by a swap of the last two places: one of each pair is even.
    return rank // 2 if factor.kind == "A" and factor.degree > 1 else rank


@functools.lru_cache(maxsize=16)
def commutator_order(name: str) -> int:
    """Number of elements of the commutator subgroup: 1 for a commutative group, the order for a perfect one."""
    return math.prod(_factor_commutator_order(factor) for factor in parse_group(name))


def _factor_commutator_order(factor: Factor) -> int:
    if factor.kind == "D":
        return factor.degree // math.gcd(factor.degree, 2)
    if factor.kind != "P":
        # S<n> has A<n>; A4 has the group of order 4, and beyond it A<n> is perfect.
        largest = factor.order // 2 if factor.kind == "S" else {3: 1, 4: 4}.get(factor.degree, factor.order)
        return 1 if factor.kind == "Z" else max(largest, 1)
    table = _factor_table(factor)
    inverse = np.argmin(table, axis=1)
    members = np.unique(table[table, inverse[table.T]])
    while True:
        grown = np.unique(table[np.ix_(members, members)])
        if len(grown) == len(members):
            return len(members)
        members = grown


def generated_order(name: str, ids: Sequence[int]) -> int:
    """Number of elements that some elements generate."""
    table, found = multiplication_table(name), np.zeros(1, dtype=np.int32)
    while True:
        grown = np.union1d(found, table[found][:, np.array(ids, dtype=np.intp)])
        if len(grown) == len(found):
            return len(found)
        found = grown


def num_moved(name: str) -> np.ndarray:
    """Number of points (order,) that each element of a group of permutations moves.

    Raises:
        ValueError: Where the group is not one group of permutations.
    """
    factors = parse_group(name)
    if len(factors) > 1 or factors[0].kind not in "SAP":
        raise ValueError(f"group must be one group of permutations where generators are named, got {name!r}")
    lines = permutations(factors[0])
    return (lines != np.arange(lines.shape[1])).sum(axis=1)


def element_names(name: str) -> tuple[str, ...]:
    """A readable name of every element, without spaces: integers, one-line notation, parts joined by ``|``.

    Rotations of ``D<n>`` are ``r0``, ``r1`` .., reflections ``s0``, ``s1`` .. .

    >>> element_names("A4xZ5")[7]
    '0231|2'
    """
    names = []
    for factor in parse_group(name):
        if factor.kind == "Z":
            names.append([str(value) for value in range(factor.degree)])
        elif factor.kind == "D":
            names.append([f"{side}{turn}" for side in "rs" for turn in range(factor.degree)])
        else:
            # Beyond ten points digits alone would be ambiguous.
            between = "" if factor.degree <= 10 else "."
            names.append([between.join(map(str, line)) for line in permutations(factor).tolist()])
    return tuple("|".join(parts) for parts in itertools.product(*names))
