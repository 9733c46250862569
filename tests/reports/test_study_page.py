"""The page of a sweep shows its verdicts, rows and figures, and stands alone."""

import csv
import json
import math
import re
import shutil

import pytest

from hf_memory.experiments.results import read_definition
from hf_memory.reports.report import write_report
from hf_memory.reports.vectors import inline
from hf_memory.studies.cells import failure_path
from hf_memory.studies.outcomes import find_records, read_study, write_record
from hf_memory.studies.plans import make_settings
from hf_memory.studies.watched import HistoryPoint, write_history
from tests.reports.rows import Page
from tests.reports.study_examples import CHANGED, FINAL, VALUES, recipe_of, stored, words_recipe
from tests.studies.sweep_examples import planned


def test_page_judges_and_shows_every_run(tmp_path):
    recipe = recipe_of()
    stored(tmp_path / "results" / "tiny", recipe, {**VALUES, ("gru", 1e-2, 0): 0.5})
    path = write_report(tmp_path / "results", tmp_path / "report")
    text = path.read_text()
    page = Page(text)
    assert "Tiny &lt;parity&gt;, profile cpu" in text
    assert "8 of 8 runs were measured. Sized by hidden" in text
    verdicts = {row[0]: [*row[1:3], *row[4:6]] for row in page.rows if len(row) == 8}
    assert verdicts["LSTM <keeps> it."] == ["leans (1 of 1)", "holds in 1 of 1 seeds (0.03 to 1.00)", "≥ 0.95", "0.7"]
    assert verdicts["GRU keeps it."] == ["leans (0 of 1)", "holds in 0 of 1 seeds (0.00 to 0.97)", "≥ 0.6", "0.7"]
    assert not re.search(r"https?://|<script src|<link", text)
    assert len(page.drawings) >= 4
    assert "<title>seed 0, left: 0.9500</title>" in text and "<title>seed 0, left: 0.6000</title>" in text
    assert page.addresses and all(address.startswith("#") for address in page.addresses)  # parts of the drawings
    files = {file.name for file in (tmp_path / "report").iterdir()}
    for name in {file.rpartition(".")[0] for file in files if file.endswith(".png")}:
        assert {f"{name}.png", f"{name}.svg", f"{name}.csv"} <= files
        assert inline((path.parent / f"{name}.svg").read_bytes()) in text
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
    assert "3 of 4 runs were measured." in text
    find_records(tmp_path)[0].write_text("{")
    with pytest.raises(ValueError, match="is no record of a sweep"):
        read_study(find_records(tmp_path)[0])


def test_an_unfinished_sweep_decides_nothing_and_says_what_sizes_were_reached(tmp_path):
    recipe = recipe_of(grid={}, sizing={"by": "params", "value": 1500})
    write_record(tmp_path, recipe, make_settings(recipe), planned(recipe))
    text = write_report(tmp_path, tmp_path / "report").read_text()
    assert "0 of 4 runs were measured." in text
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
    assert head == "| claim | published | verdict | seeds | left, by seed | right, by seed | measured |"
    verdict = next(line for line in lines if line.startswith("| LSTM <keeps> it. |"))
    assert verdict.startswith(
        "| LSTM <keeps> it. | LSTM is best | leans (1 of 1) | holds in 1 of 1 seeds (0.03 to 1.00) | ≥ 0.95 | 0.7 |"
    )
    assert "### At the chosen learning rates" in lines
    assert "### All runs" not in lines


FIVE = {
    "LSTM keeps it.": ("agrees", "agrees", "holds in 5 of 5 seeds (0.48 to 1.00)"),
    "GRU keeps it.": ("disagrees", "disagrees", "holds in 0 of 5 seeds (0.00 to 0.52)"),
    "LSTM is far better.": (
        *("smaller", "same direction, smaller"),
        "holds in 0 of 5 seeds (0.00 to 0.52); without its margin it agrees",
    ),
    "LSTM at its best rates keeps it.": ("leans", "leans (2 of 2)", "holds in 2 of 2 seeds (0.16 to 1.00)"),
    "GRU learns a little.": ("undecided", "not decided", "holds in 3 of 5 seeds (0.15 to 0.95)"),
}
"""Class, word and seeds of each claim."""


def test_each_word_has_its_class_and_its_seeds(tmp_path):
    stored(tmp_path / "results", words_recipe(), FINAL)
    text = write_report(tmp_path / "results", tmp_path / "report").read_text()
    rows = {row[0]: row for row in Page(text).rows if len(row) == 8}
    for claim, (kind, word, seeds) in FIVE.items():
        assert rows[claim][1:3] == [word, seeds]
        assert f'<td class="text {kind}">{word}</td>' in text
        assert re.search(rf"\.{kind} {{ color: var\(--{kind}\); }}", text)
        assert len(set(re.findall(rf"--{kind}: (#[0-9a-f]{{6}});", text))) == 2  # by day and by night
    assert rows["GRU learns a little."][4:6] == ["≥ 0.65, 0.55, 0.65, 0.55, 0.65", "0.6"]
    assert rows["LSTM at its best rates keeps it."][4] == "0.9, 0.9"
    assert "coin in every seed, 0.12 of them would agree by luck, and 0.12 disagree" in text  # four lines of 5 seeds
    alt = Page(text).drawings[0]
    assert alt.startswith("LSTM keeps it. Agrees: holds in 5 of 5 seeds (0.48 to 1.00). GRU keeps it. Disagrees: ")
    assert (tmp_path / "report" / "tiny-verdicts-cpu.png").is_file()


