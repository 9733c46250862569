"""Tasks of recall as rows of words: pairs, and a query that ends the row.

Each law follows the one of its name in :mod:`hf_memory.tasks`, with one query at the end of a row instead of many
within it: filler behind a queried key, and answers written into the text, would leak into later queries. Several keys
of a row are asked for by going on from its context several times.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hf_memory.experiments.probing.formats import Unit
from hf_memory.experiments.probing.words import Vocabulary

MOST_QUERIES = 8
"""Keys of a row that are asked for."""


@dataclasses.dataclass(frozen=True)
class Query:
    """A query with its answer.

    Attributes:
        unit: Given words and the right answer.
        place: Number of the unit of the context in which the answer stands; -1 where it stands in none.
        candidates: Words among which the answer is.
        credits: Share of such queries that rules without memory get right, by name, for this very query.
    """

    unit: Unit
    place: int
    candidates: tuple[int, ...]
    credits: dict[str, float]


@dataclasses.dataclass(frozen=True)
class ProbeRow:
    """A row: its context and queries, and the same with the values of two keys exchanged where the law has keys.

    Attributes:
        context: Units before the queries.
        queries: Queries, each of which goes on from the context.
        changed: The context with two values exchanged; empty where the law has none.
        changed_queries: What the first of the queries must then be answered with.
    """

    context: tuple[Unit, ...]
    queries: tuple[Query, ...]
    changed: tuple[Unit, ...] = ()
    changed_queries: tuple[Query, ...] = ()


Draw = Callable[[np.random.Generator, Vocabulary, int, bool], ProbeRow]
"""Draws a row from a generator, a vocabulary, the size of the context, and whether keys and values are exchanged."""


@dataclasses.dataclass(frozen=True)
class Law:
    """A task as it is probed.

    Attributes:
        key: Key of the task.
        draw: Draws a row.
        suite: ``"recall"`` or ``"tracking"``.
        size: What the size of a context counts.
        sizes: Sizes that are measured unless others are asked for; the first is the one of the curves over length.
        role_size: Keys and values that a vocabulary needs for a size.
        headline: Metric by which the task is judged.
        in_context: Whether the rule is to be inferred from examples, so that a failure says nothing about what
            training could reach.
        bindings: What a context of a size binds, where the bits of its bindings can be counted.
    """

    key: str
    draw: Draw
    suite: str
    size: str
    sizes: tuple[int, ...]
    role_size: Callable[[int], int]
    headline: str
    in_context: bool = False
    bindings: Callable[[int], int] | None = None


def draw_mqar(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Distinct keys with distinct values; each of the keys, or some of them, are asked for."""
    keys, values = _roles(vocabulary, rotated)
    asked = [int(n) for n in rng.permutation(size)[: max(2, MOST_QUERIES)]]
    return _recall_row(rng.permutation(keys[:size]), rng.permutation(values[:size]), asked)


def draw_associative_recall(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Distinct keys whose values may come again; one of them is asked for.

    The exchange needs a key of another value.
    """
    keys, values = _roles(vocabulary, rotated)
    bound = rng.choice(values[:size], size=size)
    asked = int(rng.integers(size))
    others = [place for place in range(size) if bound[place] != bound[asked]]
    if not others:
        other = int((asked + 1) % size)
        bound[other] = rng.choice([value for value in values[:size] if value != bound[asked]])
        others = [other]
    return _recall_row(rng.permutation(keys[:size]), bound, [asked, int(rng.choice(others))], count=1)


def draw_updating_mqar(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """As ``mqar``, and half of the keys are then bound again, to new values: the latest counts."""
    keys, values = _roles(vocabulary, rotated)
    renewed = rng.permutation(size)[: updates_of(size)]
    keys, values = rng.permutation(keys[:size]), rng.permutation(values[: size + len(renewed)])
    all_keys = np.concatenate([keys, keys[renewed]])
    latest = np.arange(size)
    latest[renewed] = size + np.arange(len(renewed))
    asked = [int(latest[n]) for n in rng.permutation(size)[: max(2, MOST_QUERIES)]]
    return _recall_row(all_keys, values, asked)


def updates_of(size: int) -> int:
    """Keys of ``updating_mqar`` that are bound again."""
    return max(1, size // 2)


def _roles(vocabulary: Vocabulary, rotated: bool) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of keys and values, exchanged where ``rotated``."""
    return vocabulary.role(int(rotated)), vocabulary.role(1 - int(rotated))


def _recall_row(keys: np.ndarray, values: np.ndarray, asked: Sequence[int], count: int | None = None) -> ProbeRow:
    """A row of bindings.

    Args:
        keys: Key of each unit.
        values: Value of each unit.
        asked: Units whose keys are asked for, the last ones of their keys; the values of the first two are exchanged.
        count: How many of these are asked for; by default all.
    """
    context = _bind(keys, values)
    one, other = asked[:2] if len(asked) > 1 else (asked[0], asked[0])
    exchanged = values.copy()
    exchanged[[one, other]] = values[[other, one]]
    queries = tuple(_query(keys, values, place) for place in asked[:count])
    changed = tuple(_query(keys, exchanged, place) for place in asked[:count][:2])
    is_changed = values[one] != values[other]
    return ProbeRow(
        context,
        queries,
        _bind(keys, exchanged) if is_changed else (),
        changed if is_changed else (),
    )


def _bind(keys: np.ndarray, values: np.ndarray) -> tuple[Unit, ...]:
    return tuple(Unit((int(key),), (int(value),)) for key, value in zip(keys, values, strict=True))


def _query(keys: np.ndarray, values: np.ndarray, place: int) -> Query:
    """The query for the key of a unit, with what simple rules make of it."""
    held, right = [int(value) for value in values], int(values[place])
    first = held[[int(key) for key in keys].index(int(keys[place]))]
    counts = {value: held.count(value) for value in held}
    most = [value for value, count in counts.items() if count == max(counts.values())]
    rules = {
        "first_pair": float(held[0] == right),
        "last_pair": float(held[-1] == right),
        "most_frequent_value": (right in most) / len(most),
        "one_over_k": 1.0 / len(counts),
    }
    if len(set(keys.tolist())) < len(keys):
        rules["first_value_of_key"] = float(first == right)
    return Query(Unit((int(keys[place]),), (right,)), place, tuple(sorted(counts)), rules)
