"""Controls of probing whose answer is known: a head that recalls by construction, and models that know nothing."""

import pytest
import torch
from scipy import stats

from hf_memory.experiments.probing.cells import Plan, probe_model
from hf_memory.experiments.probing.subject import Subject
from hf_memory.experiments.results import read_rows
from tests.experiments.probing.pieces import STATE_NUMBERS, induction_head, tiny, word_tokenizer

LENGTHS = (64, 128, 512)


def test_an_induction_head_set_by_hand_recalls_at_every_length(tmp_path):
    plan = Plan(tasks=("mqar", "associative_recall"), lengths=LENGTHS, sizes=(8, 16), rows=2, vocabularies=2)
    rows = probe_model(Subject("head", induction_head(), word_tokenizer()), plan, tmp_path, progress=False)
    assert {row.split for row in rows} == {
        f"test_{length}{ending}" for length in LENGTHS for ending in ("", "_size16", "_gap0")
    }
    for row in rows:
        for name in ("counterfactual_recall", "recall", "recall_calibrated", "greedy_accuracy"):
            assert row.value(name) == pytest.approx(1.0), (row.split, name)
        assert row.value("probability_among_all") > 0.99
    assert read_rows(tmp_path) == sorted(rows, key=lambda row: row.cell)


def test_without_its_second_layer_it_is_at_chance(tmp_path):
    model = induction_head()
    with torch.no_grad():
        for parameter in model.transformer.h[1].parameters():
            parameter.zero_()
    plan = Plan(tasks=("mqar",), lengths=(64, 128), sizes=(8,), gaps=(), rows=2)
    for row in probe_model(Subject("headless", model, word_tokenizer()), plan, tmp_path, progress=False):
        # All candidates are equally likely.
        assert row.value("counterfactual_recall") == pytest.approx(1 / 64)
        assert row.value("recall") == pytest.approx(1 / 8)
        assert row.value("greedy_accuracy") == 0.0


@pytest.mark.parametrize("name", STATE_NUMBERS)
def test_a_random_model_is_at_chance_and_its_state_has_its_size(name, tmp_path):
    plan = Plan(tasks=("mqar",), lengths=(24, 48), sizes=(4,), gaps=(), rows=2)
    rows = probe_model(Subject(name, tiny(name), word_tokenizer()), plan, tmp_path, progress=False)
    assert [row.length for row in rows] == [24, 48]
    for row in rows:
        numbers = STATE_NUMBERS[name](row.length)
        assert (row.state_numbers, row.state_bytes) == (numbers, 4 * numbers)
        assert row.mixer == name
        assert_at_chance(row, "recall", 1 / 4)
        assert row.measured("recall").chance == 1 / 4
        assert row.measured("counterfactual_recall").chance == 1 / 16
        low, high = row.probe["intervals"]["recall"]
        assert low <= row.value("recall") <= high


def assert_at_chance(row, metric, chance):
    measured = row.measured(metric)
    low, high = stats.binom.ppf([1e-3, 1 - 1e-3], round(measured.denominator), chance)
    assert low <= measured.numerator <= high