def test_claims_that_were_changed_are_listed_with_their_old_wording(tmp_path):
    stored(tmp_path / "results", words_recipe(), FINAL)
    path = write_report(tmp_path / "results", tmp_path / "report")
    old = CHANGED[0]
    assert [old["claim"], "not held", old["date"], old["why"]] in Page(path.read_text()).rows
    lines = (path.parent / "tiny-cpu.md").read_text().splitlines()
    assert f"| {old['claim']} | not held | {old['date']} | {old['why']} |" in lines
    stored(tmp_path / "other", words_recipe(changed=()), FINAL)
    assert "Changed and dropped" not in write_report(tmp_path / "other", tmp_path / "page").read_text()


def test_a_page_names_its_source_its_claim_and_what_differs(tmp_path):
    said = {"source": 'A. Author (2025), "A title"', "claim": "All is <kept>.", "paper": "Width 4 there, 8 here."}
    stored(tmp_path / "results", words_recipe(**said), FINAL)
    text = write_report(tmp_path / "results", tmp_path / "report").read_text()
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    assert facts == [
        ("Claim", "All is &lt;kept&gt;."),
        ("Source", "A. Author (2025), &#34;A title&#34;"),
        ("What differs from the source", "Width 4 there, 8 here."),
    ]
    assert text.index("<dl>") < text.index("<table")


def test_what_was_not_measured_stands_at_the_top_and_decides_nothing(tmp_path):
    recipe = words_recipe(evaluate={"points": 3})
    stored(tmp_path, recipe, {**FINAL, ("gru", 1e-3, 104): None})
    files = {read_definition(path)["cell"]: path for path in tmp_path.glob("*.jsonl")}
    cells = {cell.name: files.get(cell.digest) for cell in planned(recipe)}
    for name, path in cells.items():
        if path is not None and name != "lstm, rate 0.001, seed 102":
            write_history(tmp_path, path.stem, [HistoryPoint(3, "validation", {"token_accuracy": 0.9, "loss": 0.1})])
    crashed = next(result for result in read_study(find_records(tmp_path)[0]).results if not result.rows)
    failure_path(tmp_path, crashed.digest).write_text(json.dumps({"error": "ValueError: broken"}))
    text = write_report(tmp_path, tmp_path / "report").read_text()
    lost = cells["lstm, rate 0.001, seed 102"].name
    assert re.findall(r'<p class="problem">(.*?)</p>', text) == [
        f"tiny, profile cpu: {lost}: its evaluations during training are lost",
        "tiny, profile cpu: gru, rate 0.001, seed 104 crashed: ValueError: broken",
    ]
    assert "17 of 18 runs were measured; 1 crashed, which is no measurement." in text
    assert "count as chance" not in text
    rows = {row[0]: row for row in Page(text).rows if len(row) == 8}
    assert rows["LSTM keeps it."][1] == "agrees"
    assert rows["GRU keeps it."][1:3] == ["not decided", "runs of gru are missing"]


def test_a_lost_file_is_named_once_the_sweep_has_ended(tmp_path):
    stored(tmp_path, words_recipe(), {**FINAL, ("gru", 1e-3, 104): None})
    text = write_report(tmp_path, tmp_path / "report").read_text()
    assert re.findall(r'<p class="problem">(.*?)</p>', text) == [
        "tiny, profile cpu: gru, rate 0.001, seed 104 is missing"
    ]


def test_only_diverged_runs_count_as_chance(tmp_path):
    stored(tmp_path, words_recipe(), {**FINAL, ("gru", 1e-3, 104): math.nan})
    text = write_report(tmp_path, tmp_path / "report").read_text()
    assert "18 of 18 runs were measured; 1 of them diverged and count as chance." in text
    rows = {row[0]: row for row in Page(text).rows if len(row) == 8}
    assert rows["GRU keeps it."][4] == "≥ 0.65, 0.55, 0.65, 0.55, 0.542"


def test_rows_of_another_run_are_named_and_measure_nothing(tmp_path):
    recipe = words_recipe()
    stored(tmp_path, recipe, FINAL)
    runs = {(result.arm, result.cell.seed): result for result in read_study(find_records(tmp_path)[0]).results}
    one, other = (tmp_path / f"{runs['lstm', seed].digest}.jsonl" for seed in (100, 101))
    shutil.copy(one, other)
    text = write_report(tmp_path, tmp_path / "report").read_text()
    stranger = f"{other.name} holds rows of another run ({one.stem}, seed 100)"
    name, again = re.findall(r'<p class="problem">(.*?)</p>', text)
    assert name.endswith(f"{other.name}: holds cell {one.stem}, which is not its name")
    assert again == f"tiny, profile cpu: {stranger}"
    rows = {row[0]: row for row in Page(text).rows if len(row) == 8}
    assert rows["LSTM keeps it."][1:3] == ["not decided", "runs of lstm are missing"]
    runs = list(csv.DictReader((tmp_path / "report" / "tiny-cpu-cells.csv").read_text().splitlines()))
    outcome = next(run["outcome"] for run in runs if run["cell"] == other.stem)
    assert outcome.startswith("missing; ")
    assert outcome.endswith(stranger)


def test_a_damaged_record_is_named_and_the_other_sweeps_are_shown(tmp_path):
    (tmp_path / "one").mkdir()
    stored(tmp_path / "one", recipe_of(claim="It can be read."))
    (tmp_path / "broken.cpu.sweep.json").write_text("{}")
    text = write_report(tmp_path, tmp_path / "page").read_text()
    assert "broken.cpu.sweep.json is no record of a sweep" in text
    assert "It can be read." in text
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "broken.cpu.sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="no sweep of .* can be read"):
        write_report(tmp_path / "only", tmp_path / "other")
