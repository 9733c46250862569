"""Parts of a sweep in jobs of their own: every cell once, and later stages when all is there."""

import itertools
import shutil

import pytest
from typer.testing import CliRunner

import hf_memory.studies.sweep
from hf_memory.cli.app import app
from hf_memory.studies.running import Shard, key
from hf_memory.studies.sweep import run_sweep
from tests.studies.sweep_examples import InlineWorkers, planned, tiny_recipe
from tests.studies.test_recipes import write


@pytest.fixture
def workers(monkeypatch):
    """The sweep's processes, replaced by this one."""
    pool = InlineWorkers()
    monkeypatch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args: pool)
    return pool


def test_shards_split_each_stage_and_meet_in_the_folder(tmp_path, monkeypatch, capsys):
    recipe, ran = tiny_recipe(), {}
    whole = run_sweep(recipe, tmp_path / "whole", progress=False)
    for turn, number in itertools.product((1, 2), (1, 2, 3)):
        pool = InlineWorkers()
        monkeypatch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args, pool=pool: pool)
        study = run_sweep(recipe, tmp_path / "parts", progress=False, shard=Shard(number, 3))
        ran[turn, number] = [cell.digest for cell in pool.ran]
        # The last of each stage sees all of it, and goes on.
        assert study.complete == ((turn, number) in [(2, 2), (2, 3)])
    search, final = (
        {r.digest for r in whole.results if r.cell.stage == stage} for stage in ("search", "final")
    )  # fmt: skip
    # Four cells of the search in three parts; the third met the final stage already, and ran its share of two.
    assert [len(ran[1, number]) for number in (1, 2, 3)] == [2, 1, 1]
    assert {digest for number in (1, 2, 3) for digest in ran[1, number]} == search
    assert ran[2, 3] == []
    assert sorted([*ran[2, 1], *ran[2, 2]]) == sorted(final)
    assert capsys.readouterr().out.count("open cells of other shards") == 4
    values = [[r.rows["test_8"].metrics for r in study.results] for study in (whole, study)]
    assert values[0] == values[1]


def test_shards_of_separate_folders_are_joined_by_copying(tmp_path, monkeypatch):
    recipe = tiny_recipe(seeds={"search": [0]})
    monkeypatch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args: InlineWorkers())
    for number in (1, 2):
        run_sweep(recipe, tmp_path / str(number), progress=False, shard=Shard(number, 2))
        shutil.copytree(tmp_path / str(number), tmp_path / "joined", dirs_exist_ok=True)
    pool = InlineWorkers()
    monkeypatch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args: pool)
    study = run_sweep(recipe, tmp_path / "joined", progress=False)
    assert (pool.ran, study.complete, len(study.results)) == ([], True, 4)


def test_the_longest_cells_are_dealt_out_first():
    cells = planned(tiny_recipe(arms={"lstm": {}, "gru": {}, "rnn": {}}, seeds={"search": [0, 1]}))
    seconds = {key(cell.place): {"lstm": 30.0, "gru": 10.0, "rnn": 20.0}[cell.place["arm"]] for cell in cells}
    parts = [Shard(number, 4).of(cells, seconds) for number in (1, 2, 3, 4)]
    assert sorted(cell.digest for part in parts for cell in part) == sorted(cell.digest for cell in cells)
    assert [[cell.place["arm"] for cell in part] for part in parts] == [["lstm", "rnn", "gru"]] * 4
    assert Shard(2, 4).of(cells[::-1], seconds) == parts[1]


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "1/0", "-1/2", "1/2/3", "a/b", ""])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="shard must be i/n with i from 1 to n"):
        Shard.parse(text)


def test_the_command_runs_a_shard_and_judges_nothing_while_others_are_open(tmp_path, workers):
    words = ["sweep", str(write(tmp_path)), "--profile", "smoke", "--results", str(tmp_path / "rows"), "--shard"]
    second, first = (CliRunner().invoke(app, [*words, part]) for part in ("2/2", "1/2"))
    assert (second.exit_code, first.exit_code, len(workers.ran)) == (0, 0, 1)
    assert "shard 2/2 is finished; open cells of other shards: 1; when those are" in second.output
    assert "not measured" not in second.output
    assert "1 cells, 0 failed and not measured" in first.output
