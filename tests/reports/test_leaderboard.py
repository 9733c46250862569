"""The table of all models holds one line for each, with what a reader asks for first."""

import csv

from hf_memory.reports.leaderboard import COLUMNS, leaderboard, write_leaderboard
from tests.reports.rows import Page, make_row, make_rows


def rows():
    found = [row for seed in (0, 1) for row in make_rows("lstm", (1.0, 0.95, 0.8 - 0.2 * seed), seed)[1]]
    found += make_rows("attention", (1.0, 0.6, 0.75))[1]
    return [*found, make_row("lru", 64, task="dyck", tokens=None, seed=None, learning_rate=None)]


def test_each_model_of_each_study_has_a_line_and_the_best_of_a_task_is_first():
    table = leaderboard(rows())
    assert table.columns == COLUMNS
    lines = [dict(zip(COLUMNS, line, strict=True)) for line in table.texts()]
    assert [(line["task"], line["model"]) for line in lines] == [
        ("bit_parity", "attention"), ("bit_parity", "lstm"), ("dyck", "lru"),
    ]  # fmt: skip
    assert lines[1] == {
        "model": "lstm", "task": "bit_parity", "at length": "128", "value": "0.700 (0.600, 0.800)",
        "reaches": "64", "chance": "0.500", "state bytes": "4,096", "parameters": "12,345",
        "training FLOPs": "2.21e+09", "learning rate": "0.001", "seeds": "2", "metric": "token accuracy",
        "study": lines[1]["study"],
    }  # fmt: skip
    assert (lines[2]["training FLOPs"], lines[2]["learning rate"]) == ("unknown", "unknown")
    key = dict(zip(COLUMNS, table.lines[1].cells, strict=True))["training FLOPs"].key
    assert key == 6 * 900 * 409_600


def test_the_page_holds_the_table_the_filters_and_each_study(tmp_path):
    path = write_leaderboard(rows(), tmp_path, "All <of> it")
    text = path.read_text()
    names = [row[0] for row in Page(text).rows]
    assert names.count("attention") == names.count("lru") == 2
    assert text.count("<option>") == 2
    assert text.count('<input type="number"') == 3
    assert "All &lt;of&gt; it" in text
    lines = list(csv.DictReader((tmp_path / "leaderboard.csv").read_text().splitlines()))
    assert [line["model"] for line in lines] == ["attention", "lstm", "lru"]
