"""The flip-flop language: worked examples, a reading of rows by hand, published levels of heuristics."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import flip_flop
from hf_memory.tasks.flip_flop import FlipFlop


def read_row(task, row):
    """Answers by position, instructions since the write and since the bit last stood in the row, in plain Python."""
    held, written, shown, found = {}, {}, {}, {}
    for place in range(0, len(row), 2):
        sign, bit = task.symbols[row[place]], int(row[place + 1])
        register = sign[1:]
        if sign[0] == "w":
            held[register], written[register], shown[register] = bit, place // 2, place // 2
        elif sign[0] == "r":
            found[place + 1] = held[register], place // 2 - written[register], place // 2 - shown[register]
            shown[register] = place // 2
    return found


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(flip_flop).attempted == 3
    assert doctest.testmod(flip_flop).failed == 0


@pytest.mark.parametrize("knobs", [{}, {"num_registers": 3, "p_ignore": 0.3}, {"min_writes": 6}, {"p_write": 0.0}])
def test_rows_are_read_by_hand(knobs):
    task = FlipFlop(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), 40, 200)
    notes = task.annotate(ids, labels)
    for row in range(len(ids)):
        found = read_row(task, ids[row].tolist())
        assert np.flatnonzero(labels[row] >= 0).tolist() == sorted(found)
        for column, (bit, distance, refreshed) in found.items():
            assert (labels[row, column], ids[row, column]) == (bit, bit)
            assert notes["distance"][row, column] == distance
            assert notes["refreshed"][row, column] == refreshed
    assert (notes["distance"][~notes["score"]] == -1).all()


def test_instructions_have_their_probabilities_and_rows_their_ends():
    ids, _ = FlipFlop(p_ignore=0.5, p_write=0.3).sample(np.random.default_rng(0), 40, 20_000)
    assert (ids[:, 0] == 3).all() and (ids[:, -2] == 4).all()
    counts = np.bincount(ids[:, 2:-2:2].ravel(), minlength=5)[2:]
    expected = np.array([0.5, 0.3, 0.2]) * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees: once in a thousand draws
    free = ids[:, 3:-1:2][ids[:, 2:-2:2] != 4]
    assert free.mean() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(free.size))


def test_rows_have_the_writes_that_are_asked_for():
    task = FlipFlop(p_ignore=0.98, min_writes=8)
    ids, labels = task.sample(np.random.default_rng(0), 128, 2_000)
    writes = (ids == 3).sum(axis=1)
    assert writes.min() == 8 and writes.mean() == pytest.approx(8 + 55 * 0.01, abs=0.1)
    assert (task.annotate(ids, labels)["writes"][:, -1] == writes).all()


@pytest.mark.parametrize(
    ("p_ignore", "previous", "window_16", "window_64", "majority", "first"),
    [(0.1, 0.95, 1.0, 1.0, 0.57, 0.50), (0.8, 0.60, 0.99, 1.0, 0.64, 0.52), (0.98, 0.51, 0.65, 0.88, 0.81, 0.64)],
)
def test_heuristics_reach_what_was_computed_for_the_published_tests(
    p_ignore, previous, window_16, window_64, majority, first
):
    values = FlipFlop(p_ignore=p_ignore).baselines(512)
    found = [values[name] for name in ("window_1", "window_16", "window_64", "majority_of_writes", "first_write")]
    assert found == pytest.approx([previous, window_16, window_64, majority, first], abs=0.015)


def test_more_writes_leave_less_to_a_counter_of_writes():
    sparse, repaired = (FlipFlop(p_ignore=0.98, min_writes=least).baselines(512) for least in (None, 8))
    assert repaired["majority_of_writes"] < 0.72 < sparse["majority_of_writes"]


def test_levels_and_loss_regions():
    task, whole = FlipFlop(), FlipFlop(loss_region="all")
    assert task.chance_level("token_accuracy", 64) == whole.chance_level("token_accuracy", 64) == 0.5
    assert task.chance_level("loss", 64) == pytest.approx(math.log(2))
    assert math.isnan(whole.chance_level("loss", 64))
    ids, labels = task.sample(np.random.default_rng(3), 32, 50)
    again, all_labels = whole.sample(np.random.default_rng(3), 32, 50)
    np.testing.assert_array_equal(ids, again)
    np.testing.assert_array_equal(all_labels, ids)
    scores = [law.annotate(ids, column)["score"] for law, column in ((task, labels), (whole, all_labels))]
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize(
    ("knobs", "length", "count"),
    [
        ({}, 6, 10),
        ({}, 12, 1_250),
        ({"num_registers": 2}, 8, 64),
        ({"min_writes": 2}, 8, 2 * (2 * 2 * 3 + 2 * 2)),
        ({"p_write": 0.0}, 6, 2 * 3),
        ({"p_ignore": 0.0, "p_write": 1.0, "loss_region": "all"}, 8, 8),
    ],
)
def test_all_rows_of_a_short_length_are_counted(knobs, length, count):
    task = FlipFlop(**knobs)
    rows = task.enumerate(length)
    assert len(np.unique(rows, axis=0)) == len(rows) == task.num_distinct(length) == count
    drawn, _ = task.sample(np.random.default_rng(0), length, 2_000)
    assert set(map(bytes, drawn)) <= set(map(bytes, rows))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"p_ignore": 1.5}, r"p_ignore must be a finite number in \[0, 1\]"),
        ({"p_ignore": 0.8, "p_write": 0.5}, "p_write with p_ignore 0.8"),
        ({"num_registers": 0}, "num_registers must be an integer between 1"),
        ({"num_registers": 3, "min_writes": 2}, "min_writes must be None or an integer at least 3"),
        ({"loss_region": "writes"}, "loss_region must be one of 'reads', 'all'"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        FlipFlop(**knobs)
    with pytest.raises(ValueError, match="length must be even and at least 4, got 7"):
        FlipFlop().validate_length(7)
    with pytest.raises(ValueError, match="min_writes 8 must be an integer at least 18"):
        FlipFlop(min_writes=8).validate_length(16)
