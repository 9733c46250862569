"""The page of a sweep shows its verdicts, rows and figures, and stands alone."""

import base64
import csv
import re

import pytest

from hf_memory.reports.report import write_report
from hf_memory.studies.outcomes import find_records, read_study, write_record
from hf_memory.studies.plans import make_settings
from tests.reports.rows import Page
from tests.reports.study_examples import VALUES, recipe_of, stored
from tests.studies.sweep_examples import planned


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
