"""Updating MQAR: bindings in force, rates, balanced queries, attributable errors, an independent solver."""

import itertools
import math

import numpy as np
import pytest

from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.tasks.base import IGNORE_INDEX
from hf_memory.tasks.mqar import MQAR
from hf_memory.tasks.updating_mqar import UpdatingMQAR


def play(row, label, task):
    """Replay a row in plain Python: the events, and what annotations ought to say of each query."""
    k, context = task.num_kv_pairs, task.context_length
    keys = row[0 : 2 * k : 2]
    bindings = dict(zip(keys, row[1 : 2 * k : 2], strict=True))
    history = {key: [value] for key, value in bindings.items()}
    since = dict.fromkeys(keys, -1)
    events, queries = [], []
    for event, position in enumerate(range(context, len(row), 2)):
        key, value = row[position : position + 2]
        if label[position + 1] != IGNORE_INDEX:
            assert value == 0
            assert label[position + 1] == history[key][-1]
            load = sum(map(len, history.values()))
            queries.append((keys.index(key), len(history[key]) - 1, event - 1 - since[key], load))
            events.append(("query", keys.index(key)))
        elif key in history:
            history[key].append(value)
            since[key] = event
            events.append(("update", keys.index(key)))
        else:
            events.append(("filler", None))
    return history, events, queries


KNOBS = [
    {},
    {"rate_ratio": 16.0},
    {"query": "balanced"},
    {"filler": "random"},
    {"filler": "random", "vocab_size": 64, "num_kv_pairs": 3},
    {"num_passes": 2},
    {"shared_vocab": True, "query": "balanced"},
    {"update_share": 0.0},
    {"update_share": 0.5},
    {"update_share": 0.7, "query_share": 0.1, "num_kv_pairs": 1},
]


@pytest.mark.parametrize("knobs", KNOBS)
def test_rows_replayed_in_python_hold_the_law(knobs):
    task = UpdatingMQAR(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), 64, 150)
    notes = task.annotate(ids, labels)
    half = task.vocab_size // 2
    for index, (row, label) in enumerate(zip(ids.tolist(), labels.tolist(), strict=True)):
        history, events, queries = play(row, label, task)
        assert len(history) == task.num_kv_pairs
        values = [value for values in history.values() for value in values]
        # Each value of a row belongs to one binding, and no id is key and value.
        assert len(set(values)) == len(values) and not set(values) & set(history)
        assert queries
        if not task.shared_vocab:
            assert min(values) >= half and min(history) >= 1 and max(history) < half
        filler = [
            row[task.context_length + 2 * i + j]
            for i, (kind, _) in enumerate(events)
            if kind == "filler"
            for j in (0, 1)
        ]
        assert not set(filler) & (set(history) | set(values))
        if task.filler == "zero":
            assert set(filler) <= {0}
        at = np.flatnonzero(notes["score"][index])
        columns = [notes[name][index, at].tolist() for name in ("pair", "updates", "age", "load")]
        assert list(zip(*columns, strict=True)) == queries
        assert notes["rate"][index, at].tolist() == [len(list(history.values())[pair]) - 1 for pair, *_ in queries]
    np.testing.assert_array_equal(task.solve(ids), labels)


def test_worked_example_follows_an_update():
    task = UpdatingMQAR(vocab_size=16, num_kv_pairs=2)
    row = np.array([[3, 12, 5, 9, 3, 0, 3, 14, 0, 0, 5, 0, 3, 0]])
    assert task.solve(row)[0, [5, 11, 13]].tolist() == [12, 9, 14]


def test_events_occur_in_their_shares():
    task = UpdatingMQAR(update_share=0.25, query_share=0.4)
    ids, labels = task.sample(np.random.default_rng(0), 64, 3_000)
    kinds = [
        kind for row, label in zip(ids.tolist(), labels.tolist(), strict=True) for kind, _ in play(row, label, task)[1]
    ]
    assert kinds.count("update") / len(kinds) == pytest.approx(0.25, abs=0.006)
    assert kinds.count("query") / len(kinds) == pytest.approx(0.4, abs=0.006)


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, 0.5), (16.0, None)])
def test_keys_are_updated_in_proportion_to_log_uniform_rates(ratio, expected):
    task = UpdatingMQAR(num_kv_pairs=2, update_share=0.5, query_share=0.1, rate_ratio=ratio)
    ids, labels = task.sample(np.random.default_rng(0), 404, 2_000)
    update = (ids[:, 4::2] != 0) & (labels[:, 5::2] == IGNORE_INDEX)
    share = ((ids[:, 4::2] == ids[:, 0, None]) & update).sum(axis=1) / update.sum(axis=1)
    assert share.mean() == pytest.approx(0.5, abs=0.02)
    if expected is not None:
        assert share.std() == pytest.approx(math.sqrt(0.25 / 100), rel=0.1)
        return
    # The log-odds of two log-uniform rates have the triangular law on [-ln R, ln R]: its deviation is ln R / sqrt(6).
    odds = np.log(share / (1 - share))
    assert odds.std() == pytest.approx(math.log(16) / math.sqrt(6), rel=0.06)


