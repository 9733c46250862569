"""State-based recall: worked examples, rows followed by hand, levels over all rows."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import state_recall
from hf_memory.tasks.state_recall import StateRecall


def follow(task, words):
    """The answer of a row of words, in plain Python."""
    if task.query == "address":
        cells = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
        return int(cells[words[-1]])
    swaps = [tuple(map(int, word.split("~"))) for word in words if "~" in word]
    before = len(words) - 1 - len(swaps)
    pointers = list(range(task.num_pointers)) if task.query == "place" else words[before - task.num_pointers : before]
    for first, second in swaps:
        pointers[first], pointers[second] = pointers[second], pointers[first]
    if task.query == "place":
        return pointers[0]
    cells = words[: before - task.num_pointers]
    return int(dict(zip(cells[::2], cells[1::2], strict=True))[pointers[0]])


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(state_recall).attempted == 5
    assert doctest.testmod(state_recall).failed == 0


@pytest.mark.parametrize(
    ("knobs", "length"),
    [
        ({"num_cells": 12}, 9),
        ({"query": "place"}, 7),
        ({"query": "place", "num_pointers": 2}, 4),
        ({"query": "address", "axis": "cells"}, 10),
        ({"axis": "cells", "num_swaps": 3, "num_pointers": 3, "alphabet_size": 5}, 6),
        ({"axis": "cells", "num_swaps": 0}, 20),
    ],
)
def test_rows_are_followed_by_hand(knobs, length):
    task = StateRecall(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), length, 300)
    np.testing.assert_array_equal(task.solve(ids), labels)
    for row, answer in zip(ids.tolist(), labels[:, -1].tolist(), strict=True):
        assert follow(task, [task.symbols[token] for token in row]) == answer
    assert (labels[:, :-1] == -100).all()


def test_pointers_point_to_distinct_cells_and_swaps_are_uniform():
    task = StateRecall(num_cells=8, num_pointers=3)
    ids, _ = task.sample(np.random.default_rng(0), 5, 9_000)
    pointers = ids[:, 16:19]
    assert (np.diff(np.sort(pointers, axis=1), axis=1) > 0).all()
    assert (np.sort(ids[:, 0:16:2], axis=1) == 2 + np.arange(8)).all()
    counts = np.bincount(ids[:, 21] - 10, minlength=3)
    assert ((counts - 3_000) ** 2 / 3_000).sum() < 13.8  # chi-square, 2 degrees: once in a thousand draws


@pytest.mark.parametrize("pointers", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_levels_of_places_are_those_of_the_best_tables_over_all_rows(pointers, length):
    task = StateRecall(query="place", num_pointers=pointers)
    ids = task.enumerate(length)
    answers, values = task.solve(ids)[:, -1], task.baselines(length)
    for name, known in (("first_place", 0), ("last_swap", 1), ("last_2_swaps", 2)):
        right = 0
        seen = [tuple(row[max(len(row) - 1 - known, 0) :]) for row in ids.tolist()]
        for code in set(seen):
            right += np.bincount([a for s, a in zip(seen, answers, strict=True) if s == code]).max()
        assert values[name] == pytest.approx(right / len(ids)), name
    shares = np.bincount(answers, minlength=pointers) / len(ids)
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    assert task.chance_level("loss", length) == pytest.approx(entropy)


def test_levels_of_symbols():
    task = StateRecall()
    assert task.chance_level("token_accuracy", 64) == 0.5
    assert task.chance_level("loss", 64) == pytest.approx(math.log(2))
    values = task.baselines(64)
    assert values["most_frequent_pointed"] == pytest.approx(0.6875)
    assert values["first_pointer"] == pytest.approx(0.6)
    assert values["most_frequent_symbol"] == pytest.approx(0.55, abs=1e-3)
    # The published share of a guess after many swaps.
    assert StateRecall(query="place").chance_level("token_accuracy", 64) == pytest.approx(0.2)
    assert max(StateRecall(alphabet_size=16).baselines(64).values()) < 0.45


@pytest.mark.parametrize(
    ("knobs", "length", "count"),
    [
        ({"num_cells": 3, "num_pointers": 2}, 1, 6 * 8 * 6),
        ({"num_pointers": 3, "query": "place"}, 4, 81),
        ({"query": "address", "axis": "cells", "num_cells": 3}, 3, 6 * 8 * 3),
    ],
)
def test_all_rows_of_a_short_length_are_counted(knobs, length, count):
    task = StateRecall(**knobs)
    assert task.num_distinct(length) == count == len(task.enumerate(length))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"axis": "bits"}, "axis of query 'pointer' must be one of 'swaps', 'cells'"),
        ({"query": "place", "axis": "cells"}, "axis of query 'place' must be one of 'swaps'"),
        ({"query": "address"}, "axis of query 'address' must be one of 'cells'"),
        ({"query": "bit"}, "query must be one of"),
        ({"num_pointers": 1}, "num_pointers must be an integer between 2"),
        ({"alphabet_size": 1}, "alphabet_size must be an integer between 2"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        StateRecall(**knobs)
    with pytest.raises(ValueError, match="num_cells with 5 num_pointers must be an integer at least 5, got 4"):
        StateRecall(num_cells=4).validate_length(3)
    with pytest.raises(ValueError, match="length with 64 num_cells must be an integer between 5 and 64"):
        StateRecall(axis="cells").validate_length(65)
