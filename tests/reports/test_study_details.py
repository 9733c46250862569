"""Figures of what some studies measure: every number in them stands in a row or a history."""

import csv
import dataclasses
import math

import pytest

from hf_memory.experiments.metrics import MetricValue
from hf_memory.reports.study_details import detail_drawings, parameters_drawing
from hf_memory.reports.study_plots import draw_study
from hf_memory.reports.study_tables import readings_table
from hf_memory.studies.watched import HistoryPoint
from tests.studies.sweep_examples import made_up, tiny_recipe

RATE = 1e-3
SEEDS = {"search": [0, 1]}
BOTH = {"lstm": (0.9, 0.9), "gru": (0.6, 0.7)}


def study_of(values, history=None, metrics=None, **changes):
    """A study of one rate and two seeds; ``metrics`` are further values of every row."""
    recipe = tiny_recipe(**{"learning_rates": [RATE], "seeds": SEEDS, **changes})
    by_run = {(arm, RATE, seed): value for arm, own in values.items() for seed, value in enumerate(own)}
    study = made_up(recipe, by_run, history=history)
    if metrics is None:
        return study
    return dataclasses.replace(study, results=tuple(with_metrics(result, metrics) for result in study.results))


def with_metrics(result, metrics):
    further = {name: MetricValue(value, value * 100, 100) for name, value in metrics.items()}
    rows = {split: dataclasses.replace(row, metrics={**row.metrics, **further}) for split, row in result.rows.items()}
    return dataclasses.replace(result, rows=rows)


def drawn(study):
    return {drawing.name.removeprefix("tiny-"): drawing for drawing in detail_drawings(study)}


def table(drawing):
    return list(csv.DictReader(drawing.table.splitlines()))


def test_a_plain_study_has_none_of_these():
    assert drawn(study_of(BOTH)) == {}


def test_loss_stands_above_the_metric_where_a_bump_is_asked_for():
    history = {"lstm": [(1, 0.5), (2, 0.9)], "gru": [(1, 0.5), (2, 0.6)]}
    claim = {"claim": "x", "left": {"arms": "lstm", "quantity": "bump"}, "relation": ">=", "right": 0.3}
    looks = {"points": 3, "splits": ["validation"]}
    drawing = drawn(study_of(BOTH, history, expectations=[claim], evaluate=looks))["course"]
    loss, metric = drawing.figure.axes[0], drawing.figure.axes[2]
    assert (loss.get_ylabel(), metric.get_ylabel()) == ("loss (nats)", "token accuracy")
    assert loss.get_title(loc="left") == "lstm"
    assert [float(y) for y in loss.lines[0].get_ydata()] == pytest.approx([0.5, 0.1])
    assert metric.get_ylim()[1] > 1
    assert len(table(drawing)) == 2 * 2 * 2 * 2


def test_both_times_of_testing_stand_in_the_panel_of_their_arm():
    history = {"lstm": [(1, 0.5), (2, 0.86)], "gru": [(1, 0.5), (2, 0.6)]}
    study = study_of(BOTH, history, evaluate={"points": 3, "crossing": 0.8})
    tests = [HistoryPoint(2, name, {"token_accuracy": value}) for name, value in (("test_8", 0.85), ("test_12", 0.4))]
    results = [dataclasses.replace(r, history=[*r.history, *tests]) if r.arm == "lstm" else r for r in study.results]
    drawing = drawn(dataclasses.replace(study, results=tuple(results)))["crossing"]
    lines = {(line["arm"], line["time"], line["length"]): line["value"] for line in table(drawing)}
    assert lines["lstm", "at the first crossing", "12"] == "0.4"
    assert float(lines["lstm", "at the end", "12"]) == pytest.approx(0.8)
    assert ("gru", "at the first crossing", "12") not in lines  # it never crossed
    assert [axes.get_title(loc="left") for axes in drawing.figure.axes] == ["lstm", "gru"]
    assert "passed 0.8 on validation" in drawing.caption
    names = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert names == ["at the end", "at the first crossing"]


def test_what_decays_leave_stands_beside_the_curve():
    drawing = drawn(study_of(BOTH, metrics={"slowest_decay": 0.8, "median_decay": 0.1}))["decays"]
    assert [axes.get_title(loc="left") for axes in drawing.figure.axes] == [
        "token accuracy", "left of the slowest number", "left of the middle number",
    ]  # fmt: skip
    found = {(line["metric"], line["length"]): float(line["value"]) for line in table(drawing) if line["arm"] == "gru"}
    assert found["slowest_decay", "12"] == 0.8
    assert found["median_decay", "8"] == 0.1


