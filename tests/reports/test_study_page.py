"""The page of a sweep shows its verdicts, rows and figures, and stands alone."""

import base64
import csv
import dataclasses
import re

import pytest

from hf_memory.experiments.results import write_cell
from hf_memory.reports import study_tables
from hf_memory.reports.report import write_report
from hf_memory.reports.study_plots import draw_study, frontier_of
from hf_memory.reports.study_tables import cell_table, place_tables, tick_table
from hf_memory.storage import digest
from hf_memory.studies.outcomes import find_records, read_study, write_record
from hf_memory.studies.plans import make_settings
from tests.reports.test_report import Page
from tests.studies.sweep_examples import made_up, made_up_row, planned, tiny_recipe

CLAIMS = [
    {
        "claim": "LSTM <keeps> it.",
        "published": "LSTM is best",
        "left": {"arms": "lstm", "split": "test_12"},
        "relation": ">=",
        "right": 0.7,
    },
    {"claim": "GRU keeps it.", "left": {"arms": "gru", "split": "test_12"}, "relation": ">=", "right": 0.7},
]
VALUES = {("lstm", 1e-3, 0): 0.9, ("lstm", 1e-2, 0): 0.95, ("gru", 1e-3, 0): 0.6, ("gru", 1e-2, 0): None}
HISTORY = {"lstm": [(1, 0.5), (2, 0.7), (3, 0.9)], "gru": [(1, 0.5), (3, 0.6)]}


def recipe_of(**changes):
    values = {"seeds": {"search": [0]}, "expectations": CLAIMS, "grid": {"width": [8, 16]}, "title": "Tiny <parity>"}
    return tiny_recipe(**{**values, **changes})


def stored(folder, recipe, values=VALUES):
    """A sweep on disk, with rows under made-up digests."""
    write_record(folder, recipe, make_settings(recipe), planned(recipe), complete=True)
    text = find_records(folder)[0].read_text()
    for cell in planned(recipe):
        value = values[cell.place["arm"], cell.learning_rate, cell.seed]
        definition = {"cell": cell.digest}
        text = text.replace(cell.digest, digest(definition))
        if value is not None:
            rows = [made_up_row(recipe, cell, split, value) for split in ("validation", "test_8", "test_12")]
            write_cell(folder, definition, [dataclasses.replace(row, cell=digest(definition)) for row in rows])
    find_records(folder)[0].write_text(text)


def test_page_judges_and_shows_every_run(tmp_path):
    recipe = recipe_of()
    stored(tmp_path / "results" / "tiny", recipe, {**VALUES, ("gru", 1e-2, 0): 0.5})
    path = write_report(tmp_path / "results", tmp_path / "report")
    text = path.read_text()
    page = Page(text)
    assert "Tiny &lt;parity&gt;, profile cpu" in text
    assert "8 of 8 runs have ended; 0 failed" in text
    verdicts = {row[0]: row[2:5] for row in page.rows if len(row) == 8}
    assert verdicts["LSTM <keeps> it."] == ["agrees", "0.95", "0.7"]
    assert verdicts["GRU keeps it."] == ["disagrees", "0.6", "0.7"]
    assert not re.search(r"https?://|<script src|<link", text)
    images = [address for address in page.addresses if address.startswith("data:image/png;base64,")]
    assert len(images) == len(page.addresses) >= 4
    files = {file.name for file in (tmp_path / "report").iterdir()}
    for name in {file.rpartition(".")[0] for file in files if file.endswith(".png")}:
        assert {f"{name}.png", f"{name}.svg", f"{name}.csv"} <= files
        assert any(
            base64.b64decode(image.split(",", 1)[1]) == (path.parent / f"{name}.png").read_bytes() for image in images
        )
    runs = list(csv.DictReader((path.parent / "tiny-cpu-cells.csv").read_text().splitlines()))
    assert len(runs) == 8
    assert {(run["arm"], run["learning rate"], run["test_12"]) for run in runs} == {
        ("lstm", "0.001", "0.9000"), ("lstm", "0.01", "0.9500"), ("gru", "0.001", "0.6000"), ("gru", "0.01", "0.5000"),
    }  # fmt: skip
    again = write_report(tmp_path / "results", tmp_path / "again")
    assert again.read_text() == text


