"""Copying: layouts, the score region, solver against the plain definition, spaces."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.tasks import copying
from hf_memory.tasks.copying import Copying


def draw(length, num_examples, seed=0, **knobs):
    task = Copying(**knobs)
    return task, *task.sample(np.random.default_rng(seed), length, num_examples)


def test_worked_examples_of_the_docstring_hold():
    results = doctest.testmod(copying)
    assert results.attempted == 4
    assert results.failed == 0


@pytest.mark.parametrize("markers", ["one", "many"])
@pytest.mark.parametrize(("axis", "length"), [("blank", 1), ("blank", 7), ("pattern", 1), ("pattern", 9)])
def test_rows_have_exactly_t_plus_2s_columns_in_the_published_layout(markers, axis, length):
    task, rows, labels = draw(length, 50, axis=axis, pattern_length=4, blank_length=6, markers=markers)
    size, blank = (4, length) if axis == "blank" else (length, 6)
    assert rows.shape == labels.shape == (50, blank + 2 * size)
    assert task.row_length(length) == blank + 2 * size
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        pattern = row[:size]
        assert all(1 <= symbol <= 8 for symbol in pattern)
        tail = [0] * (blank - 1) + [9] + [0] * size if markers == "one" else [0] * blank + [9] * size
        assert row == pattern + tail
        assert label == [0] * (size + blank) + pattern


@pytest.mark.parametrize("region", ["all", "pattern"])
@pytest.mark.parametrize("markers", ["one", "many"])
def test_sampled_labels_are_solved(markers, region):
    for name, preset in Copying.presets.items():
        task = Copying(**{**preset.knobs, "markers": markers, "loss_region": region})
        for length in np.ravel(preset.length).tolist():
            rows, labels = task.sample(np.random.default_rng(0), length, 1_000)
            np.testing.assert_array_equal(labels, task.solve(rows), err_msg=name)


def test_rows_of_unlike_patterns_are_solved_together():
    # As long as one another, although one has two symbols and the other three.
    rows = np.array([[4, 1, 0, 0, 0, 0, 9, 0, 0], [4, 1, 2, 0, 0, 9, 0, 0, 0]])
    assert Copying().solve(rows).tolist() == [[0, 0, 0, 0, 0, 0, 0, 4, 1], [0, 0, 0, 0, 0, 0, 4, 1, 2]]


def test_loss_on_the_pattern_alone_ignores_everything_before():
    _, rows, labels = draw(5, 20, pattern_length=3, loss_region="pattern")
    assert (labels[:, :-3] == -100).all()
    np.testing.assert_array_equal(labels[:, -3:], rows[:, :3])


def test_symbols_are_uniform():
    _, rows, _ = draw(1, 20_000, pattern_length=5)
    counts = np.bincount(rows[:, :5].ravel(), minlength=9)[1:]
    assert np.abs(counts / counts.sum() - 1 / 8).max() < 0.005


@pytest.mark.parametrize(("length", "everywhere"), [(50, 60 / 70), (500, 510 / 520)])
def test_blanks_alone_score_nothing_although_they_are_right_almost_everywhere(length, everywhere):
    task, rows, labels = draw(length, 200)
    blank = np.zeros_like(labels)
    assert math.isclose((blank == labels).mean(), everywhere)
    value = evaluate_predictions(task, length, rows, labels, blank)
    assert value["token_accuracy"].value == 0.0
    assert value["token_accuracy"].value <= task.chance_level("token_accuracy", length) == 1 / 8
    assert value["token_accuracy"].denominator == 200 * 10
    assert value["blank_answers"].value == 1.0
    assert value["blank_accuracy"].value == 1.0
    assert evaluate_predictions(task, length, rows, labels, labels)["token_accuracy"].value == 1.0


def test_baselines_are_what_the_heuristics_score():
    task, rows, labels = draw(20, 20_000, pattern_length=5)
    score = task.annotate(rows, labels)["score"]
    first = np.broadcast_to(rows[:, :1], rows.shape)
    values = task.baselines(20)
    assert abs((first == labels)[score].mean() - values["first_symbol_repeated"]) < 0.005
    assert abs((labels == 3)[score].mean() - values["constant_symbol"]) < 0.005
    assert values["all_blank"] == 0.0


def test_chance_levels_of_accuracies_and_loss():
    task = Copying()
    assert math.isclose(task.chance_level("loss", 50), 10 * math.log(8) / 70)
    assert math.isclose(task.replace(loss_region="pattern").chance_level("loss", 50), math.log(8))
    assert math.isclose(task.chance_level("sequence_accuracy", 50), 8**-10)
    assert math.isclose(Copying(axis="pattern").chance_level("sequence_accuracy", 2), 1 / 64)
    assert math.isnan(task.chance_level("mse", 50))


@pytest.mark.parametrize("region", ["all", "pattern"])
def test_annotations_of_rows_with_padding(region):
    task, rows, labels = draw(4, 6, pattern_length=3, loss_region=region)
    notes = task.annotate(np.pad(rows, ((0, 0), (0, 3))), np.pad(labels, ((0, 0), (0, 3)), constant_values=-100))
    assert (notes["score"] == [False] * 7 + [True] * 3 + [False] * 3).all()
    assert (notes["recall_index"] == [-1] * 7 + [0, 1, 2] + [-1] * 3).all()
    # Every symbol is due S + T steps after it was shown.
    assert (notes["distance"] == [0] * 7 + [7] * 3 + [0] * 3).all()


def test_wrong_answers_are_told_apart():
    task = Copying(pattern_length=3)
    rows = np.array([[5, 1, 5, 0, 0, 9, 0, 0, 0]])
    labels = task.solve(rows)
    outputs = np.array([[0, 0, 4, 0, 0, 0, 1, 0, 7]])
    counts = task.extra_metrics(rows, labels, outputs)
    assert counts == {"blank_answers": (1, 3), "symbols_not_shown": (1, 3), "blank_accuracy": (5, 6)}
    pattern = task.replace(loss_region="pattern")
    assert set(pattern.extra_metrics(rows, pattern.solve(rows), outputs)) == {"blank_answers", "symbols_not_shown"}


@pytest.mark.parametrize("markers", ["one", "many"])
def test_every_pattern_is_enumerated_once(markers):
    task = Copying(pattern_length=3, alphabet_size=4, markers=markers)
    rows = task.enumerate(5)
    assert len(np.unique(rows, axis=0)) == len(rows) == task.num_distinct(5) == 64
    drawn, _ = task.sample(np.random.default_rng(0), 5, 5_000)
    np.testing.assert_array_equal(np.unique(drawn, axis=0), rows)
    with pytest.raises(ValueError, match="at most 16777216 can be enumerated"):
        Copying().enumerate(5)


def test_presets_carry_the_published_settings():
    blanks, pattern = Copying.presets["blanks_50"], Copying.presets["pattern_10"]
    assert blanks.length == (1, 50)
    assert blanks.test_lengths == (10, 20, 30, 40, 50, 60, 75, 100, 150, 200, 300, 400, 500)
    assert Copying(**blanks.knobs).sizes(50) == (10, 50)
    assert pattern.length == (1, 10)
    assert pattern.test_lengths == (2, 4, 6, 8, 10, 11, 12, 15, 20, 30, 50, 75, 100)
    assert Copying(**pattern.knobs).sizes(10) == (10, 50)
    assert next(iter(Copying.presets)) == "blanks_50"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"axis": "noise"}, "axis must be one of 'blank', 'pattern'"),
        ({"markers": "two"}, "markers must be one of 'one', 'many'"),
        ({"loss_region": "last"}, "loss_region must be one of 'all', 'pattern'"),
        ({"pattern_length": 0}, "pattern_length must be an integer at least 1"),
        ({"blank_length": 0}, "blank_length must be an integer at least 1"),
        ({"alphabet_size": 1}, "alphabet_size must be an integer between 2 and"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        Copying(**knobs)


def test_symbols_are_readable_and_distinct():
    assert Copying().symbols == ("_", "a", "b", "c", "d", "e", "f", "g", "h", "|")
    assert len(set(Copying(alphabet_size=40).symbols)) == 42
