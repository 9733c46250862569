"""Finished runs that other code made: named, run again, or accepted where today's code makes the same numbers."""

import dataclasses
import json
import math

import pytest
from typer.testing import CliRunner

import hf_memory.studies.sweep
from hf_memory.cli.app import app
from hf_memory.experiments.results import cell_path, read_definition, read_rows, write_cell
from hf_memory.studies.other_code import RECORD, OtherCode, read_accepted
from hf_memory.studies.sweep import run_sweep
from tests.studies.sweep_examples import InlineWorkers, tiny_recipe
from tests.studies.test_recipes import write

OLD = "0123456789abcdef"


@pytest.fixture
def workers(monkeypatch):
    """The sweep's processes, replaced by this one."""
    pool = InlineWorkers()
    monkeypatch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args: pool)
    return pool


@pytest.fixture
def swept(tmp_path, workers):
    """A recipe of one arm and two rates, its folder after a sweep, and the runs."""
    recipe = tiny_recipe(arms={"gru": {}}, seeds={"search": [0]})
    cells = [result.cell for result in run_sweep(recipe, tmp_path, progress=False).results]
    workers.ran.clear()
    return recipe, tmp_path, cells


def remake(folder, cell, **changes):
    """Write the rows of a cell anew, with other values of some fields."""
    path = cell_path(folder, cell.digest)
    rows = [dataclasses.replace(row, **changes) for row in read_rows(path)]
    return write_cell(folder, read_definition(path), rows)


def test_runs_of_other_code_are_named_and_stand(swept, workers, capsys):
    recipe, folder, cells = swept
    run_sweep(recipe, folder, progress=False)
    assert "other code" not in capsys.readouterr().err
    kept = remake(folder, cells[0], code=OLD).read_bytes()
    remake(folder, cells[1], code="")  # rows from before there were digests stand
    run_sweep(recipe, folder, progress=False)
    said = capsys.readouterr()
    assert f"1 finished runs were made by other code and stand as they are: {cells[0].name}" in said.out + said.err
    assert workers.ran == [] and cell_path(folder, cells[0].digest).read_bytes() == kept


def test_overwrite_runs_them_again_and_keeps_the_old_rows_aside(swept, workers):
    recipe, folder, cells = swept
    old = remake(folder, cells[0], code=OLD).read_bytes()
    run_sweep(recipe, folder, progress=False, other_code="overwrite")
    assert [cell.digest for cell in workers.ran] == [cells[0].digest]
    assert {row.code for row in read_rows(folder)} == {cells[1].experiment().code()}
    aside = cell_path(folder, cells[0].digest).with_suffix(".jsonl.superseded")
    assert aside.read_bytes() == old


def test_a_sample_that_makes_equal_numbers_lets_all_stand(swept, workers, capsys):
    recipe, folder, cells = swept
    for cell, seconds in zip(cells, (2.0, 1.0), strict=True):
        remake(folder, cell, code=OLD, train_seconds=seconds)
    run_sweep(recipe, folder, progress=False, other_code="accept")
    assert [cell.digest for cell in workers.ran] == [cells[1].digest]  # the shorter of the two
    (made,) = read_accepted(folder)
    assert (made.before, made.now, made.cell) == (OLD, cells[1].experiment().code(), cells[1].digest)
    assert made.equal and made.difference == 0 and made.same_weights
    assert "makes the same numbers and the same weights" in "".join(capsys.readouterr())
    assert {row.code for row in read_rows(folder)} == {OLD}
    workers.ran.clear()
    run_sweep(recipe, folder, progress=False, other_code="accept")
    assert workers.ran == [] and len(read_accepted(folder)) == 1
    assert "other code" not in "".join(capsys.readouterr())
    assert [path.name for path in folder.iterdir() if path.name.startswith(".again")] == []


def test_a_sample_that_makes_other_numbers_is_recorded_and_named(swept, workers, capsys):
    recipe, folder, cells = swept
    path = cell_path(folder, cells[0].digest)
    rows = read_rows(path)
    loss = rows[0].metrics["loss"]
    moved = dataclasses.replace(loss, numerator=loss.numerator + loss.denominator, value=loss.value + 1)
    rows[0] = dataclasses.replace(rows[0], metrics=rows[0].metrics | {"loss": moved})
    write_cell(folder, read_definition(path), [dataclasses.replace(row, code=OLD) for row in rows])
    run_sweep(recipe, folder, progress=False, other_code="accept")
    (made,) = read_accepted(folder)
    assert not made.equal and made.difference == pytest.approx(1)
    said = "".join(capsys.readouterr())
    assert "makes other numbers (the largest difference is 1)" in said and "1 finished runs were made by" in said


def test_a_sample_that_fails_today_is_not_equal(swept, workers, monkeypatch):
    recipe, folder, cells = swept
    remake(folder, cells[0], code=OLD)

    def fail(self, results, beat):
        raise RuntimeError("broken")

    monkeypatch.setattr("hf_memory.studies.watched.WatchedExperiment.run_into", fail)
    run_sweep(recipe, folder, progress=False, other_code="accept")
    (made,) = read_accepted(folder)
    assert not made.equal and math.isnan(made.difference) and not made.same_weights


def test_a_damaged_record_counts_as_none(swept, caplog):
    _, folder, cells = swept
    remake(folder, cells[0], code=OLD)
    for text in ("[", '[{"before": 1}]', json.dumps({"a": 1})):
        (folder / RECORD).write_text(text)
        other = OtherCode(folder)
        assert other.add(cells[0], read_rows(cell_path(folder, cells[0].digest)))
        assert "damaged record" in caplog.text
        caplog.clear()


def test_one_of_the_two_options_is_given(tmp_path):
    path = write(tmp_path)
    found = CliRunner().invoke(app, ["sweep", str(path), "--overwrite", "--accept-other-code"])
    assert found.exit_code != 0 and "give one of them" in str(found.exception)
