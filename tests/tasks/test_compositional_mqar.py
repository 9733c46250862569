"""Compositional recall: worked example, rows read by hand, the grid, levels."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import compositional_mqar
from hf_memory.tasks.compositional_mqar import CompositionalMQAR


def test_worked_example_of_the_docstring_holds():
    assert doctest.testmod(compositional_mqar).attempted == 2
    assert doctest.testmod(compositional_mqar).failed == 0


@pytest.mark.parametrize(
    ("knobs", "length"), [({}, 40), ({"num_kv_pairs": 9, "vocab_size": 40}, 61), ({"slot_assignment": "shuffled"}, 30)]
)
def test_rows_hold_a_grid_and_ask_for_each_pair_once(knobs, length):
    task = CompositionalMQAR(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), length, 300)
    np.testing.assert_array_equal(task.solve(ids), labels)
    notes, third, end = task.annotate(ids, labels), (task.vocab_size - 1) // 3, task.context_length
    for row, label, distance in zip(ids.tolist(), labels.tolist(), notes["distance"], strict=True):
        triples = [tuple(row[at : at + 3]) for at in range(0, end, 3)]
        first, second, values = map(set, zip(*triples, strict=True))
        assert {(a, b) for a, b, _ in triples} == {(a, b) for a in first for b in second}
        assert len(first) == len(second) == task.grid and len(values) == task.num_kv_pairs
        assert max(first) <= third < min(second) and max(second) <= 2 * third < min(values)
        asked = {}
        for at in range(end, length - 2, 3):
            if label[at + 2] >= 0:
                asked[row[at], row[at + 1]] = label[at + 2]
                place = next(i for i, triple in enumerate(triples) if triple[:2] == (row[at], row[at + 1]))
                assert distance[at + 2] == at - 3 * place
            else:
                assert row[at : at + 3] == [0, 0, 0]
        assert asked == {(a, b): value for a, b, value in triples}


def test_either_key_alone_is_right_for_one_value_of_a_row_of_the_grid():
    task = CompositionalMQAR(num_kv_pairs=9)
    ids, labels = task.sample(np.random.default_rng(0), 64, 3_000)
    row, column = np.nonzero(labels >= 0)
    context = ids[:, :27].reshape(-1, 9, 3)
    for side in (0, 1):
        same = context[row, :, side] == ids[row, column - 2 + side][:, None]
        assert (same.sum(axis=1) == 3).all()
        answer = context[row, np.argmax(same, axis=1), 2]
        assert (answer == labels[row, column]).mean() == pytest.approx(1 / 3, abs=0.02)
    assert task.baselines(64)["one_key"] == pytest.approx(1 / 3)


def test_levels_and_presets():
    task = CompositionalMQAR(slot_assignment="shuffled")
    assert task.chance_level("recall", 64) == 0.25
    assert task.chance_level("loss", 64) == pytest.approx(math.log(4))
    assert CompositionalMQAR().chance_level("recall", 64) > 0.28
    assert math.isnan(task.replace(loss_region="all").chance_level("loss", 64))
    for name, preset in CompositionalMQAR.presets.items():
        if preset.train:
            assert [segment.num_examples for segment in preset.train] == [100_000, *[20_000] * 4]
            assert len(preset.tests) == 7, name


def test_all_tokens_may_be_supervised_and_filler_may_be_random():
    task, whole = CompositionalMQAR(filler="random"), CompositionalMQAR(filler="random", loss_region="all")
    ids, labels = task.sample(np.random.default_rng(1), 50, 100)
    again, everything = whole.sample(np.random.default_rng(1), 50, 100)
    np.testing.assert_array_equal(ids, again)
    np.testing.assert_array_equal(everything, np.where(labels >= 0, labels, ids))
    assert (ids[:, task.context_length :] > 0).mean() > 0.99
    crowded = CompositionalMQAR(vocab_size=13, filler="random")
    ids, labels = crowded.sample(np.random.default_rng(0), 120, 200)
    undecided = crowded.annotate(ids, crowded.solve(ids))["undecided"]
    np.testing.assert_array_equal(np.where(undecided, -100, crowded.solve(ids)), np.where(undecided, -100, labels))
    assert undecided.any()


def test_all_rows_of_one_pair_are_counted():
    task = CompositionalMQAR(vocab_size=10, num_kv_pairs=1)
    assert task.num_distinct(9) == 3 * 3 * 3 * 2 == len(task.enumerate(9))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_kv_pairs": 5}, "num_kv_pairs must be a square of at most 2730, got 5"),
        ({"vocab_size": 10, "num_kv_pairs": 4}, "num_kv_pairs must be a square of at most 3, got 4"),
        ({"vocab_size": 6}, "vocab_size must be an integer at least 7"),
        ({"power_a": 0.0}, "power_a must be a finite number"),
        ({"filler": "published"}, "filler must be one of 'zero', 'random'"),
        ({"slot_assignment": "none"}, "slot_assignment must be one of"),
        ({"loss_region": "slots"}, "loss_region must be one of 'answers', 'all'"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        CompositionalMQAR(**knobs)
    with pytest.raises(ValueError, match="length with 4 num_kv_pairs must be an integer at least 24"):
        CompositionalMQAR().validate_length(23)