def test_rows_of_several_data_versions_are_refused_by_name(tmp_path):
    recipe = recipe_of(grid={})
    stored(tmp_path, recipe)
    path = sorted(tmp_path.glob("*.jsonl"))[0]
    path.write_text(path.read_text().replace('"data_version": "1"', '"data_version": "2"'))
    with pytest.raises(ValueError, match=f"data_version of one sweep must be one, got .*2: cells {path.stem}"):
        write_report(tmp_path, tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_damage_is_named_and_the_rest_is_used(tmp_path):
    recipe = recipe_of(grid={})
    stored(tmp_path, recipe, {**VALUES, ("gru", 1e-2, 0): 0.5})
    path = sorted(tmp_path.glob("*.jsonl"))[0]
    path.write_text("")
    text = write_report(tmp_path, tmp_path / "report").read_text()
    assert f"{path.name} is empty" in text
    assert "3 of 4 runs have ended" in text
    find_records(tmp_path)[0].write_text("{")
    with pytest.raises(ValueError, match="is no record of a sweep"):
        read_study(find_records(tmp_path)[0])


def test_tables_hold_chosen_rates_ticks_and_outcomes():
    study = made_up(recipe_of(fixed_learning_rate=1e-3), VALUES, history=HISTORY)
    chosen, fixed, ticks, tries = place_tables(study, "t")
    lines = {(line.cells[0].text, line.cells[1].text): [cell.text for cell in line.cells] for line in chosen.lines}
    assert lines["lstm", "8"][2] == "0.01 (best of 2, on the edge)"
    assert lines["gru", "8"][2] == "0.001 (best of 2, on the edge)"
    assert lines["lstm", "8"][-3:] == ["0.950", "0.950", "0.850"]
    assert lines["chance", ""][-3:] == ["0.500"] * 3
    assert [line.cells[0].text for line in chosen.lines if line.level] == ["chance", "majority"]
    assert next(line for line in fixed.lines if line.cells[0].text == "lstm").cells[2].text == "0.001 (best of 1)"
    assert [cell.text for cell in ticks.lines[0].cells] == [
        "lstm, width 8",
        "8",
        "✓ 1/1 (0.21, 1.00)",
        "✗ 0/1 (0.00, 0.79)",
    ]
    assert [cell.text for cell in tries.lines[0].cells] == ["lstm, width 8", "0.925", "0.950"]
    outcomes = {(line.cells[0].text, line.cells[3].text): line.cells[5].text for line in cell_table(study, "c").lines}
    assert outcomes["gru", "0.01"] == "ValueError: broken"
    assert outcomes["gru", "0.001"] == "finished"


def test_ticks_of_whole_sequences_show_the_accuracy_of_a_step():
    recipe = recipe_of(metric="sequence_accuracy", grid={}, arms={"lstm": {}})
    study = made_up(recipe, {("lstm", 1e-3, 0): 0.95, ("lstm", 1e-2, 0): 0.1})
    table = tick_table(study, "t")
    assert table.lines[0].cells[-1].text == (
        f"✗ 0/1 (0.00, 0.79), {0.85 ** (1 / 12):.4f} a step, independent {0.95**1.5:.3f}"
    )
    value = cell_table(study, "c").lines[0].cells[-2].text
    assert value == "0.8500 (0.794, 0.893)"


def test_figures_show_rates_state_width_and_training():
    study = made_up(recipe_of(plateau=0.3), VALUES, history=HISTORY)
    drawings = {drawing.name: drawing for drawing in draw_study(study)}
    assert list(drawings) == [
        "tiny-8-8-length", "tiny-rates", "tiny-state", "tiny-width", "tiny-training-validation",
        "tiny-training-validation-loss",
    ]  # fmt: skip
    loss = drawings["tiny-training-validation-loss"].figure.axes[0]
    assert loss.get_ylabel() == "loss on validation"
    assert [float(y) for y in loss.lines[0].get_ydata()] == pytest.approx([0.5, 0.3, 0.1])
    assert 0.69 in [line.get_ydata()[0] for line in loss.lines]
    assert "plateau" not in [text.get_text() for text in loss.get_legend().get_texts()]
    rates = list(csv.DictReader(drawings["tiny-rates"].table.splitlines()))
    assert len(rates) == 8
    failed = [line for line in rates if line["failed"] == "True"]
    assert {(line["arm"], float(line["value"])) for line in failed} == {
        ("gru, width 8", 9 / 16),
        ("gru, width 16", 9 / 16),
    }
    state = list(csv.DictReader(drawings["tiny-state"].table.splitlines()))
    assert {(line["arm"], line["state_bytes"], line["value"]) for line in state} == {
        ("lstm, width 8", "64", "0.95"), ("lstm, width 16", "96", "0.95"),
        ("gru, width 8", "64", "0.6"), ("gru, width 16", "96", "0.6"),
    }  # fmt: skip
    axes = drawings["tiny-rates"].figure.axes[0]
    marked = {line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1}
    assert {1e-4, 4.64e-4, 2.15e-3, 1e-2} <= marked
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"lstm, width 8", "gru, width 16", "chance"} <= set(names)
    curve = drawings["tiny-training-validation"].figure.axes[0].lines[0]
    assert list(curve.get_xdata()) == [1, 2, 3]
    assert "plateau" in [
        text.get_text() for text in drawings["tiny-training-validation"].figure.axes[0].get_legend().get_texts()
    ]


