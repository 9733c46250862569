"""Induction: worked examples, rows read by hand, the law of the trigger's place, long rows."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import induction
from hf_memory.tasks.induction import Induction


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(induction).attempted == 3
    assert doctest.testmod(induction).failed == 0


@pytest.mark.parametrize(
    "knobs",
    [{}, {"num_triggers": 3}, {"answer_length": 3}, {"num_triggers": 4, "answer_length": 2, "loss_region": "all"}],
)
def test_rows_are_read_by_hand(knobs):
    task = Induction(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), 24, 300)
    notes = task.annotate(ids, labels)
    size = task.answer_length
    for row, label, score, distance in zip(
        ids.tolist(), labels.tolist(), notes["score"], notes["distance"], strict=True
    ):
        context, asked, answer = row[:24], row[24], row[25:]
        for trigger in range(task.num_triggers):
            assert context.count(trigger) == 1
            # The answer is whole, free of triggers, and not the last token.
            after = context[context.index(trigger) + 1 :][:size]
            assert len(after) == size and min(after) >= task.num_triggers and context.index(trigger) + size < 23
        place = context.index(asked)
        assert answer == context[place + 1 : place + 1 + size] == label[25:]
        assert np.flatnonzero(score).tolist() == list(range(25, 25 + size))
        assert distance[25] == 24 - place
    assert (labels[:, :25] == -100).all() != (task.loss_region == "all")


def test_the_trigger_stands_anywhere_but_at_the_last_two_places():
    ids, _ = Induction().sample(np.random.default_rng(0), 12, 20_000)
    counts = np.bincount(np.argmax(ids == 0, axis=1), minlength=12)
    assert counts[10:].sum() == 0
    assert ((counts[:10] - 2_000) ** 2 / 2_000).sum() < 27.9  # chi-square, 9 degrees: once in a thousand draws


def test_places_of_several_triggers_are_uniform_among_those_that_leave_room():
    ids, _ = Induction(num_triggers=2, answer_length=1).sample(np.random.default_rng(0), 7, 24_000)
    places = np.stack([np.argmax(ids == trigger, axis=1) for trigger in (0, 1)], axis=1)
    _, counts = np.unique(places, axis=0, return_counts=True)
    # Two triggers with an answer each and one more token at the end: 4 * 3 ordered places.
    assert len(counts) == 12
    assert ((counts - 2_000) ** 2 / 2_000).sum() < 31.3


def test_levels():
    task = Induction()
    assert task.chance_level("recall", 256) == pytest.approx(1 / 15)
    assert task.chance_level("loss", 256) == pytest.approx(math.log(15))
    assert math.isnan(task.replace(loss_region="all").chance_level("loss", 256))
    assert Induction(answer_length=2).chance_level("sequence_accuracy", 64) == pytest.approx(1 / 225)
    # One of two tokens is the answer: the commoner of two is both, or either.
    assert Induction(vocab_size=3).baselines(3)["most_frequent_token"] == pytest.approx(0.75)
    assert task.baselines(1 << 20)["most_frequent_token"] == task.baselines(4096)["most_frequent_token"] < 0.13


def test_rows_of_a_million_tokens_are_drawn_and_solved():
    task = Induction()
    ids, labels = task.sample(np.random.default_rng(0), 1 << 20, 2)
    assert ids.shape == (2, (1 << 20) + 2)
    np.testing.assert_array_equal(task.solve(ids), labels)
    long = Induction.presets["len256_long"].tests.values()
    assert [segments[0].num_examples for segments in long] == [256, 32, 4]


@pytest.mark.parametrize(("knobs", "length"), [({"vocab_size": 4}, 5), ({"vocab_size": 4, "num_triggers": 2}, 6)])
def test_all_rows_of_a_short_length_are_counted(knobs, length):
    task = Induction(**knobs)
    assert len(task.enumerate(length)) == task.num_distinct(length)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"vocab_size": 2}, "vocab_size must be an integer at least 3"),
        ({"num_triggers": 15}, "num_triggers with vocab_size 16 must be an integer between 1 and 14"),
        ({"answer_length": 0}, "answer_length must be an integer at least 1"),
        ({"loss_region": "last"}, "loss_region must be one of 'answers', 'all'"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        Induction(**knobs)
    with pytest.raises(ValueError, match="length with 2 num_triggers must be an integer at least 5"):
        Induction(num_triggers=2).validate_length(4)
