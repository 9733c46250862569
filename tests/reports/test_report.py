"""The page shows the numbers of the rows, stands alone, and names what is damaged."""

import csv
import os
import re
import subprocess
import sys

import pytest

from hf_memory.experiments.results import write_cell
from hf_memory.reports.report import FACTS, length_table, note, write_page, write_report
from tests.reports.rows import LENGTHS, Page, make_row, make_rows


def test_table_holds_means_ranges_levels_and_facts():
    rows = [row for seed in (0, 1) for row in make_rows("lstm", (1.0, 0.9, 0.8 - 0.2 * seed), seed)[1]]
    rows += make_rows("attention", (1.0, 0.6, 0.5))[1]
    lengths, lines = length_table(rows)
    assert lengths == [32, 64, 128]
    assert [line.name for line in lines] == ["lstm", "attention", "chance", "all zero"]
    assert dict(lines[0].cells) == {32: "1.000 (1.000, 1.000)", 64: "0.900 (0.900, 0.900)", 128: "0.700 (0.600, 0.800)"}
    assert dict(lines[1].cells) == {32: "1.000", 64: "0.600", 128: "0.500"}
    assert dict(lines[2].cells) == dict.fromkeys(LENGTHS, "0.500")
    assert dict(zip(FACTS, lines[0].facts, strict=True)) == {
        "reaches": "32", "seeds": "2", "parameters": "12,345", "state bytes": "1,024 to 4,096",
        "learning rate": "0.001", "steps": "200", "seconds": "2",
    }  # fmt: skip


def test_table_says_how_many_learning_rates_were_tried():
    _, rows = make_rows("lstm", (1.0, 0.9, 0.8), learning_rate_grid=(1e-4, 1e-3, 1e-2))
    assert length_table(rows)[1][0].facts[4] == "0.001 (best of 3)"


def test_page_stands_alone_and_shows_the_rows(tmp_path):
    for mixer, values in (("lstm", (1.0, 0.99, 0.98)), ("attention", (1.0, 0.6, 0.5))):
        write_cell(tmp_path / "results", *make_rows(mixer, values))
    path = write_report(tmp_path / "results", tmp_path / "report", heading="Runs <of> today")
    assert path == tmp_path / "report" / "index.html"
    text = path.read_text()
    page = Page(text)
    by_name = {row[0]: row[1:] for row in page.rows}
    assert by_name["mixer"] == ["32", "64", "128", *FACTS]
    assert by_name["lstm"][:3] == ["1.000", "0.990", "0.980"]
    assert by_name["chance"][:3] == ["0.500"] * 3
    assert "<caption" in text and "Lengths seen in training are shaded." in text
    assert "Runs &lt;of&gt; today" in text
    assert page.drawings == ["token_accuracy against test length"]
    assert page.addresses and all(address.startswith("#") for address in page.addresses)  # parts of the drawing
    assert not re.search(r"https?://|<script \w", text)
    name = "bit_parity_at_32_token_accuracy"
    assert (tmp_path / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    lines = list(csv.DictReader((tmp_path / "report" / f"{name}.csv").read_text().splitlines()))
    assert [(line["arm"], line["length"], float(line["value"])) for line in lines] == [
        ("attention", "32", 1.0), ("attention", "64", 0.6), ("attention", "128", 0.5),
        ("lstm", "32", 1.0), ("lstm", "64", 0.99), ("lstm", "128", 0.98),
    ]  # fmt: skip


def test_page_names_damaged_files_and_uses_the_rest(tmp_path):
    write_cell(tmp_path, *make_rows("lstm", (1.0, 0.99, 0.98)))
    damaged = write_cell(tmp_path, *make_rows("attention", (1.0, 0.6, 0.5)))
    damaged.write_text("")
    text = write_report(tmp_path, tmp_path / "report").read_text()
    assert f"{damaged.name} is empty" in text
    assert {"lstm"} == {row[0] for row in Page(text).rows} & {"lstm", "attention"}
    write_cell(tmp_path, *make_rows("lstm", (1.0, 0.99, 0.98))).write_text("")
    with pytest.raises(ValueError, match="no readable row"):
        write_report(tmp_path, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_mixed_data_versions_leave_no_page(tmp_path):
    rows = [row for version in ("1", "2") for row in make_rows("lstm", (1.0, 1.0, 1.0), data_version=version)[1]]
    with pytest.raises(ValueError, match="data_version of bit_parity must be one"):
        write_page(rows, tmp_path / "report", "Mixed")
    assert not (tmp_path / "report").exists()


def test_the_note_says_what_is_counted_and_how_it_was_trained():
    assert note([make_row(), make_row(length=64)]) == (
        "token accuracy on 400 targets per test length; data version 1.0.0+numpy2.3; training stopped: 200 steps; "
        "schedule: cosine."
    )


def test_pages_of_rows_need_no_models(tmp_path):
    write_cell(tmp_path / "rows", *make_rows("lstm", (1.0, 0.99, 0.98)))
    code = "import sys\nsys.modules.update(dict.fromkeys(['torch', 'transformers', 'datasets', 'huggingface_hub']))\n"
    code += "from hf_memory.reports.report import write_report\nprint(write_report('rows', 'page').is_file())"
    command = [sys.executable, "-W", "error", "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert (process.returncode, process.stdout) == (0, "True\n"), process.stderr
