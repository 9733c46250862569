"""Metrics: counts add up, one shift, values stand beside chance and move with nothing but the predictions."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_memory.experiments import metrics
from hf_memory.experiments.metrics import Count, align, evaluate_predictions
from hf_memory.tasks import IGNORE_INDEX, TASKS, make_task
from hf_memory.tasks.base import Task


def rows_of(key, num_examples=200, length=None, **knobs):
    task = make_task(key, **knobs)
    preset = next(iter(task.presets.values()))
    length = length or (preset.length if isinstance(preset.length, int) else preset.length[1])
    task = task.replace(**preset.knobs) if not knobs else task
    ids, labels = task.sample(np.random.default_rng(0), length, num_examples)
    return task, length, ids, labels


def outputs_of(labels, head):
    """What a model that knows the labels would output at each position."""
    if head == "token_classification":
        return labels.copy()
    outputs = np.full_like(labels, IGNORE_INDEX)
    outputs[:, :-1] = labels[:, 1:]
    return outputs


class FewClasses(Task):
    """Three classes at given positions, for counts by hand."""

    key = "few_classes"
    head = "token_classification"
    category = "stack"
    headline_metric = "macro_recall_at_depth0"
    presets = {}
    vocab_size = 3
    num_labels = 3

    def sample(self, rng, length, num_examples):
        ids = rng.integers(0, 3, size=(num_examples, length), dtype=np.int32)
        return ids, self.solve(ids)

    def solve(self, input_ids):
        return input_ids.copy()

    def annotate(self, input_ids, labels):
        depth = np.broadcast_to(np.arange(labels.shape[1]) % 2, labels.shape)
        return {"score": labels != IGNORE_INDEX, "depth": depth}

    def chance_level(self, metric, length):
        return 1 / 3 if metric.startswith("macro_recall") else math.nan

    def baselines(self, length):
        return {"constant": 1 / 3}

    def num_distinct(self, length):
        return 3**length


def test_align_moves_outputs_of_causal_heads_to_their_targets():
    labels = np.array([[-100, -100, 7, 8]])
    due, targets = align(np.array([[1, 7, 8, 5]]), labels, "causal")
    assert due.tolist() == [[-100, 1, 7, 8]] and targets.tolist() == [[-100, -100, 7, 8]]
    due, targets = align(np.array([[1, 7, 8, 5]]), labels, "token_classification")
    assert due.tolist() == [[1, 7, 8, 5]] and targets.tolist() == labels.tolist()


def test_align_ignores_a_label_that_no_output_precedes():
    _, targets = align(np.zeros((1, 3)), np.array([[4, 5, 6]]), "causal")
    assert targets.tolist() == [[-100, 5, 6]]


@pytest.mark.parametrize("key", sorted(TASKS))
def test_an_oracle_that_copies_the_solver_scores_exactly_one(key):
    task, length, ids, labels = rows_of(key)
    outputs = outputs_of(task.solve(ids).astype(labels.dtype), task.head)
    values = evaluate_predictions(task, length, ids, labels, outputs)
    assert values[task.headline_metric].value == 1.0
    if task.problem_type == "regression":
        assert values["mse"].value == 0.0
    else:
        assert values["token_accuracy"].value == values["sequence_accuracy"].value == 1.0


def test_answers_one_step_early_score_no_better_than_chance():
    task, length, ids, labels = rows_of("mqar")
    early = np.roll(outputs_of(labels, "causal"), -1, axis=1)
    assert evaluate_predictions(task, length, ids, labels, early)["recall"].value == 0.0
    task, length, ids, labels = rows_of("bit_parity", num_examples=2_000)
    early = np.roll(labels, -1, axis=1)
    value = evaluate_predictions(task, length, ids, labels, early)["token_accuracy"]
    assert value.value == pytest.approx(0.5, abs=0.01) and value.chance == pytest.approx(0.515625)


def test_chance_is_what_the_best_memoryless_predictor_scores():
    task, length, ids, labels = rows_of("bit_parity", num_examples=4_000)
    outputs = np.zeros_like(labels)
    outputs[:, 0] = ids[:, 0]
    assert evaluate_predictions(task, length, ids, labels, outputs)["token_accuracy"].value == pytest.approx(
        task.chance_level("token_accuracy", length), abs=0.006
    )
    task, length, ids, labels = rows_of("mqar", num_examples=4_000)
    outputs = np.broadcast_to(ids[:, 3, None], ids.shape)
    recall = evaluate_predictions(task, length, ids, labels, outputs)["recall"]
    # The second value of the context is as good as any other; the best guess knows which slots ask for which pair.
    assert (recall.value, recall.denominator) == (0.25, 16_000)
    assert recall.chance == pytest.approx(0.288, abs=1e-3)
    assert recall.baselines["value_in_context"] == 0.25


@pytest.mark.parametrize("key", sorted(TASKS))
def test_values_do_not_move_with_batch_size_or_padding(key):
    task, length, ids, labels = rows_of(key, num_examples=12)
    rng = np.random.default_rng(1)
    wrong = rng.random(labels.shape) < 0.3
    outputs = np.where(wrong, np.roll(outputs_of(labels, task.head), 1, axis=0), outputs_of(labels, task.head))
    loss = rng.random(labels.shape)
    whole = evaluate_predictions(task, length, ids, labels, outputs, loss)
    counts = []
    for start, stop, pad in ((0, 1, 0), (1, 6, 3), (6, 12, 8)):
        rows, width = slice(start, stop), ((0, 0), (0, pad))
        padded = [np.pad(ids[rows], width), np.pad(labels[rows], width, constant_values=IGNORE_INDEX)]
        padded += [np.pad(outputs[rows], width, constant_values=1), np.pad(loss[rows], width, constant_values=9.0)]
        counts.append(metrics.count_predictions(task, *padded))
    parts = metrics.metric_values(task, length, metrics.add_counts(counts))
    assert parts.keys() == whole.keys()
    for name, value in whole.items():
        assert parts[name].denominator == value.denominator, name
        assert parts[name].value == pytest.approx(value.value, rel=1e-12, nan_ok=True), name


def test_sequence_accuracy_needs_every_scored_position_and_skips_rows_without_any():
    labels = np.array([[1, -100, 0], [1, 1, 1], [-100, -100, -100]])
    predictions = np.array([[1, 5, 0], [1, 0, 1], [0, 0, 0]])
    assert metrics.sequence_accuracy(predictions, labels, labels != -100) == Count(1, 2)


def test_macro_recall_averages_over_the_classes_that_occur():
    labels = np.array([[0, 0, 0, 0, 2, 2]])
    predictions = np.array([[0, 0, 0, 1, 2, 0]])
    count = metrics.macro_recall(predictions, labels, labels >= 0, 3)
    assert count.value == (3 / 4 + 1 / 2) / 2
    assert count.total == (4.0, 6.0)


def test_macro_recall_at_depth_zero_reads_the_annotation():
    ids = np.array([[0, 1, 0, 2, 1, 2]])
    outputs = np.array([[0, 0, 2, 0, 1, 0]])
    values = evaluate_predictions(FewClasses(), 6, ids, ids, outputs)
    # Even positions hold 0, 0, 1 and are answered 0, 2, 1.
    assert values["macro_recall_at_depth0"].value == (1 / 2 + 1) / 2
    assert values["macro_recall"].value == (1 / 2 + 1 / 2 + 0) / 3
    assert values["macro_recall_at_depth0"].baselines == {"constant": 1 / 3}
    assert values["token_accuracy"].chance is None and values["token_accuracy"].baselines == {}


def test_loss_is_summed_over_the_supervised_targets():
    task, length, ids, labels = rows_of("mqar", num_examples=3)
    loss = np.zeros(labels.shape)
    query = outputs_of(labels, "causal") != IGNORE_INDEX
    loss[query] = np.arange(query.sum())
    value = evaluate_predictions(task, length, ids, labels, outputs_of(labels, "causal"), loss + 5 * ~query)["loss"]
    assert (value.numerator, value.denominator, value.value) == (66.0, 12, 5.5)
    assert value.chance == pytest.approx(1.3764, abs=1e-4)
    assert value.chance < math.log(4)


def test_mean_squared_error_is_summed_in_double_precision():
    labels = np.full((1, 1000), 0.1, dtype=np.float32)
    predictions = np.full((1, 1000), 1.1, dtype=np.float32)
    assert metrics.mse(predictions, labels, labels > 0).value == pytest.approx(1.0, abs=1e-6)
    assert metrics.mse(predictions, labels, labels > 0).denominator == 1000


def test_accuracy_by_position_and_by_annotation():
    task = make_task("bit_parity")
    ids = np.array([[1, 0, 1], [0, 0, 1]])
    labels = task.solve(ids)
    outputs = labels.copy()
    outputs[0, 2] = 1 - outputs[0, 2]
    by_position = metrics.accuracy_by_annotation(task, "position", ids, labels, outputs)
    assert by_position == {0: Count(2, 2), 1: Count(2, 2), 2: Count(1, 2)}
    by_ones = metrics.accuracy_by_annotation(task, "ones_so_far", ids, labels, outputs)
    assert by_ones == {0: Count(2, 2), 1: Count(3, 3), 2: Count(0, 1)}
    with pytest.raises(ValueError, match="unknown annotation of task 'bit_parity': 'ones_sofar'; did you mean"):
        metrics.accuracy_by_annotation(task, "ones_sofar", ids, labels, outputs)


def test_extrapolation_length_stops_at_the_first_length_that_is_not_reached():
    assert metrics.extrapolation_length({128: 0.95, 32: [0.85, 0.97], 48: 1.0, 64: 0.9}) == 48
    assert metrics.extrapolation_length({32: 0.5, 48: 1.0}) == 0
    assert metrics.extrapolation_length({32: 1.0, 48: [1.0, math.nan], 64: 1.0}) == 32
    assert metrics.extrapolation_length({32: 0.6}, threshold=0.5) == 32


def test_a_count_without_targets_has_no_value():
    assert math.isnan(Count(0, 0).value)


def test_wrong_shapes_and_labels_are_named():
    task, length, ids, labels = rows_of("bit_parity", num_examples=2)
    with pytest.raises(ValueError, match=r"predictions \(2, 31\) and labels \(2, 32\)"):
        evaluate_predictions(task, length, ids, labels, labels[:, 1:])
    with pytest.raises(ValueError, match=r"input_ids \(1, 32\) and labels \(2, 32\)"):
        evaluate_predictions(task, length, ids[:1], labels, labels)
    with pytest.raises(ValueError, match=r"labels must be -100 or in \[0, 1\], got 2"):
        evaluate_predictions(task, length, ids, labels + 1, labels)
    with pytest.raises(ValueError, match="head must be"):
        align(labels, labels, "masked")


def test_evaluate_metrics_agree_with_the_counts():
    metric = metrics.load("macro_recall")
    result = metric.compute(predictions=[[0, 0, 1], [1]], references=[[0, 1, -100], [1]])
    assert result == {"macro_recall": 0.75, "numerator": 2.0, "denominator": 3.0}
    squares = metrics.load("mse").compute(predictions=[[0.5, 9.0]], references=[[1.5, -100.0]])
    assert squares == {"mse": 1.0, "numerator": 1.0, "denominator": 1.0}
    exact = metrics.load("sequence_accuracy").compute(predictions=[[1, 2], [1, 1]], references=[[1, 2], [1, 2]])
    assert exact["sequence_accuracy"] == 0.5
    with pytest.raises(ValueError, match="unknown metric: 'token_acuracy'; did you mean 'token_accuracy'"):
        metrics.load("token_acuracy")


def test_evaluate_metrics_take_batches():
    metric = metrics.load("recall")
    metric.add_batch(predictions=[[1, 2, 3]], references=[[1, -100, 3]])
    metric.add_batch(predictions=[[4]], references=[[5]])
    assert metric.compute()["recall"] == pytest.approx(2 / 3)


def test_importing_metrics_loads_neither_torch_nor_evaluate():
    code = """
import sys, types
package = types.ModuleType("hf_memory"); package.__path__ = [sys.argv[1]]; sys.modules["hf_memory"] = package
import hf_memory.experiments.metrics
heavy = {"torch", "transformers", "datasets", "evaluate"} & set(sys.modules)
raise SystemExit(f"loaded: {heavy}" if heavy else 0)
"""
    folder = str(Path(metrics.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
