"""Associative recall: roles, the query's law, exact chance, an independent solver."""

import numpy as np
import pytest

from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.tasks.associative_recall import AssociativeRecall
from hf_memory.tasks.base import IGNORE_INDEX


def draw(task, length, num_examples=2_000, seed=0):
    return task.sample(np.random.default_rng(seed), length, num_examples)


@pytest.mark.parametrize("roles", ["shared", "disjoint_in_row"])
@pytest.mark.parametrize(("length", "pairs"), [(32, 15), (32, 4), (33, None), (16, None)])
def test_rows_are_solved_by_a_dictionary(length, pairs, roles):
    task = AssociativeRecall(num_kv_pairs=pairs, roles=roles)
    k = task.pairs_at(length)
    ids, labels = draw(task, length, 300)
    assert k == (pairs or (length - 2) // 2)
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        bindings = dict(zip(row[0 : 2 * k : 2], row[1 : 2 * k : 2], strict=True))
        assert len(bindings) == k and min(bindings) > 0 and min(bindings.values()) > 0
        assert label[-1] == bindings[row[-2]]
        assert label[:-1] == [IGNORE_INDEX] * (length - 1)
        assert row[2 * k : -2] == [0] * (length - 2 - 2 * k) and row[-1] == 0
        if roles == "disjoint_in_row":
            assert not set(bindings) & set(bindings.values())
    np.testing.assert_array_equal(task.solve(ids), labels)


def test_values_are_uniform_over_the_ids_that_their_roles_allow():
    ids, _ = draw(AssociativeRecall(vocab_size=7, num_kv_pairs=2), 6, 12_000)
    counts = np.bincount(ids[:, 1], minlength=7)[1:]
    # Chi-square with 5 degrees of freedom: 20.5 is exceeded once in a thousand draws.
    assert ((counts - 2_000) ** 2 / 2_000).sum() < 20.5
    ids, _ = draw(AssociativeRecall(vocab_size=7, num_kv_pairs=2, roles="disjoint_in_row"), 6, 12_000)
    given = ids[(np.sort(ids[:, [0, 2]], axis=1) == [2, 5]).all(axis=1)]
    counts = np.bincount(given[:, [1, 3]].ravel(), minlength=7)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    expected = counts.sum() / 4
    # Three degrees of freedom: 16.3.
    assert ((counts[[1, 3, 4, 6]] - expected) ** 2 / expected).sum() < 16.3


def test_every_pair_is_queried_equally_often():
    task = AssociativeRecall(num_kv_pairs=5)
    ids, labels = draw(task, 20, 10_000)
    distance = task.annotate(ids, labels)["distance"][:, -1]
    counts = np.unique(distance, return_counts=True)
    assert counts[0].tolist() == [10, 12, 14, 16, 18]
    # Four degrees of freedom: 18.5.
    assert ((counts[1] - 2_000) ** 2 / 2_000).sum() < 18.5


def test_a_key_that_is_a_value_too_is_annotated_as_ambiguous():
    task = AssociativeRecall(num_kv_pairs=3)
    ids = np.array([[4, 7, 7, 9, 5, 6, 7, 0], [4, 7, 7, 9, 5, 6, 5, 0]])
    labels = task.solve(ids)
    assert labels[:, -1].tolist() == [9, 6]
    notes = task.annotate(ids, labels)
    assert notes["ambiguous"][:, -1].tolist() == [True, False]
    assert notes["distance"][:, -1].tolist() == [4, 2]
    assert not notes["ambiguous"][:, :-1].any()
    ids, labels = draw(AssociativeRecall(roles="disjoint_in_row"), 32)
    assert not AssociativeRecall(roles="disjoint_in_row").annotate(ids, labels)["ambiguous"].any()


@pytest.mark.parametrize("roles", ["shared", "disjoint_in_row"])
@pytest.mark.parametrize("pairs", [4, 15])
def test_chance_is_what_the_most_frequent_value_scores(pairs, roles):
    task = AssociativeRecall(num_kv_pairs=pairs, roles=roles)
    ids, labels = draw(task, 32, 20_000)
    values = ids[:, 1 : 2 * pairs : 2]
    counts = (values[:, :, None] == values[:, None, :]).sum(axis=2)
    outputs = np.zeros_like(labels)
    outputs[:, -2] = values[np.arange(len(values)), counts.argmax(axis=1)]
    recall = evaluate_predictions(task, 32, ids, labels, outputs)["recall"]
    assert recall.value == pytest.approx(recall.chance, abs=0.008)
    outputs[:, -2] = values[:, 0]
    guess = evaluate_predictions(task, 32, ids, labels, outputs)["recall"]
    assert guess.value == pytest.approx(guess.baselines["value_in_context"], abs=0.008)
    assert guess.baselines["one_over_k"] == 1 / pairs
    assert task.chance_level("recall", 32) == pytest.approx(counts.max(axis=1).mean() / pairs, abs=0.002)


def test_num_distinct_counts_all_rows_of_a_small_space():
    for roles, expected in (("shared", 3 * 2 * 9 * 2), ("disjoint_in_row", 3 * 2 * 1 * 2)):
        task = AssociativeRecall(vocab_size=4, num_kv_pairs=2, roles=roles)
        assert task.num_distinct(8) == expected == len(np.unique(task.enumerate(8), axis=0))


def test_presets_keep_the_pairs_or_fill_the_row():
    preset = AssociativeRecall.presets["kv15_len32"]
    assert preset.test_lengths == (32, 48, 64) and preset.knobs == {"num_kv_pairs": 15, "vocab_size": 50}
    assert {name: s[0].knobs["num_kv_pairs"] for name, s in preset.tests.items()} == {
        "test_48_kv22": 22,
        "test_64_kv30": 30,
    }


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"num_kv_pairs": 50},
            "num_kv_pairs with vocab_size 50 and roles 'shared' must be None or .* 1 and 49, got 50",
        ),
        ({"num_kv_pairs": 49, "roles": "disjoint_in_row"}, "between 1 and 48, got 49"),
        ({"vocab_size": 2}, "vocab_size must be an integer at least 3, got 2"),
        ({"roles": "swapped"}, "roles must be one of 'shared', 'disjoint_in_row', got 'swapped'"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        AssociativeRecall(**knobs)


def test_impossible_lengths_are_named():
    with pytest.raises(ValueError, match="length with 4 num_kv_pairs must be an integer at least 10, got 9"):
        draw(AssociativeRecall(num_kv_pairs=4), 9)
    with pytest.raises(ValueError, match="length with vocab_size 50 must be an integer between 4 and 101, got 102"):
        draw(AssociativeRecall(), 102)


def test_all_tokens_may_be_supervised_and_the_answer_alone_is_scored():
    task, whole = AssociativeRecall(), AssociativeRecall(loss_region="all")
    ids, labels = task.sample(np.random.default_rng(5), 16, 100)
    again, everything = whole.sample(np.random.default_rng(5), 16, 100)
    np.testing.assert_array_equal(ids, again)
    np.testing.assert_array_equal(everything[:, :-1], ids[:, :-1])
    np.testing.assert_array_equal(everything[:, -1], labels[:, -1])
    np.testing.assert_array_equal(whole.solve(ids), everything)
    for name, note in task.annotate(ids, labels).items():
        np.testing.assert_array_equal(whole.annotate(ids, everything)[name], note)
    with pytest.raises(ValueError, match="loss_region must be one of 'answers', 'all'"):
        AssociativeRecall(loss_region="last")
