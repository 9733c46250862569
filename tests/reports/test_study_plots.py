"""Figures of a sweep show rates, state, width and training, with the numbers behind them."""

import csv
import math

import pytest

from hf_memory.reports.study_plots import draw_study, frontier_of
from tests.reports.study_examples import HISTORY, VALUES, recipe_of
from tests.studies.sweep_examples import made_up


def test_figures_show_rates_state_width_and_training():
    study = made_up(recipe_of(plateau=0.3), {**VALUES, ("gru", 1e-2, 0): math.nan}, history=HISTORY)
    drawings = {drawing.name: drawing for drawing in draw_study(study)}
    assert list(drawings) == [
        "tiny-8-8-length", "tiny-rates", "tiny-state", "tiny-width", "tiny-training-validation",
        "tiny-training-validation-loss",
    ]  # fmt: skip
    loss = drawings["tiny-training-validation-loss"].figure.axes[0]
    assert loss.get_ylabel() == "loss on validation (nats)"
    assert [float(y) for y in loss.lines[0].get_ydata()] == pytest.approx([0.5, 0.3, 0.1])
    assert 0.69 in [line.get_ydata()[0] for line in loss.lines]
    assert "plateau" not in [text.get_text() for text in loss.texts]
    rates = list(csv.DictReader(drawings["tiny-rates"].table.splitlines()))
    assert len(rates) == 8
    diverged = [line for line in rates if line["diverged"] == "True"]
    assert {(line["arm"], float(line["value"])) for line in diverged} == {
        ("gru, width 8", 9 / 16),
        ("gru, width 16", 9 / 16),
    }
    state = list(csv.DictReader(drawings["tiny-state"].table.splitlines()))
    assert {(line["arm"], line["state_bytes"], line["value"]) for line in state} == {
        ("lstm, width 8", "64", "0.95"), ("lstm, width 16", "96", "0.95"),
        ("gru, width 8", "64", "0.6"), ("gru, width 16", "96", "0.6"),
    }  # fmt: skip
    axes = drawings["tiny-rates"].figure.axes[0]
    assert axes.get_xlabel() == "peak learning rate"
    names = [text.get_text() for text in axes.texts]
    assert {"lstm, width 8", "gru, width 16", "chance"} <= set(names)
    curve = drawings["tiny-training-validation"].figure.axes[0].lines[0]
    assert list(curve.get_xdata()) == [1, 2, 3]
    assert "plateau" in [text.get_text() for text in drawings["tiny-training-validation"].figure.axes[0].texts]


@pytest.mark.parametrize(("rates", "shown"), [((1e-4, 1e-2), (1e-4, 4.64e-4, 2.15e-3, 1e-2)), ((1e-3, 1e-2), ())])
def test_the_four_points_are_shown_where_the_grid_spans_them(rates, shown):
    values = {(arm, rate, seed): 0.9 for arm in ("lstm", "gru") for rate in rates for seed in (0, 1, 2, 3, 4, 5)}
    study = made_up(recipe_of(learning_rates=list(rates), grid={}), values)
    axes = next(drawing for drawing in draw_study(study) if drawing.name == "tiny-rates").figure.axes[0]
    marked = {float(line.get_xdata()[0]) for line in axes.lines if len(set(line.get_xdata())) == 1}
    assert marked == set(shown)
    assert ("Arora" in axes.get_xlabel()) == bool(shown)


def test_frontier_holds_the_points_that_none_beats_with_less():
    assert frontier_of([(4, 0.5), (1, 0.2), (2, 0.1), (8, 0.4), (16, 0.9)]) == [(1, 0.2), (4, 0.5), (16, 0.9)]
    assert frontier_of([(1, 0.2), (1, 0.3)]) == [(1, 0.3)]


def test_a_crashed_run_and_a_lost_history_are_drawn_nowhere():
    study = made_up(recipe_of(grid={}), VALUES, history={"lstm": HISTORY["lstm"]})
    drawings = {drawing.name: drawing for drawing in draw_study(study)}
    rates = list(csv.DictReader(drawings["tiny-rates"].table.splitlines()))
    assert [(line["arm"], line["learning_rate"], line["diverged"]) for line in rates] == [
        ("lstm", "0.001", "False"), ("lstm", "0.01", "False"), ("gru", "0.001", "False"),
    ]  # fmt: skip
    assert {row["arm"] for row in csv.DictReader(drawings["tiny-8-8-length"].table.splitlines())} == {"lstm"}
    curves = list(csv.DictReader(drawings["tiny-training-validation"].table.splitlines()))
    assert {(line["arm"], line["steps"]) for line in curves} == {("lstm", "1"), ("lstm", "2"), ("lstm", "3")}