def test_balanced_queries_ask_for_updated_keys_half_of_the_time():
    for query, low, high in (("balanced", 0.49, 0.51), ("uniform", 0.25, 0.32)):
        task = UpdatingMQAR(num_kv_pairs=8, update_share=0.1, query=query)
        ids, labels = task.sample(np.random.default_rng(0), 128, 4_000)
        notes = task.annotate(ids, labels)
        both = notes["score"] & (notes["load"] > 8)
        # While some keys were updated and some were not; with 8 keys the latter nearly always holds.
        both[:, 100:] = False
        assert low < (notes["updates"][both] > 0).mean() < high, query


def test_balanced_queries_are_uniform_within_each_half():
    task = UpdatingMQAR(num_kv_pairs=3, update_share=0.4, query="balanced")
    ids, labels = task.sample(np.random.default_rng(0), 12, 60_000)
    # First key 0 is updated, then a query: half of the time key 0, else key 1 or 2.
    first = (ids[:, 6] == ids[:, 0]) & (labels[:, 7] == IGNORE_INDEX)
    then = first & (labels[:, 9] != IGNORE_INDEX)
    pair = task.annotate(ids, labels)["pair"][then, 9]
    assert np.bincount(pair, minlength=3) / len(pair) == pytest.approx([0.5, 0.25, 0.25], abs=0.025)
    assert len(pair) > 2_000


def test_wrong_answers_are_attributed():
    task = UpdatingMQAR(vocab_size=16, num_kv_pairs=2)
    row = np.array([[3, 12, 5, 9, 3, 14, 5, 10, 3, 0, 5, 0, 3, 0, 5, 0]])
    labels = task.solve(row)
    # Queries at 8, 10, 12, 14: right, stale (9 was of key 5), swap (10 is of key 5), other (12 was of key 3).
    outputs = np.full_like(labels, IGNORE_INDEX)
    outputs[0, [8, 10, 12, 14]] = [14, 9, 10, 12]
    values = evaluate_predictions(task, 16, row, labels, outputs)
    shares = {name: values[name].value for name in ("recall", "stale", "swap", "other")}
    assert shares == {"recall": 0.25, "stale": 0.25, "swap": 0.25, "other": 0.25}


def test_a_value_that_comes_later_is_not_stale():
    task = UpdatingMQAR(vocab_size=16, num_kv_pairs=2)
    row = np.array([[3, 12, 5, 9, 3, 0, 3, 14]])
    outputs = np.full_like(row, IGNORE_INDEX)
    outputs[0, 4] = 14
    values = evaluate_predictions(task, 8, row, task.solve(row), outputs)
    assert (values["stale"].value, values["swap"].value, values["other"].value) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("knobs", KNOBS[:4])
def test_recall_and_the_three_errors_sum_to_one(knobs):
    task = UpdatingMQAR(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), 64, 200)
    rng = np.random.default_rng(1)
    outputs = np.take_along_axis(ids, rng.integers(0, 64, size=ids.shape), axis=1)
    right = rng.random(ids[:, 1:].shape) < 0.3
    outputs[:, :-1] = np.where(right, labels[:, 1:], outputs[:, :-1])
    values = evaluate_predictions(task, 64, ids, labels, outputs)
    names = ("recall", "stale", "swap", "other")
    assert sum(values[name].numerator for name in names) == values["recall"].denominator
    assert len({values[name].denominator for name in names}) == 1
    assert all(values[name].numerator > 0 for name in names[:1] + names[2:])