def test_stale_answers_stand_over_rate_and_age_with_a_row_for_each_training_set_and_test():
    metrics = {"stale_at_age_0": 0.1, "stale_at_age_4_to_7": 0.4, "stale_at_rate_1": 0.2}
    evaluate = {"points": 0, "slices": {"stale": ["age", "rate"]}}
    drawing = drawn(study_of(BOTH, metrics=metrics, evaluate=evaluate, grid={"data.num_ones": [2, 4]}))["stale-slices"]
    titles = [axes.get_title(loc="left") for axes in drawing.figure.axes[::2]]
    assert titles == [f"num_ones {ones}, {length} tokens" for ones in (2, 4) for length in (8, 12)]
    first, below = drawing.figure.axes[0], drawing.figure.axes[-2]
    assert below.get_xlabel() == "events since the binding"
    assert [text.get_text() for text in below.get_xticklabels()] == ["0", "4-7"]
    assert drawing.figure.axes[-1].get_xlabel() == "updates of the key in its row"
    assert [float(y) for y in first.lines[0].get_ydata()] == pytest.approx([0.1, 0.4])
    assert len(table(drawing)) == 2 * 2 * 2 * 2 * 3
    assert {f"{line['data']}, {line['length']} tokens" for line in table(drawing)} == set(titles)
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == ["lstm", "gru"]


def test_errors_of_the_longest_test_stand_under_its_length():
    study = study_of(BOTH, metrics={"stale_at_age_0": 0.1}, evaluate={"points": 0, "slices": {"stale": ["age"]}})

    def longer(result):
        row = result.rows["test_12"]
        row = dataclasses.replace(row, metrics={**row.metrics, "stale_at_age_0": MetricValue(0.4, 40, 100)})
        return dataclasses.replace(result, rows={**result.rows, "test_12": row})

    drawing = drawn(dataclasses.replace(study, results=tuple(map(longer, study.results))))["stale-slices"]
    found = {line["length"]: float(line["value"]) for line in table(drawing)}
    assert found == {"8": 0.1, "12": 0.4}


def test_shares_of_few_answers_are_told_and_not_drawn():
    study = study_of(BOTH, metrics={"stale_at_age_0": 0.1}, evaluate={"points": 0, "slices": {"stale": ["age"]}})
    few = {"stale_at_age_1": MetricValue(1.0, 19, 19), "stale_at_age_2_to_3": MetricValue(0.2, 4, 20)}

    def rarer(result):
        rows = {split: dataclasses.replace(r, metrics={**r.metrics, **few}) for split, r in result.rows.items()}
        return dataclasses.replace(result, rows=rows)

    drawing = drawn(dataclasses.replace(study, results=tuple(map(rarer, study.results))))["stale-slices"]
    axes = drawing.figure.axes[-1]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "2-3"]
    assert axes.get_ylim()[1] < 0.3
    assert {(line["from"], line["answers"]) for line in table(drawing)} == {("0", "100"), ("1", "19"), ("2", "20")}


def test_width_and_depth_share_an_axis_of_parameters():
    study = study_of({"lstm": (0.9, 0.9), "gru": (0.3, 0.9)}, grid={"width": [8, 16], "depth": [1, 2]})
    drawing = parameters_drawing(study, "", study.results)
    axes = drawing.figure.axes[0]
    assert drawing.figure.get_supxlabel() == "parameters of the blocks, without embeddings"
    assert [panel.get_title(loc="left") for panel in drawing.figure.axes] == ["lstm", "gru"]
    curves = {line.get_label(): line for line in axes.get_lines()}
    assert {"1", "2"} <= set(curves)
    assert curves["1"].get_linestyle() != curves["2"].get_linestyle()
    other = {line.get_label(): line for line in drawing.figure.axes[1].get_lines()}
    assert math.isnan(other["1"].get_ydata()[0])  # two kinds of seeds have no mean
    assert "tiny-parameters" in {drawing.name for drawing in draw_study(study)}


def test_both_readings_of_three_in_five_are_counts():
    metrics = {"exact_offsets": 0.95, "rows_exact": 0.5, "rows_3_of_5": 0.6}
    found = readings_table(study_of(BOTH, metrics=metrics), "readings")
    assert found.columns == ("arm", "test_8", "test_12")
    assert [cell.text for cell in found.lines[0].cells] == ["lstm", "✓ 2/2 | 2/2", "✓ 2/2 | 2/2"]
    few = study_of(BOTH, metrics={**metrics, "exact_offsets": 0.8})
    assert readings_table(few, "readings").lines[0].cells[1].text == "✗ 0/2 | 2/2"
    assert readings_table(study_of(BOTH), "readings") is None
