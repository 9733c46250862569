"""The figure of verdicts draws every seed where its numbers are."""

import csv
import dataclasses
import math

import pytest

from hf_memory.reports.verdict_plots import axis_of, seed_points, verdict_drawing
from hf_memory.studies.expectations import Expectation
from hf_memory.studies.judging import Judgement, judge_study
from hf_memory.studies.verdicts import Tally
from tests.reports.study_examples import FINAL, words_recipe
from tests.studies.sweep_examples import made_up

STEPS = Expectation.from_json({
    "claim": "LSTM is faster.",
    "left": {"arms": "lstm", "quantity": "steps_to"},
    "relation": "<",
    "right": {"arms": "gru", "quantity": "steps_to"},
    "margin": -10,
})  # fmt: skip
LEFT = {100: 50.0, 101: math.inf, 102: 40.0, 103: math.inf, 104: 30.0, 105: 10.0}
RIGHT = {100: 80.0, 101: 60.0, 102: math.inf, 103: math.inf, 104: 35.0, 105: 90.0}


def judged(dropped=(104,)):
    return Judgement(STEPS, "not decided", LEFT, RIGHT, "holds in 2 of 5 seeds", Tally(2, 1, 5), dropped)


def drawn(axes, label):
    """Place and row of each mark of a kind."""
    lines = [line for line in axes.lines if line.get_label() == label]
    return [(round(float(x), 6), float(y)) for line in lines for x, y in zip(*line.get_data(), strict=True)]


def marks(axes, label):
    return [line.get_marker() for line in axes.lines if line.get_label() == label]


def test_a_seed_holds_fails_ties_does_not_count_or_comes_later():
    points = seed_points(judged())
    assert [(point.seed, point.says, point.counts) for point in points] == [
        (100, "holds", True), (101, "fails", True), (102, "holds", True), (103, "tie", True), (104, "dropped", False),
        (105, "later", False),
    ]  # fmt: skip
    assert [point.threshold for point in points] == [70.0, 50.0, math.inf, math.inf, 25.0, 80.0]


def test_never_stands_at_the_right_edge_as_an_arrow():
    study = made_up(words_recipe(), {key: value for key, value in FINAL.items() if key[2] < 2})
    drawing = verdict_drawing(study, [judged()])
    axes = drawing.figure.axes[0]
    low, high, never = axis_of(STEPS, seed_points(judged()))
    assert (low, high, never) == pytest.approx((6.0, 106.0, 102.0))
    assert axes.get_xlim() == pytest.approx((6.0, 106.0))
    assert drawn(axes, "left") == [(50, 0), (102, -1), (40, -2), (102, -3)]
    assert marks(axes, "left") == ["o", ">", "o", ">"]
    assert drawn(axes, "left, dropped") == [(30, -4)]
    assert drawn(axes, "left, later") == [(10, -5)]
    assert drawn(axes, "right") == [(80, 0), (60, -1), (102, -2), (102, -3)]
    assert marks(axes, "right") == ["D", "D", ">", ">"]
    assert drawn(axes, "threshold") == [(70, 0), (50, -1), (102, -2), (102, -3), (25, -4), (80, -5)]
    assert drawn(axes, "pair")[:2] == [(50, 0), (80, 0)]
    hollow = {line.get_label(): line.get_markerfacecolor() for line in axes.lines}
    assert hollow["left, dropped"] == hollow["right, later"] == "white"
    assert hollow["left"] != "white"
    assert [text.get_text() for text in axes.texts] == ["never"]
    shades = [path.get_extents() for shade in axes.collections for path in shade.get_paths()]
    assert [(shade.x0, shade.x1) for shade in shades][:2] == [(low, 70.0), (low, 50.0)]


