"""Metrics by annotations count what they say, and decays are products of transitions until an answer is due."""

import numpy as np
import pytest
import torch

from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.further import DECAYS, is_slice, measure_decays, measure_slices, slice_name
from hf_memory.experiments.training import model_for_task
from hf_memory.tasks.copying import Copying
from hf_memory.tasks.updating_mqar import UpdatingMQAR


def columns_of(task, length=64, rows=200):
    ids, labels = task.sample(np.random.default_rng(0), length, rows)
    predictions = np.full_like(labels, -100)
    predictions[:, :-1] = np.where(labels[:, 1:] == -100, -100, labels[:, 1:])
    return {"input_ids": ids, "labels": labels, "predictions": predictions}


def test_slices_share_out_the_answers_by_powers_of_two():
    task = UpdatingMQAR(vocab_size=128, update_share=0.4)
    columns = columns_of(task)
    found = measure_slices(task, columns, {"recall": ["age", "rate"], "stale": ["age"]})
    assert {name for name in found if name.startswith("stale")} == {
        slice_name("stale", "age", low) for low in (0, 1, 2, 4, 8, 16)
    }
    ages = {name: value for name, value in found.items() if name.startswith("recall_at_age")}
    assert {value.value for value in ages.values()} == {1.0}
    assert sum(value.denominator for value in ages.values()) == (columns["labels"] != -100).sum()
    notes = task.annotate(columns["input_ids"], columns["labels"])
    age = notes["age"][notes["score"]]
    assert found["recall_at_age_4_to_7"].denominator == ((age >= 4) & (age < 8)).sum()


def test_a_stale_answer_is_booked_where_it_stands():
    task = UpdatingMQAR(vocab_size=16, num_kv_pairs=2)
    ids = np.array([[3, 12, 5, 9, 3, 14, 5, 0, 3, 0]])
    labels = task.solve(ids)
    predictions = np.full_like(labels, -100)
    predictions[0, [6, 8]] = 9, 12  # right for key 5, and the value that key 3 had before
    found = measure_slices(task, {"input_ids": ids, "labels": labels, "predictions": predictions},
                           {"stale": ["rate"], "recall": ["rate"]})  # fmt: skip
    assert {name: value.value for name, value in found.items()} == {
        "stale_at_rate_0": 0.0, "stale_at_rate_1": 1.0, "recall_at_rate_0": 1.0, "recall_at_rate_1": 0.0,
    }  # fmt: skip


def test_unknown_annotations_and_metrics_are_named():
    task = UpdatingMQAR(vocab_size=128)
    with pytest.raises(ValueError, match="annotation of task 'updating_mqar': 'agge'; did you mean 'age'"):
        measure_slices(task, columns_of(task, rows=4), {"stale": ["agge"]})
    with pytest.raises(ValueError, match="metric of task 'updating_mqar': 'stall'"):
        measure_slices(task, columns_of(task, rows=4), {"stall": ["age"]})
    assert not is_slice("stale_at_age_x", {"stale": ["age"]})


@pytest.mark.parametrize(("key", "fields"), [("s4d", {"state_size": 4}), ("mamba", {"state_size": 3})])
def test_decays_are_products_over_the_columns_before_the_first_answer(key, fields):
    task = Copying(pattern_length=3)
    rows = TensorRows(dict(zip(("input_ids", "labels"), task.sample(np.random.default_rng(0), 5, 4), strict=True)))
    torch.manual_seed(0)
    model = model_for_task(key, task, hidden_size=4, num_hidden_layers=1, **fields).eval()
    found = measure_decays(model, task, rows)
    assert tuple(found) == DECAYS
    mixer, seen = model.base_model.layers[0].mixer, []
    mixer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(input_ids=rows.__getitems__(list(range(4)))["input_ids"])
        left = mixer.decays(seen[0])[:, : 3 + 5].double().prod(1)  # three symbols, then the interval
    assert found["slowest_decay"].value == pytest.approx(float(left.amax(1).mean()), rel=1e-6)
    assert found["median_decay"].value == pytest.approx(float(left.median(1).values.mean()), rel=1e-6)
    assert 0 < found["median_decay"].value < found["slowest_decay"].value < 1


def test_a_model_without_a_diagonal_state_has_no_decays():
    task = Copying(pattern_length=3)
    rows = TensorRows(dict(zip(("input_ids", "labels"), task.sample(np.random.default_rng(0), 5, 4), strict=True)))
    assert measure_decays(model_for_task("lstm", task, hidden_size=4).eval(), task, rows) == {}


def test_moduli_of_s4d_are_those_of_its_poles():
    mixer = model_for_task("s4d", Copying(), hidden_size=4, state_size=6).base_model.layers[0].mixer
    decays = mixer.decays(torch.zeros(2, 3, 4))
    assert decays.shape == (2, 3, 12)
    expected = torch.exp(-mixer.log_dt.exp()[:, None] * mixer.log_A_real.exp())
    torch.testing.assert_close(decays[1, 2].view(4, 3), expected)
