"""Counterfactual recall and induction, on models whose mechanism is known because it was written by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from hf_memory.data.specification import specify
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.mechanisms import (
    MEASURES,
    add_mechanisms,
    counterfactual_recall,
    induction_scores,
    intervene,
    measure_mechanisms,
)
from hf_memory.mixers.attention import AttentionMixer
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.models.heads import MemoryHeadOutput
from hf_memory.reports.study_plots import draw_study
from hf_memory.studies.cells import run_cell
from hf_memory.studies.outcomes import assemble
from hf_memory.studies.watched import read_history
from hf_memory.tasks import make_task
from tests.studies.sweep_examples import planned, tiny_recipe

TASKS = {
    "mqar": make_task("mqar", vocab_size=64, num_kv_pairs=4),
    "mqar, shared ids": make_task("mqar", vocab_size=64, num_kv_pairs=4, shared_vocab=True, filler="random"),
    "mqar, two passes": make_task("mqar", vocab_size=64, num_kv_pairs=4, num_passes=2),
    "associative_recall": make_task("associative_recall", vocab_size=50, num_kv_pairs=5),
}


def rows_of(task, n=64, length=32):
    ids, labels = task.sample(np.random.default_rng(3), length, n)
    return ids, labels, TensorRows({"input_ids": ids, "labels": labels})


class Scripted(nn.Module):
    """A model that answers by a rule from ids (B, T) to predictions (B, T)."""

    def __init__(self, rule):
        super().__init__()
        self.rule, self.weight = rule, nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, labels, return_logits, attention_mask=None):
        predictions = torch.from_numpy(self.rule(input_ids.numpy()))
        return MemoryHeadOutput(predictions=predictions, token_loss=torch.zeros(input_ids.shape))


def solver(task):
    return lambda ids: np.roll(task.solve(ids), -1, axis=1)


@pytest.mark.parametrize("change", ["value", "key"])
@pytest.mark.parametrize("name", TASKS)
def test_a_model_that_looks_answers_up_follows_every_change(name, change):
    task = TASKS[name]
    ids, labels, _ = rows_of(task)
    value = counterfactual_recall(Scripted(solver(task)), task, ids, labels, change)
    assert value.value == 1.0
    assert value.denominator == value.numerator >= 55
    remembered = Scripted(lambda changed: np.roll(labels, -1, axis=1))
    assert counterfactual_recall(remembered, task, ids, labels, change).value == 0.0


@pytest.mark.parametrize("name", TASKS)
def test_a_change_moves_one_answer_and_stays_within_the_law(name):
    task = TASKS[name]
    ids, labels, _ = rows_of(task)
    changed, row, column, answers = intervene(task, ids, labels, "value", np.random.default_rng(0))
    passes = getattr(task, "num_passes", 1)
    assert ((changed != ids).sum(1) == passes).all()
    assert not any(answer in ids[r] for r, answer in zip(row, answers, strict=True))
    assert (answers >= (task.vocab_size // 2 if name.startswith("mqar") and "shared" not in name else 1)).all()
    solved = task.solve(changed)
    assert ((solved != task.solve(ids)).sum(1) == 1).all()
    assert (solved[row, column] == answers).all()
    swapped, row, column, answers = intervene(task, ids, labels, "key", np.random.default_rng(0))
    assert (np.sort(swapped, axis=1) == np.sort(ids, axis=1)).all()
    assert ((swapped != ids).sum(1) == 2 * passes).all()
    assert (answers != labels[row, column]).all()


def test_induction_finds_the_head_that_was_written_by_hand(monkeypatch):
    task = TASKS["mqar"]
    ids, labels, rows = rows_of(task, n=16)
    model = mixer_model(mixer_config("attention", vocab_size=64, hidden_size=16, num_hidden_layers=2), "causal")
    queries = [(r, c - 1) for r, c in zip(*np.nonzero(labels != -100), strict=True)]

    def weights(mixer, hidden_states):
        """Head 1 of layer 1 reads the value with 3/4 and the key with 1/4; all other heads read themselves."""
        batch, time, _ = hidden_states.shape
        table = torch.eye(time).expand(batch, 2, time, time).clone()
        if mixer.layer_idx == 1:
            for r, c in queries:
                place = int(np.flatnonzero(ids[r, :c] == ids[r, c])[-1])
                table[r, 1, c] = 0
                table[r, 1, c, place + 1], table[r, 1, c, place] = 0.75, 0.25
        return table

    monkeypatch.setattr(AttentionMixer, "attention_weights", weights)
    scores = induction_scores(model, task, rows)
    np.testing.assert_allclose(scores["value"], [[0, 0], [0, 0.75]])
    np.testing.assert_allclose(scores["key"], [[0, 0], [0, 0.25]])
    measured = measure_mechanisms(model, task, rows)
    assert (measured["induction_value"].value, measured["induction_key"].value) == (0.75, 0.25)


def test_induction_does_not_depend_on_the_batch_and_leaves_no_hook():
    task = TASKS["mqar"]
    _, _, rows = rows_of(task, n=10)
    model = mixer_model(mixer_config("hybrid", vocab_size=64, hidden_size=16, layers=["attention", "gru"]), "causal")
    one, many = (induction_scores(model, task, rows, batch_size=size) for size in (3, 10))
    for name in one:
        assert [heads.shape for heads in one[name]] == [(2,)]
        np.testing.assert_allclose(one[name], many[name], atol=1e-6)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.training


def test_rows_of_an_evaluation_hold_the_measures(tmp_path):
    specification = specify("mqar", "kv4_len32", vocab_size=64, num_validation=20, num_test=20)
    model = mixer_model(mixer_config("attention", vocab_size=64, hidden_size=16, num_hidden_layers=1), "causal")
    model.save_pretrained(tmp_path)
    ids, labels, _ = rows_of(TASKS["mqar"], n=20)
    splits = {"validation": {"input_ids": ids, "labels": labels}}
    found = evaluate_lengths(str(tmp_path), specification, splits, progress=False)
    (row,) = add_mechanisms(found, tmp_path, specification, splits)
    assert {"recall", "counterfactual_value", "counterfactual_key", "induction_value", "induction_key"} <= set(
        row.metrics
    )
    assert row.metrics["counterfactual_key"].chance == 0.25
    assert 0 < row.metrics["induction_value"].value < 1
    assert dataclasses.replace(row, metrics=found[0].metrics) == found[0]


def test_what_has_no_pairs_is_refused_by_name():
    parity = make_task("bit_parity")
    ids, labels, rows = rows_of(parity, n=4, length=8)
    lstm = mixer_model(mixer_config("lstm", vocab_size=64, hidden_size=8, num_hidden_layers=1), "causal")
    with pytest.raises(ValueError, match="bit_parity has no pairs"):
        measure_mechanisms(lstm, parity, rows)
    ids, labels, rows = rows_of(TASKS["mqar"], n=4)
    with pytest.raises(ValueError, match="has no attention"):
        induction_scores(lstm, TASKS["mqar"], rows)
    assert set(measure_mechanisms(lstm, TASKS["mqar"], rows)) == {"counterfactual_value", "counterfactual_key"}
    with pytest.raises(ValueError, match="change must be one of value, key"):
        counterfactual_recall(lstm, TASKS["mqar"], ids, labels, "both")
    with pytest.raises(ValueError, match="one length"):
        measure_mechanisms(lstm, TASKS["mqar"], TensorRows({"input_ids": [[1, 2], [1]], "labels": [[1, 2], [1]]}))
    full = make_task("mqar", vocab_size=16, num_kv_pairs=7)
    ids, labels, _ = rows_of(dataclasses.replace(full), n=4, length=40)
    assert counterfactual_recall(Scripted(solver(full)), full, ids, labels).value == 1.0
    with pytest.raises(ValueError, match="mechanisms need one of mqar, associative_recall, got bit_parity"):
        tiny_recipe(evaluate={"mechanisms": True})


def test_rows_that_hold_every_id_are_not_counted():
    crowded = make_task("associative_recall", vocab_size=4, num_kv_pairs=2)
    ids, labels, _ = rows_of(crowded, n=200, length=6)
    full = np.array([len(set(row) - {0}) == 3 for row in ids])
    assert 0 < full.sum() < 200
    value = counterfactual_recall(Scripted(solver(crowded)), crowded, ids, labels)
    assert (value.value, value.denominator) == (1.0, 200 - full.sum())
    none = counterfactual_recall(Scripted(solver(crowded)), crowded, ids[full], labels[full])
    assert none.denominator == 0
    assert np.isnan(none.value)


def test_chance_is_a_guess_among_the_values_of_the_changed_context():
    task = TASKS["associative_recall"]
    ids, labels, _ = rows_of(task, n=2000)
    for change in ("value", "key"):
        changed, row, _, answers = intervene(task, ids, labels, change, np.random.default_rng(0))
        guesses = np.random.default_rng(1).integers(0, 5, len(row))
        right = (changed[row, 1 + 2 * guesses] == answers).mean()
        measured = counterfactual_recall(Scripted(solver(task)), task, ids, labels, change)
        assert measured.chance == pytest.approx(right, abs=0.03)
    assert counterfactual_recall(Scripted(solver(task)), task, ids, labels).chance == pytest.approx(0.2)


def test_a_perfect_head_has_the_whole_attention_where_ids_play_both_roles(monkeypatch):
    task = make_task("associative_recall", vocab_size=12, num_kv_pairs=5)
    ids, _, rows = rows_of(task, n=64, length=16)
    layers = [{"mixer": "attention", "num_heads": 4}, {"mixer": "attention", "num_heads": 1, "normalize": False}]
    model = mixer_model(mixer_config("hybrid", vocab_size=12, hidden_size=16, layers=layers), "causal")

    def weights(mixer, hidden_states):
        """Every head reads the value of the pair whose key the query is, with an exponential of 3."""
        batch, time, _ = hidden_states.shape
        table = torch.zeros(batch, mixer.num_heads, time, time)
        pair = (ids[:, 0:10:2] == ids[:, -2][:, None]).argmax(1)
        table[np.arange(batch), :, -2, 2 * pair + 1] = 3.0
        return table

    monkeypatch.setattr(AttentionMixer, "attention_weights", weights)
    scores = induction_scores(model, task, rows)
    assert [heads.tolist() for heads in scores["value"]] == [[1.0] * 4, [1.0]]
    assert [heads.tolist() for heads in scores["key"]] == [[0.0] * 4, [0.0]]


def test_a_sweep_follows_the_measures_over_training(tmp_path):
    recipe = tiny_recipe(
        task="mqar",
        data={
            "length": 16,
            "num_kv_pairs": 2,
            "vocab_size": 32,
            "test_lengths": [16],
            "num_validation": 16,
            "num_test": 8,
        },
        arms={"attention": {}, "gru": {}},
        evaluate={"points": 2, "splits": ["validation"], "rows": 16, "mechanisms": True},
        learning_rates=[1e-3],
        seeds={"search": [0]},
    )
    cells = planned(recipe)
    for cell in cells:
        assert run_cell(cell, tmp_path)[0] == "trained"
    attention, gru = (read_history(tmp_path, cell.digest) for cell in cells)
    assert [point.steps for point in attention] == [1, 3]
    assert set(MEASURES) <= set(attention[0].values)
    assert set(gru[0].values) & set(MEASURES) == {"counterfactual_value", "counterfactual_key"}
    study = assemble(tmp_path, recipe, [(cell.digest, cell) for cell in cells])
    names = [drawing.name for drawing in draw_study(study)]
    assert {f"tiny-training-validation-{measure}" for measure in MEASURES} <= set(names)