def test_each_claim_has_a_row_with_its_number_as_threshold():
    study = made_up(words_recipe(), {key: value for key, value in FINAL.items() if key[2] < 2})
    recipe = words_recipe()
    fresh = made_up(recipe, {key: value for key, value in FINAL.items() if key[2] >= 100}, stage="final")
    study = type(study)(recipe, (*study.results, *fresh.results))
    judgements = judge_study(study)
    drawing = verdict_drawing(study, judgements)
    assert drawing.name == "tiny-verdicts"
    first, _, third, *_ = axes = drawing.figure.axes
    assert len(axes) == len(recipe.expectations) == 5
    assert drawn(first, "threshold") == [(0.7, -row) for row in range(5)]
    assert drawn(first, "left") == [(0.85, -row) for row in range(5)]
    assert drawn(first, "right") == []
    assert drawn(first, "pair")[:2] == [(0.85, 0), (0.7, 0)]
    assert first.get_title(loc="left") == "LSTM keeps it.\nAgrees: holds in 5 of 5 seeds (0.48 to 1.00)"
    assert first.get_xlabel().splitlines() == ["left: token accuracy on test_12 of lstm", "holds where left >= 0.7"]
    assert drawn(third, "right") == [(0.55, 0), (0.45, -1), (0.55, -2), (0.45, -3), (0.55, -4)]
    assert drawn(third, "threshold")[0] == (1.05, 0)
    table = list(csv.DictReader(drawing.table.splitlines()))
    assert {(line["claim"], line["seed"], line["left"], line["threshold"], line["says"]) for line in table[:2]} == {
        ("LSTM keeps it.", "100", "0.85", "0.7", "holds"),
        ("LSTM keeps it.", "101", "0.85", "0.7", "holds"),
    }
    assert len(table) == 4 * 5 + 2
    assert "GRU learns a little. " in drawing.alt


def test_the_legend_explains_the_marks_that_stand_there():
    left, threshold = "left side, one seed a line", "threshold: right side with margin"
    holds, other = "the relation holds where left lies here", "right side of the same seed"
    number = Expectation.from_json({"claim": "x", "left": {"arms": "lstm"}, "relation": ">=", "right": 0.7})
    values, thresholds = {100: 0.8, 101: 0.6}, {100: 0.7, 101: 0.7}
    plain = Judgement(number, "agrees", values, thresholds, "")
    assert explained(plain) == [left, threshold, holds]
    assert explained(dataclasses.replace(plain, dropped=(101,))) == [left, threshold, holds, "hollow: does not count"]
    steps = Judgement(STEPS, "agrees", {100: 200.0}, {100: math.inf}, "")
    assert explained(plain, steps) == [left, other, threshold, holds, "never"]


def explained(*judgements):
    figure = verdict_drawing(made_up(words_recipe(), {}), judgements).figure
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_without_a_measured_claim_there_is_no_figure():
    recipe = words_recipe()
    study = made_up(recipe, {})
    assert verdict_drawing(study, judge_study(study)) is None


def test_equal_values_do_not_look_far_apart():
    same = Expectation.from_json(words_recipe().expectations[0].to_json())
    points = seed_points(Judgement(same, "agrees", {100: 0.7, 101: 0.71}, {100: 0.7, 101: 0.7}, ""))
    low, high, _ = axis_of(same, points)
    assert high - low == pytest.approx(0.11)
    at_the_end = dataclasses.replace(same, right=1.0)
    points = seed_points(Judgement(at_the_end, "agrees", {100: 1.0, 101: 0.99}, {100: 1.0, 101: 1.0}, ""))
    assert axis_of(at_the_end, points)[:2] == pytest.approx((0.895, 1.005))
    at_zero = dataclasses.replace(same, right=0.0)
    points = seed_points(Judgement(at_zero, "agrees", {100: 0.0}, {100: 0.0}, ""))
    assert axis_of(at_zero, points)[:2] == pytest.approx((-0.005, 0.105))
    points = seed_points(Judgement(STEPS, "agrees", {100: 2000.0, 101: 2001.0}, {100: 2000.0, 101: 2000.0}, ""))
    low, high, _ = axis_of(STEPS, points)
    assert high - low == pytest.approx(220.11)


def test_a_reading_has_an_axis_with_both_of_its_values():
    left = {"arms": "lstm", "quantity": "seed_reading"}
    reading = Expectation.from_json({"claim": "LSTM passes.", "left": left, "relation": ">=", "right": 1})
    for value in (0.0, 1.0):
        points = seed_points(Judgement(reading, "agrees", {100: value}, {100: 1.0}, ""))
        assert axis_of(reading, points)[:2] == (-0.05, 1.05)
