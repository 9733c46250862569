"""Cycle navigation: worked examples, levels over all rows, the chance that was published."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import cycle_navigation
from hf_memory.tasks.cycle_navigation import CycleNavigation


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(cycle_navigation).attempted == 1
    assert doctest.testmod(cycle_navigation).failed == 0


@pytest.mark.parametrize(
    ("steps", "modulus", "place"),
    [([1, 1, 1, 1, 1], 5, 0), ([2], 5, 4), ([2, 2, 0, 2], 5, 2), ([1, 2, 1, 2], 3, 0), ([1, 1, 1], 2, 1), ([0], 7, 0)],
)
def test_walks_by_hand(steps, modulus, place):
    assert CycleNavigation(modulus=modulus).solve(np.array([steps]))[0, -1] == place
    assert sum({0: 0, 1: 1, 2: -1}[step] for step in steps) % modulus == place


@pytest.mark.parametrize(("modulus", "separator"), [(5, False), (5, True), (2, False), (6, True)])
@pytest.mark.parametrize("length", [1, 3, 6])
def test_levels_are_those_of_the_best_tables_over_all_rows(modulus, separator, length):
    task = CycleNavigation(modulus=modulus, separator=separator)
    ids = task.enumerate(length)
    answers = task.solve(ids)[:, -1]
    values = task.baselines(length)
    counts = np.stack([(ids == step).sum(axis=1) for step in range(3)], axis=1)
    codes = {"constant": [0] * len(ids), "majority_so_far": counts.argmax(axis=1).tolist()}
    for name, width in {"last_token": 1, "last_3_tokens": 3}.items():
        codes[name] = [tuple(row[max(ids.shape[1] - width, 0) :]) for row in ids.tolist()]
    for name, seen in codes.items():
        right = sum(
            np.bincount([a for s, a in zip(seen, answers, strict=True) if s == code]).max() for code in set(seen)
        )
        assert values[name] == pytest.approx(right / len(ids)), name


def test_chance_of_a_long_walk_is_one_in_m_and_of_whole_turns_nothing_is_left():
    assert CycleNavigation().chance_level("token_accuracy", 40) == pytest.approx(0.2, abs=1e-9)
    assert CycleNavigation().chance_level("loss", 40) == pytest.approx(math.log(5), abs=1e-9)
    assert CycleNavigation(modulus=6).chance_level("sequence_accuracy", 40) == pytest.approx(1 / 6, abs=1e-4)
    # Two steps are 0 in three of nine ways; the last of them says which half of the rest is left.
    assert CycleNavigation().chance_level("token_accuracy", 2) == pytest.approx(1 / 3)


def test_the_separator_and_the_displacement():
    task = CycleNavigation(separator=True)
    row = np.array([[1, 2, 2, 2, 3]])
    labels = task.solve(row)
    assert labels.tolist() == [[-100] * 4 + [3]]
    assert task.annotate(row, labels)["displacement"].tolist() == [[1, 0, -1, -2, -2]]
    assert task.symbols == ("0", "+1", "-1", "=")
    with pytest.raises(ValueError, match="modulus must be an integer at least 2"):
        CycleNavigation(modulus=1)
    with pytest.raises(ValueError, match="length must be at most 14"):
        task.enumerate(15)
