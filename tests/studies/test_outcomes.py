"""What a sweep has found: the choice of a rate, and what is no measurement."""

import json
import math
import os
import socket
from pathlib import Path

import pytest

from hf_memory.experiments.results import cell_path, write_cell
from hf_memory.reports.report import write_report
from hf_memory.reports.study_page import runs_in_words
from hf_memory.studies.cells import failure_path, find_failures, read_failure, state_of
from hf_memory.studies.outcomes import assemble, choose, find_records, read_study, record_path, write_record
from hf_memory.studies.plans import make_settings, search_cells
from hf_memory.studies.replication import FOLDER, RECORD, read_replication
from hf_memory.studies.watched import HistoryPoint, history_path, read_history, write_history
from tests.studies.sweep_examples import made_up, made_up_row, tiny_recipe


def chosen(values, losses=None, seeds=(0, 1)):
    """The choice for one arm, from values by rate, the same in every seed or one for each."""
    rates = list(values)
    recipe = tiny_recipe(arms={"lstm": {}}, learning_rates=rates, seeds={"search": list(seeds)})
    by_run = {
        ("lstm", rate, seed): own[index] if isinstance(own, tuple) else own
        for rate, own in values.items()
        for index, seed in enumerate(seeds)
    }
    return choose(made_up(recipe, by_run, losses=losses).results, recipe.metric_name)


def test_a_tie_on_a_saturated_metric_is_decided_by_the_loss():
    choice = chosen({1e-3: 0.7, 2.15e-3: 1.0, 4.64e-3: 1.0}, {1e-3: 0.6, 2.15e-3: 0.017, 4.64e-3: 0.001})
    assert choice.learning_rate == 4.64e-3
    assert chosen({2.15e-3: 1.0, 4.64e-3: 1.0}, {2.15e-3: 0.001, 4.64e-3: 0.017}).learning_rate == 2.15e-3


def test_a_rate_that_is_clearly_worse_is_not_chosen_for_its_loss():
    # 200 targets a run: the standard error of 0.9 is 0.015 over two seeds.
    assert chosen({1e-3: 0.9, 1e-2: 0.85}, {1e-3: 0.5, 1e-2: 0.1}).learning_rate == 1e-3
    assert chosen({1e-3: 0.9, 1e-2: 0.89}, {1e-3: 0.5, 1e-2: 0.1}).learning_rate == 1e-2


def test_seeds_that_differ_widen_the_tie():
    assert chosen({1e-3: (1.0, 0.6), 1e-2: 0.7}, {1e-3: 0.5, 1e-2: 0.1}).learning_rate == 1e-2
    assert chosen({1e-3: (0.82, 0.78), 1e-2: 0.7}, {1e-3: 0.5, 1e-2: 0.1}).learning_rate == 1e-3


def test_a_diverged_run_is_at_chance_and_never_chosen():
    choice = chosen({1e-3: 0.51, 1e-2: math.nan}, {1e-3: 0.7})
    assert choice.learning_rate == 1e-3
    assert choice.curve == {1e-3: 0.51, 1e-2: 9 / 16}  # the best guess at 8 bits is right in 9 of 16
    assert chosen({1e-3: math.nan, 1e-2: 0.5}).learning_rate == 1e-2
    assert chosen({1e-3: math.nan, 1e-2: math.nan}).curve == {1e-3: 9 / 16, 1e-2: 9 / 16}


def test_a_state_that_outgrows_floats_on_one_test_counts_as_chance_there_alone():
    recipe = tiny_recipe(arms={"lstm": {}}, learning_rates=[1e-3], seeds={"search": [0]})
    splits = {"validation": 0.0, "test_8": 0.0, "test_12": math.nan}
    study = made_up(recipe, {("lstm", 1e-3, 0): 0.9}, splits)
    (result,) = study.results
    assert (result.has_diverged, result.overflows) == (False, ("test_12",))
    assert [result.value(split, recipe.metric_name) for split in splits] == [0.9, 0.9, 13 / 24]
    assert runs_in_words(study) == (
        "1 of 1 runs were measured; 1 left the range of floats on tests (test_12) and count as chance there."
    )


def finished(folder, history=True):
    """A folder with all cells of a small recipe, each at another value."""
    recipe = tiny_recipe(seeds={"search": [0, 1]}, evaluate={"points": 3})
    cells = search_cells(recipe, make_settings(recipe), recipe.learning_rates)
    for index, cell in enumerate(cells):
        experiment = cell.experiment()
        rows = [made_up_row(recipe, cell, split, 0.5 + index / 100) for split in ("validation", "test_8", "test_12")]
        write_cell(folder, experiment.definition(experiment.make_arguments("unused")), rows)
        if history:
            write_history(folder, cell.digest, [HistoryPoint(1, "validation", {recipe.metric_name: 0.5, "loss": 0.7})])
    return recipe, [(cell.digest, cell) for cell in cells]


def test_a_folder_is_read_back_without_problems(tmp_path):
    recipe, cells = finished(tmp_path)
    study = assemble(tmp_path, recipe, cells)
    assert study.problems == ()
    assert [result.value("validation", recipe.metric_name) for result in study.results] == pytest.approx(
        [0.5 + index / 100 for index in range(len(cells))]
    )


