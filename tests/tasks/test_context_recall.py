"""Recall in context: rows parsed by hand, marginals and levels of the source, tuples and noise."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import context_recall
from hf_memory.tasks._tuples import Side, first_in_group
from hf_memory.tasks.context_recall import ContextRecall

FUZZY = {"key_length": 3, "value_length": 3}
NOISY = {"vocab_size": 32, "noise_vocab_size": 16, "noise_share": 0.4}


def parse(task, row):
    """Pairs of a row as (key, value, column of the value), in plain Python."""
    pairs, key, value = [], [], []
    for column, token in enumerate([*row, None]):
        is_key = token is not None and token < task.num_keys
        is_value = token is not None and task.num_keys <= token < task.num_keys + task._num_values
        if value and not is_value:
            pairs.append((tuple(key), tuple(value), column - len(value)))
            key, value = [], []
        if is_key:
            key.append(token)
        if is_value:
            value.append(token)
    return pairs


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(context_recall).attempted == 4
    assert doctest.testmod(context_recall).failed == 0


@pytest.mark.parametrize(
    ("knobs", "length"),
    [
        ({}, 40),
        ({"vocab_size": 9, "queries": "single"}, 41),
        (NOISY, 40),
        ({**NOISY, "queries": "single", "vocab_size": 33}, 41),
        (FUZZY, 60),
        ({**FUZZY, "exact_keys": True}, 60),
        ({"key_length": 2}, 20),
        ({"value_length": 2, "vocab_size": 64}, 30),
    ],
)
def test_rows_are_parsed_and_answered_by_hand(knobs, length):
    task = ContextRecall(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), length, 300)
    notes = task.annotate(ids, labels)
    for row, label, distance in zip(ids.tolist(), labels.tolist(), notes["distance"].tolist(), strict=True):
        pairs, values, places = parse(task, row), {}, {}
        expected, away = {}, {}
        for key, value, column in pairs:
            assert 1 <= len(key) == len(set(key)) <= task.key_length
            assert 1 <= len(value) == len(set(value)) <= task.value_length
            assert values.setdefault(key, value) == value
            if key in places:
                expected |= {column + step: token for step, token in enumerate(value)}
                away |= {column + step: column - places[key] for step in range(len(value))}
            places[key] = column
        assert pairs[-1][0] in [key for key, _, _ in pairs[:-1]]
        assert pairs[-1][2] + len(pairs[-1][1]) == length
        if task.queries == "single":
            assert row[-3] == task.vocab_size - 1
            expected = {length - 1: expected[length - 1]}
        assert {column: token for column, token in enumerate(label) if token >= 0} == expected
        assert {column: number for column, number in enumerate(distance) if number >= 0} == {
            c: away[c] for c in expected
        }


@pytest.mark.parametrize(
    ("knobs", "scored", "slack"),
    [
        ({}, 56.0, 0.2),
        ({"vocab_size": 32, "noise_vocab_size": 16, "noise_share": 0.2}, 43.7, 0.3),
        ({"vocab_size": 32, "noise_vocab_size": 16, "noise_share": 0.8}, 7.8, 0.3),
        ({**FUZZY, "exact_keys": True}, 4.3, 0.3),
    ],
)
def test_rows_owe_as_many_answers_as_those_of_the_source(knobs, scored, slack):
    task = ContextRecall(**knobs)
    _, labels = task.sample(np.random.default_rng(0), 128, 4_000)
    assert (labels >= 0).sum() / 4_000 == pytest.approx(scored, abs=slack)


def test_rows_that_ask_for_nothing_but_the_pair_that_is_placed_are_as_many_as_birthdays_say():
    task = ContextRecall(**FUZZY, exact_keys=True)
    ids, labels = task.sample(np.random.default_rng(0), 128, 1_000)
    alone, expected = [], []
    for row, label in zip(ids.tolist(), labels, strict=True):
        pairs = parse(task, row)
        alone.append(sum(label[column] >= 0 for _, _, column in pairs) == 1)
        # All keys but the last are independent and uniform among the ordered triples of seven.
        expected.append(math.prod(1 - i / 210 for i in range(len(pairs) - 1)))
    assert np.mean(alone) == pytest.approx(np.mean(expected), abs=4 * 0.45 / math.sqrt(1_000))


@pytest.mark.parametrize(("vocab_size", "level"), [(16, 0.317), (32, 0.195), (64, 0.121), (128, 0.082)])
def test_the_most_frequent_value_scores_what_was_computed(vocab_size, level):
    task = ContextRecall(vocab_size=vocab_size)
    assert task.baselines(128)["majority_so_far"] == pytest.approx(level, abs=0.01)
    assert task.chance_level("recall", 128) == pytest.approx(2 / vocab_size)


def test_a_window_of_eight_pairs_finds_the_key_in_two_of_three():
    ids, labels = ContextRecall().sample(np.random.default_rng(0), 128, 2_000)
    notes = ContextRecall().annotate(ids, labels)
    late = notes["score"] & (np.arange(128) > 64)
    assert (notes["distance"][late] <= 16).mean() == pytest.approx(1 - (1 - 2 / 16) ** 8, abs=0.01)


def test_noise_takes_its_share_and_leaves_a_pair():
    task = ContextRecall(vocab_size=32, noise_vocab_size=16, noise_share=0.9)
    ids, labels = task.sample(np.random.default_rng(0), 12, 5_000)
    noise = ids >= 16
    assert (noise[:, 0::2] == noise[:, 1::2]).all() and not noise[:, -2:].any()
    assert (~noise[:, :-2:2]).any(axis=1).all()
    # Five pairs, one of which is spared.
    assert noise[:, :-2:2].mean() == pytest.approx(0.9 * 4 / 5, abs=0.01)
    assert (labels[:, -1] >= 0).all()


def test_keys_and_their_sizes_are_uniform():
    ids, _ = ContextRecall(**FUZZY).sample(np.random.default_rng(0), 60, 3_000)
    task = ContextRecall(**FUZZY)
    keys = [parse(task, row)[3][0] for row in ids.tolist()]
    counts = np.bincount([len(key) for key in keys], minlength=4)[1:]
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 13.8  # chi-square, 2 degrees: once in a thousand draws
    firsts = np.bincount([key[0] for key in keys], minlength=7)
    assert ((firsts - 3_000 / 7) ** 2 / (3_000 / 7)).sum() < 22.5


def test_the_last_key_is_any_of_those_that_were_seen():
    ids, _ = ContextRecall(vocab_size=4).sample(np.random.default_rng(0), 12, 20_000)
    both = ids[(ids[:, :-2:2].min(axis=1) == 0) & (ids[:, :-2:2].max(axis=1) == 1)]
    assert both[:, -2].mean() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(len(both)))


def test_all_tokens_may_be_supervised_and_the_answers_alone_are_scored():
    for knobs in ({}, FUZZY):
        task, whole = ContextRecall(**knobs), ContextRecall(**knobs, loss_region="all")
        ids, labels = task.sample(np.random.default_rng(5), 60, 40)
        again, everything = whole.sample(np.random.default_rng(5), 60, 40)
        np.testing.assert_array_equal(ids, again)
        np.testing.assert_array_equal(everything, ids)
        np.testing.assert_array_equal(whole.solve(ids), ids)
        np.testing.assert_array_equal(whole.annotate(ids, ids)["score"], labels >= 0)
        assert math.isnan(whole.chance_level("loss", 60))
    assert ContextRecall().chance_level("loss", 60) == pytest.approx(math.log(8))


def test_chance_of_tuples_knows_that_a_token_does_not_come_twice():
    task = ContextRecall(**FUZZY)
    assert task.chance_level("recall", 128) == pytest.approx(0.5 / 8 + 0.5 / 7)
    _, labels = task.sample(np.random.default_rng(0), 128, 3_000)
    scored = labels >= 0
    later = scored[:, 1:] & scored[:, :-1]
    assert later.sum() / scored.sum() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("knobs", "length"),
    [
        ({"vocab_size": 6}, 6),
        ({"vocab_size": 8, "noise_vocab_size": 2, "noise_share": 0.5}, 6),
        ({"vocab_size": 7, "queries": "single"}, 7),
    ],
)
def test_all_rows_of_a_short_length_are_counted(knobs, length):
    task = ContextRecall(**knobs)
    assert len(task.enumerate(length)) == task.num_distinct(length)


def test_first_places_of_groups_and_listed_tuples():
    group = np.array([[5, 3, 5, 5, 3, 0]])
    for scale in (1, 10_000, 1 << 40):
        assert first_in_group(group * scale).tolist() == [[0, 1, 0, 0, 1, 5]]
    tokens, sizes = Side(4, 200, 3).draw(np.random.default_rng(0), (50, 40))
    assert tokens.min() >= 4 and tokens.max() < 204 and set(sizes.ravel()) == {1, 2, 3}
    assert (np.diff(np.sort(tokens, axis=2), axis=2) > 0).all()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"vocab_size": 3}, "vocab_size must be an integer at least 4"),
        ({"noise_share": 0.2}, "noise_vocab_size must be an integer between 1 and 14, got 0"),
        ({"noise_share": 1.0, "noise_vocab_size": 2}, "noise_share must be a finite number"),
        ({"key_length": 5}, "key_length with 7 keys must be an integer between 1 and 4"),
        ({**FUZZY, "queries": "single"}, "queries must be one of 'multi', got 'single'"),
        ({**FUZZY, "noise_share": 0.2, "noise_vocab_size": 2}, "noise_share must be 0 where keys or values are tuples"),
        ({"loss_region": "some"}, "loss_region must be one of 'answers', 'all'"),
        ({"exact_keys": 1}, "exact_keys must be one of False, True"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        ContextRecall(**knobs)
    with pytest.raises(ValueError, match="length must be even with pairs of two tokens, got 9"):
        ContextRecall().validate_length(9)
    with pytest.raises(ValueError, match="length must be odd with pairs of two tokens, got 10"):
        ContextRecall(queries="single").validate_length(10)