def test_baselines_are_what_the_heuristics_score():
    task = UpdatingMQAR(rate_ratio=1.0)
    baselines = task.baselines(64)
    # A key is as it was at the start if none of the events before the query updated it.
    expected = np.mean([(1 - 0.25 / 4) ** event for event in range(28)])
    assert baselines["first_value"] == pytest.approx(expected, abs=0.015)
    loads = [
        sum(math.comb(event, u) * 0.25**u * 0.75 ** (event - u) / (4 + u) for u in range(event + 1))
        for event in range(28)
    ]
    assert baselines["value_seen"] == pytest.approx(np.mean(loads), abs=0.003)
    assert baselines["value_in_force"] == task.chance_level("recall", 64) == 0.25


def test_without_updates_rows_are_recall_with_repeated_queries():
    task = UpdatingMQAR(update_share=0.0)
    ids, labels = task.sample(np.random.default_rng(0), 64, 300)
    np.testing.assert_array_equal(MQAR().solve(ids), labels)
    assert ((labels != IGNORE_INDEX).sum(axis=1) > 4).any()


def test_num_distinct_is_a_lower_bound():
    task = UpdatingMQAR(vocab_size=6, num_kv_pairs=1, update_share=0.3)
    ids, _ = task.sample(np.random.default_rng(0), 6, 5_000)
    assert len(np.unique(ids, axis=0)) >= task.num_distinct(6) == 6


def test_presets_name_pairs_length_updates_and_rates():
    names = list(UpdatingMQAR.presets)
    assert names[0] == "kv4_len64_u25_r1"
    sizes = ((4, 64), (8, 128), (16, 256))
    assert {f"kv{k}_len{n}_u25_r{r}" for (k, n), r in itertools.product(sizes, (1, 16))} <= set(names)
    preset = UpdatingMQAR.presets["kv8_len128_u25_r16"]
    assert preset.test_lengths == (128, 256, 512)
    assert [s[0].knobs["update_share"] for s in preset.tests.values()] == [0.0, 0.1, 0.25, 0.5]
    assert list(preset.tests) == ["test_update_u0", "test_update_u10", "test_update_u25", "test_update_u50"]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"update_share": 0.6}, r"update_share with query_share 0.5 must be in \[0, 0.5\], got 0.6"),
        ({"query_share": 0.0}, "query_share must be a finite number"),
        ({"rate_ratio": 0.5}, "rate_ratio must be a finite number"),
        ({"query": "even"}, "query must be one of 'uniform', 'balanced', got 'even'"),
        ({"filler": "random_published"}, "filler must be one of 'zero', 'random'"),
        ({"num_kv_pairs": 4096}, "between 1 and 4095, got 4096"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        UpdatingMQAR(**knobs)


@pytest.mark.parametrize(
    ("knobs", "length", "message"),
    [
        ({}, 8, "at least 10, got 8"),
        ({}, 65, "length must be even"),
        ({"query_share": 1e-4}, 28, r"query_share at length 28 must be in \[0.01, 1\], got 0.0001"),
        (
            {"vocab_size": 16},
            64,
            "vocab_size 16 has 8 values for a row, and length 64 expects 4 num_kv_pairs and 7 updates",
        ),
    ],
)
def test_impossible_lengths_are_named(knobs, length, message):
    with pytest.raises(ValueError, match=message):
        UpdatingMQAR(**knobs).sample(np.random.default_rng(0), length, 1)


def test_all_tokens_may_be_supervised_and_the_answers_alone_are_scored():
    task, whole = UpdatingMQAR(filler="random"), UpdatingMQAR(filler="random", loss_region="all")
    ids, labels = task.sample(np.random.default_rng(5), 48, 100)
    again, everything = whole.sample(np.random.default_rng(5), 48, 100)
    np.testing.assert_array_equal(ids, again)
    np.testing.assert_array_equal(everything, np.where(labels >= 0, labels, ids))
    np.testing.assert_array_equal(whole.solve(ids), everything)
    for name, note in task.annotate(ids, labels).items():
        np.testing.assert_array_equal(whole.annotate(ids, everything)[name], note)
    np.testing.assert_array_equal(whole.candidates(ids, everything), task.candidates(ids, labels))
    assert whole.extra_metrics(ids, everything, ids) == task.extra_metrics(ids, labels, ids)
    assert whole.baselines(48) == task.baselines(48)
    assert np.isnan(whole.chance_level("loss", 48))
    with pytest.raises(ValueError, match="loss_region must be one of 'answers', 'all'"):
        UpdatingMQAR(loss_region="queries")