def test_frontier_holds_the_points_that_none_beats_with_less():
    assert frontier_of([(4, 0.5), (1, 0.2), (2, 0.1), (8, 0.4), (16, 0.9)]) == [(1, 0.2), (4, 0.5), (16, 0.9)]
    assert frontier_of([(1, 0.2), (1, 0.3)]) == [(1, 0.3)]


def test_runs_say_how_long_they_were_on_the_plateau():
    study = made_up(recipe_of(plateau=0.45, grid={}), VALUES, history={"lstm": [(10, 0.5), (60, 0.6), (100, 0.9)]})
    table = cell_table(study, "c")
    column = table.columns.index("on plateau")
    assert [line.cells[column].text for line in table.lines] == ["60%", "60%", "", ""]


def test_an_unfinished_sweep_decides_nothing_and_says_what_sizes_were_reached(tmp_path):
    recipe = recipe_of(grid={}, sizing={"by": "params", "value": 1500})
    write_record(tmp_path, recipe, make_settings(recipe), planned(recipe))
    text = write_report(tmp_path, tmp_path / "report").read_text()
    assert "0 of 4 runs have ended" in text
    assert text.count("the sweep has not come to its end") == 2
    found = re.search(r"params, reached of wanted: lstm: ([\d,]+) of 1,500; gru: ([\d,]+) of 1,500", text)
    assert all(abs(int(number.replace(",", "")) - 1500) <= 45 for number in found.groups())


def test_tables_are_written_as_markdown_too(tmp_path):
    recipe = recipe_of()
    stored(tmp_path / "results", recipe, {**VALUES, ("gru", 1e-2, 0): 0.5})
    write_report(tmp_path / "results", tmp_path / "report")
    text = (tmp_path / "report" / "tiny-cpu.md").read_text()
    lines = text.splitlines()
    assert "### Verdicts" in lines
    head = next(line for line in lines if line.startswith("| claim |"))
    assert head == "| claim | published | verdict | left, by seed | right, by seed | why | measured |"
    verdict = next(line for line in lines if line.startswith("| LSTM <keeps> it. |"))
    assert verdict.startswith("| LSTM <keeps> it. | LSTM is best | agrees | 0.95 | 0.7 | holds in 1 of 1 seeds |")
    assert "### At the chosen learning rates" in lines
    assert "### All runs" not in lines
    bar = study_tables.PageTable("x", "T", "N", ("a|b",), (study_tables.TableLine((study_tables.TableCell("c|d"),)),))
    assert study_tables.to_markdown(bar).splitlines()[-3:] == ["| a\\|b |", "|---|", "| c\\|d |"]