def test_a_lost_history_is_a_problem(tmp_path):
    recipe, cells = finished(tmp_path)
    history_path(tmp_path, cells[1][0]).unlink()
    study = assemble(tmp_path, recipe, cells)
    assert study.problems == (f"{cells[1][0]}.jsonl: its evaluations during training are lost",)
    with pytest.raises(ValueError, match="no looks at 'validation'"):
        study.results[1].judged_curve("validation", "loss")
    with pytest.raises(ValueError, match="'recall' was not measured"):
        study.results[0].judged_curve("validation", "recall")


def put(kind: str, path: Path) -> None:
    """Let something that is no regular file stand at a path."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has at most about a hundred letters
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
        os.chdir(here)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.with_name("gone"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "link"])
def test_what_is_no_file_is_named_and_passed_over(tmp_path, caplog, kind):
    recipe, cells = finished(tmp_path)
    write_record(tmp_path, recipe, make_settings(recipe), [cell for _, cell in cells], complete=True)
    (lost, _), (without, failed) = cells[0], cells[1]
    strange = [
        cell_path(tmp_path, lost),
        history_path(tmp_path, without),
        failure_path(tmp_path, lost),
        tmp_path / "other.cpu.sweep.json",
        tmp_path / FOLDER / RECORD,
    ]
    for path in strange:
        put(kind, path)
    assert read_history(tmp_path, without) == []
    assert read_failure(tmp_path, lost) is None
    assert state_of(tmp_path, failed) == "finished"
    assert find_failures(tmp_path) == []
    assert read_replication(tmp_path) is None
    study = read_study(record_path(tmp_path, recipe))
    assert [result.is_known for result in study.results] == [digest != lost for digest, _ in cells]
    assert any(f"{lost}.jsonl is " in problem for problem in study.problems)
    assert len(find_records(tmp_path)) == 2
    with pytest.raises(ValueError, match=r"other.cpu.sweep.json is no record of a sweep \(it is "):
        read_study(tmp_path / "other.cpu.sweep.json")
    page = write_report(tmp_path, tmp_path / "page").read_text()
    assert "other.cpu.sweep.json is no record of a sweep" in page
    named = {Path(record.args[0]).name for record in caplog.records if "is passed over" in record.msg}
    assert named == {path.name for path in strange[1:] if path.name != "other.cpu.sweep.json"} | {
        "other.cpu.sweep.json"
    }


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "[" * 100_000, '{"cell": "x"}', '{"cell": "other", "points": []}', "\xff",
        '{"cell": "CELL", "points": [{"steps": "1", "split": "validation", "values": {"loss": 1.0}}]}',
        '{"cell": "CELL", "points": [{"steps": 1, "split": "validation", "values": {"loss": "0.5"}}]}',
        '{"cell": "0123456789abcdef", "points": [{"steps": 1, "split": "validation", "values": {"loss": 0.5}}]}',
    ],
)  # fmt: skip
def test_a_damaged_history_is_none(tmp_path, caplog, text):
    cell = "fedcba9876543210"
    history_path(tmp_path, cell).write_text(text.replace("CELL", cell), encoding="latin-1")
    assert read_history(tmp_path, cell) == []
    assert f"damaged history: {history_path(tmp_path, cell)}" in caplog.text


def test_a_swapped_seed_file_is_none_of_the_cell(tmp_path):
    recipe, cells = finished(tmp_path)
    one, other = (cell_path(tmp_path, digest) for digest, _ in (cells[0], cells[4]))
    texts = one.read_text(), other.read_text()
    one.write_text(texts[1])
    other.write_text(texts[0])
    study = assemble(tmp_path, recipe, cells)
    assert [result.is_known for result in study.results] == [i not in (0, 4) for i in range(len(cells))]
    assert sum("rows of another run" in problem for problem in study.problems) == 2


def test_rows_of_another_seed_under_the_right_name_are_found(tmp_path):
    recipe, cells = finished(tmp_path)
    path = cell_path(tmp_path, cells[0][0])
    head, *rows = path.read_text().rstrip("\n").split("\n")
    path.write_text("\n".join([head, *(json.dumps({**json.loads(row), "seed": 7}) for row in rows)]) + "\n")
    study = assemble(tmp_path, recipe, cells)
    assert not study.results[0].is_known
    assert f"{path}: line 2 is no row (row: seed must be 0 as in the header, got 7)" in study.problems


def test_a_crash_is_no_measurement(tmp_path):
    recipe = tiny_recipe(seeds={"search": [0, 1]})
    study = made_up(recipe, {("lstm", 1e-3, 0): 0.9, ("lstm", 1e-2, 0): None, ("gru", 1e-3, 0): 0.9})
    crashed = next(result for result in study.results if result.error)
    assert not crashed.is_known
    assert study.choice({"arm": "lstm"}) is None
    with pytest.raises(ValueError, match="has no 'validation'"):
        crashed.value("validation", recipe.metric_name)
