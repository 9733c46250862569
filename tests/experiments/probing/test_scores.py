"""Shares, levels and intervals from answers that are known."""

import numpy as np
import pytest
import torch

from hf_memory.experiments.probing.formats import Unit
from hf_memory.experiments.probing.intervals import clustered_interval
from hf_memory.experiments.probing.laws import Query
from hf_memory.experiments.probing.scores import Answer, calibrate, metrics_of, read_answers, recalled_bits


def answer(scores, right, *, cluster=0, row=0, number=0, changed=False, distance=5, credits=None):
    candidates = tuple(range(len(scores)))
    rules = {"one_over_k": 1 / len(scores), **(credits or {})}
    query = Query(Unit((99,), (right,)), 0, candidates, rules)
    values = np.log(np.array([scores], dtype=np.float64))
    return Answer(cluster, row, number, changed, query, distance, values, np.array([scores[right] > 0.5]))


def test_probabilities_are_those_among_the_candidates_and_among_all():
    found = answer([0.2, 0.1, 0.1], 0)
    assert found.probabilities() == pytest.approx((0.5, 0.2))
    assert found.is_right() == 1.0
    assert answer([0.2, 0.1, 0.1], 1).is_right() == 0.0
    assert answer([0.2, 0.2, 0.1], 1).is_right() == 0.5


def test_an_exchange_counts_only_where_both_answers_are_right():
    stubborn = [answer([0.9, 0.05], 0, row=n, cluster=n % 2) for n in range(4)]
    stubborn += [answer([0.9, 0.05], 1, row=n, cluster=n % 2, changed=True) for n in range(4)]
    metrics, intervals = metrics_of(stubborn)
    assert metrics["recall"].value == 1.0
    assert metrics["counterfactual_recall"].value == 0.0
    assert metrics["counterfactual_recall"].chance == 0.25
    assert set(intervals) == set(metrics)
    follows = [*stubborn[:4], *(answer([0.05, 0.9], 1, row=n, cluster=n % 2, changed=True) for n in range(4))]
    assert metrics_of(follows)[0]["counterfactual_recall"].value == 1.0


def test_calibration_takes_a_fixed_preference_off():
    # Word 0 is always preferred; the right word gains a little.
    answers = [answer([0.5, 0.2], 0, row=0), answer([0.4, 0.3], 1, row=1), answer([0.5, 0.2], 0, row=2)]
    assert [found.is_right() for found in answers] == [1.0, 0.0, 1.0]
    centred, preferred = calibrate(answers)
    assert centred == [1.0, 1.0, 1.0]
    assert preferred == [1.0, 0.0, 1.0]


def test_distances_are_counted_by_powers_of_two():
    metrics, _ = metrics_of([answer([0.9, 0.1], 0, row=n, distance=d) for n, d in enumerate((1, 5, 7, 8))])
    counts = {name: metric.denominator for name, metric in metrics.items() if "distance" in name}
    assert counts == {"recall_at_distance_1": 1, "recall_at_distance_4": 2, "recall_at_distance_8": 1}


def test_logits_are_read_where_the_answer_is_due():
    logits = torch.tensor([[[0.0, 2.0, 1.0, -1.0]], [[3.0, 0.0, 0.0, 0.0]]])
    scores, best = read_answers(logits, torch.tensor([[1, 2], [0, 3]]), torch.tensor([[1], [3]]))
    assert best.tolist() == [[True], [False]]
    wanted = torch.log_softmax(logits, -1)[:, 0]
    assert scores[0, 0] == pytest.approx(wanted[0, [1, 2]].numpy(), rel=1e-6)
    assert scores[1, 0] == pytest.approx(wanted[1, [0, 3]].numpy(), rel=1e-6)


def test_bits_are_those_above_chance():
    right = [answer([0.9, 0.1, 0.1, 0.1], 0, row=n) for n in range(4)]
    assert recalled_bits(right, 8) == pytest.approx(16.0)
    half = [*right[:2], *(answer([0.1, 0.9, 0.1, 0.1], 0, row=n) for n in range(2))]
    assert recalled_bits(half, 8) == pytest.approx(16 * (0.5 - 0.25) / 0.75)
    assert recalled_bits([answer([0.1, 0.9], 0)], 8) == 0.0


def test_an_interval_covers_the_share_though_clusters_prefer_words():
    rng, covered, naive = np.random.default_rng(0), 0, 0
    for _ in range(400):
        rates = np.clip(rng.normal(0.5, 0.2, size=8), 0, 1)
        hits = rng.binomial(32, rates)
        low, high = clustered_interval(hits.tolist(), [32] * 8)
        covered += low <= 0.5 <= high
        share = hits.sum() / 256
        naive += abs(share - 0.5) <= 1.96 * (share * (1 - share) / 256) ** 0.5
    assert covered / 400 > 0.93
    assert naive / 400 < 0.75


def test_an_interval_of_clusters_that_agree_is_that_of_fewer_tries():
    low, high = clustered_interval([8] * 8, [8] * 8)
    assert high == 1.0
    assert low == pytest.approx(0.025 ** (1 / (64 * (1.99834 / 2.36462) ** 2)), rel=1e-4)
    with pytest.raises(ValueError, match="at least two"):
        clustered_interval([1], [1])
