"""Sweeps: two stages, one grid for all arms, and nothing run twice or lost."""

import dataclasses
import json
import math
import socket

import pytest
from typer.testing import CliRunner

import hf_memory.studies.sweep
from hf_memory.cli.app import app
from hf_memory.data.builder import load_dataset
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.provenance import read_run, weights_digest
from hf_memory.experiments.results import cell_path
from hf_memory.reports.report import write_report
from hf_memory.studies.cells import ATTEMPTS, Cell, failure_path, find_failures
from hf_memory.studies.judging import judge_study
from hf_memory.studies.outcomes import find_records, read_study, record_path
from hf_memory.studies.plans import make_settings, search_cells
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.studies.registration import check_registered
from hf_memory.studies.running import make_workers
from hf_memory.studies.sweep import dry_run, next_rates, run_sweep
from hf_memory.studies.verdicts import Tally
from hf_memory.studies.watched import CHECKPOINTS, checkpoint_path
from tests.studies.sweep_examples import InlineWorkers, planned, tiny_recipe
from tests.studies.test_outcomes import chosen
from tests.studies.test_recipes import FILES, write


@pytest.fixture
def workers(monkeypatch):
    """The sweep's processes, replaced by this one."""
    pool = InlineWorkers()
    monkeypatch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args: pool)
    return pool


def runs(cells: list[Cell]) -> set[tuple]:
    return {(cell.place["arm"], cell.stage, cell.learning_rate, cell.seed) for cell in cells}


def test_fresh_seeds_run_at_the_rate_that_validation_chose(tmp_path, workers):
    recipe = tiny_recipe()
    study = run_sweep(recipe, tmp_path, progress=False)
    assert runs(workers.ran[:4]) == {(arm, "search", rate, 0) for arm in ("lstm", "gru") for rate in (1e-3, 1e-2)}
    for place in study.places():
        choice = study.choice(place)
        own = {result.cell.learning_rate: result for result in study.at_place(place) if result.cell.stage == "search"}
        values = {rate: result.rows["validation"].value() for rate, result in own.items()}
        assert dict(choice.curve) == values
        losses = {rate: result.rows["validation"].value("loss") for rate, result in own.items()}
        best = max(values.values())
        error = (best * (1 - best) / own[choice.learning_rate].rows["validation"].measured().denominator) ** 0.5
        near = [
            rate for rate in values if values[rate] >= best - 1.9 * error
        ]  # the rule has 2, of a share nearer to 1/2
        assert choice.learning_rate == min(near, key=losses.__getitem__)
        (final,) = study.at_rate(place, "chosen")
        assert (final.cell.seed, final.cell.stage) == (1, "final")
        assert final.rows["test_8"].learning_rate == choice.learning_rate
        assert final.rows["test_8"].learning_rate_grid == (1e-3, 1e-2)
    assert len(workers.ran) == 6
    assert read_study(find_records(tmp_path)[0]).results == study.results


def test_a_second_sweep_runs_what_is_missing_and_nothing_else(tmp_path, workers):
    recipe = tiny_recipe(arms={"gru": {}})
    first = run_sweep(recipe, tmp_path, progress=False)
    workers.ran.clear()
    again = run_sweep(recipe, tmp_path, progress=False)
    assert workers.ran == []
    assert again.results == first.results
    lost = first.results[1]
    cell_path(tmp_path, lost.digest).unlink()
    assert run_sweep(recipe, tmp_path, progress=False).results[1].rows["test_8"].metrics == lost.rows["test_8"].metrics
    assert [cell.digest for cell in workers.ran] == [lost.digest]


def leave_claim(path):
    """What is left of the claim of a process that was killed."""
    path.with_name(f"{path.name}.lock").touch()
    record = f"filelock/2\npid=999999\nhost={socket.gethostname()}\nmode=lease\ntoken=0123\nduration=120.0\n"
    path.with_name(f"{path.name}.lease").write_text(record)


def test_what_a_process_left_that_was_killed_after_its_last_write_is_removed(tmp_path, workers):
    recipe = tiny_recipe(arms={"gru": {}})
    first = run_sweep(recipe, tmp_path, progress=False)
    finished = {path.name for path in tmp_path.iterdir()}
    paths = [cell_path(tmp_path, result.digest) for result in first.results]
    leave_claim(paths[0])
    workers.ran.clear()
    run_sweep(recipe, tmp_path, progress=False)
    assert workers.ran == []
    assert {path.name for path in tmp_path.iterdir()} == finished


def test_what_a_worker_left_that_outlived_its_sweep_for_a_while_is_removed(tmp_path, workers, monkeypatch):
    recipe = tiny_recipe(arms={"gru": {}})
    first = run_sweep(recipe, tmp_path, progress=False)
    finished = {path.name for path in tmp_path.iterdir()}
    cell_path(tmp_path, first.results[1].digest).unlink()
    run = workers.run

    def die(*args):
        leave_claim(cell_path(tmp_path, first.results[0].digest))
        return run(*args)

    monkeypatch.setattr(workers, "run", die)
    run_sweep(recipe, tmp_path, progress=False)
    assert {path.name for path in tmp_path.iterdir()} == finished


def test_a_damaged_file_is_kept_aside_and_its_cell_runs_again(tmp_path, workers):
    recipe = tiny_recipe(arms={"gru": {}}, seeds={"search": [0]})
    first = run_sweep(recipe, tmp_path, progress=False)
    path = cell_path(tmp_path, first.results[0].digest)
    path.write_text(path.read_text()[:-200])
    damaged = read_study(find_records(tmp_path)[0])
    assert any(path.name in problem for problem in damaged.problems)
    assert set(damaged.results[0].rows) == {"validation", "test_8"}
    workers.ran.clear()
    study = run_sweep(recipe, tmp_path, progress=False)
    assert [cell.digest for cell in workers.ran] == [path.stem]
    assert study.results[0].rows.keys() == first.results[0].rows.keys()
    assert path.with_name(f"{path.name}.damaged").exists()


def test_a_failed_cell_does_not_stop_the_rest_and_leaves_its_arm_open(tmp_path, workers, monkeypatch):
    recipe = tiny_recipe()
    broken = search_cells(recipe, make_settings(recipe), recipe.learning_rates)[0]
    run_into = hf_memory.studies.watched.WatchedExperiment.run_into

    def sometimes(self, results, beat):
        if (self.arm, self.training["learning_rate"]) == ("lstm", 1e-3):
            raise RuntimeError("no luck")
        return run_into(self, results, beat)

    monkeypatch.setattr(hf_memory.studies.watched.WatchedExperiment, "run_into", sometimes)
    study = run_sweep(recipe, tmp_path, progress=False)
    failed = [result for result in study.results if result.error]
    assert {result.error for result in failed} == {"RuntimeError: no luck"}
    assert failed[0].digest == broken.digest
    assert study.choice(failed[0].cell.place) is None
    # No rate was chosen for lstm, so it has no run with a fresh seed; gru has.
    assert sum(bool(result.rows) for result in study.results) + len(failed) == len(study.results) == 5
    assert [result.arm for result in study.results if result.cell.stage == "final"] == ["gru"]
    assert json.loads(failure_path(tmp_path, broken.digest).read_text())["name"] == broken.name
    monkeypatch.setattr(hf_memory.studies.watched.WatchedExperiment, "run_into", run_into)
    workers.ran.clear()
    run_sweep(recipe, tmp_path, progress=False)
    assert workers.ran == []
    assert all(not result.error for result in run_sweep(recipe, tmp_path, progress=False, retry_failed=True).results)


def test_the_next_look_is_taken_for_the_arms_of_open_claims_alone(tmp_path, workers):
    tie = {"arms": "gru", "split": "test_8"}
    claims = [
        {"claim": "LSTM is right now and then.", "left": {"arms": "lstm"}, "relation": ">=", "right": 0.0},
        {"claim": "GRU is better than itself.", "left": tie, "relation": ">", "right": tie},
    ]
    seeds = {"search": [0], "looks": [5, 10], "rows": "own"}
    recipe = tiny_recipe(expectations=claims, seeds=seeds, learning_rates=[1e-3])
    study = run_sweep(recipe, tmp_path, progress=False)
    fresh = {arm: sorted(c.seed for c in workers.ran if c.place["arm"] == arm and c.stage == "final")
             for arm in recipe.arms}  # fmt: skip
    assert fresh == {"lstm": list(range(100, 105)), "gru": list(range(100, 110))}
    assert [(j.verdict, j.tally) for j in judge_study(study)] == [
        ("agrees", Tally(5, 0, 5)), ("not decided", Tally(0, 0, 10)),
    ]  # fmt: skip
    # Each seed has rows and order of its own, the same for both arms; the search has those of its seed.
    assert {c.seed: c.experiment().specification.seed for c in workers.ran} == {s: s for s in (0, *range(100, 110))}
    assert {row.data_seed for result in study.results for row in result.rows.values()} == {0, *range(100, 110)}
    workers.ran.clear()
    assert run_sweep(recipe, tmp_path, progress=False) == study
    assert workers.ran == []


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(MemoryError("no memory"), ATTEMPTS), (OSError(28, "disk full"), ATTEMPTS), (ValueError("wrong"), 1)],
)
def test_a_crash_is_tried_again_a_bounded_number_of_times(tmp_path, workers, monkeypatch, error, attempts):
    recipe = tiny_recipe(arms={"gru": {}}, learning_rates=[1e-3], seeds={"search": [0]})
    run_into, tried = hf_memory.studies.watched.WatchedExperiment.run_into, []

    def broken(self, results, beat):
        tried.append(self.arm)
        raise error

    monkeypatch.setattr(hf_memory.studies.watched.WatchedExperiment, "run_into", broken)
    study = run_sweep(recipe, tmp_path, progress=False)
    assert len(tried) == attempts
    assert study.results[0].error == f"{type(error).__name__}: {error}"
    assert any("crashed" in problem for problem in study.problems)
    assert not study.results[0].is_known

    def once(self, results, beat):
        tried.append(self.arm)
        if len(tried) == 1:
            raise error
        return run_into(self, results, beat)

    tried.clear()
    monkeypatch.setattr(hf_memory.studies.watched.WatchedExperiment, "run_into", once)
    again = run_sweep(recipe, tmp_path, progress=False, retry_failed=True)
    if attempts > 1:
        assert (len(tried), again.results[0].error, again.problems) == (2, None, ())
        assert not find_failures(tmp_path)
    else:
        assert (len(tried), again.results[0].error) == (1, "ValueError: wrong")


def test_the_command_fails_where_cells_were_not_measured(tmp_path, workers, monkeypatch):
    def broken(self, results, beat):
        raise ValueError("wrong")

    monkeypatch.setattr(hf_memory.studies.watched.WatchedExperiment, "run_into", broken)
    result = CliRunner().invoke(app, ["sweep", str(write(tmp_path)), "--results", str(tmp_path / "rows")])
    assert result.exit_code == 1
    assert "1 cells, 1 failed and not measured" in result.output
    assert "ValueError: wrong" in result.output


def test_the_grid_grows_for_all_arms_where_one_best_rate_is_on_its_edge(tmp_path, workers, monkeypatch):
    claim = {"claim": "GRU learns.", "left": {"arms": "gru"}, "relation": ">=", "right": 0.9}
    rates, seeds = [1e-3, 2.15e-3], {"search": [0]}
    recipe = tiny_recipe(learning_rates=rates, extend={"up": 1e-2}, seeds=seeds, expectations=[claim])
    flat, better = {1e-3: 0.5, 2.15e-3: 0.5, 4.64e-3: 0.5}, {1e-3: 0.5, 2.15e-3: 0.6, 4.64e-3: 0.6}

    def made_up(recipe, rates, choices):
        assert len(choices) == 2
        return next_rates(recipe, rates, [chosen({rate: own[rate] for rate in rates}) for own in (flat, better)])

    monkeypatch.setattr(hf_memory.studies.sweep, "next_rates", made_up)
    study = run_sweep(recipe, tmp_path, progress=False)
    tried = {arm: {r.cell.learning_rate for r in study.results if r.arm == arm} for arm in recipe.arms}
    assert tried == {arm: {1e-3, 2.15e-3, 4.64e-3} for arm in recipe.arms}
    # A rate that the recipe's own rule added is no other plan; one that is written into it is.
    record = record_path(tmp_path, recipe)
    check_registered(recipe, record)
    with pytest.raises(ValueError, match="with another plan: learning_rates was"):
        check_registered(dataclasses.replace(recipe, learning_rates=(1e-3, 2.15e-3, 4.64e-3)), record)


@pytest.mark.parametrize(
    ("curve", "new"),
    [
        ({1e-3: 0.5, 2.15e-3: 0.7, 4.64e-3: 0.9}, [1e-2]),
        ({1e-3: 0.9, 2.15e-3: 0.7, 4.64e-3: 0.5}, [4.64e-4]),
        ({1e-3: 0.5, 2.15e-3: 0.9, 4.64e-3: 0.5}, []),
        ({1e-3: 0.5, 2.15e-3: 0.899, 4.64e-3: 0.9}, []),
        ({1e-3: 1.0, 2.15e-3: 1.0, 4.64e-3: 1.0}, []),
    ],
)
def test_a_flat_top_does_not_ask_for_more_rates(curve, new):
    recipe, choices = tiny_recipe(learning_rates=list(curve), extend={}), [chosen(curve)]
    assert next_rates(recipe, list(curve), choices) == new
    assert next_rates(tiny_recipe(learning_rates=list(curve)), list(curve), choices) == []
    narrow = tiny_recipe(learning_rates=list(curve), extend={"up": 5e-3, "down": 8e-4})
    assert next_rates(narrow, list(curve), choices) == []


def test_a_choice_on_the_edge_asks_for_more_rates_also_where_the_loss_made_it():
    rates = [1e-3, 2.15e-3, 4.64e-3]
    recipe, saturated = tiny_recipe(learning_rates=rates, extend={}), dict.fromkeys(rates, 1.0)
    tie = chosen(saturated, {1e-3: 0.1, 2.15e-3: 0.017, 4.64e-3: 0.001})
    assert (tie.learning_rate, tie.on_edge) == (4.64e-3, True)
    assert next_rates(recipe, rates, [tie]) == [1e-2]
    assert next_rates(recipe, rates, [chosen(saturated, {1e-3: 0.1, 2.15e-3: 0.005, 4.64e-3: 0.001})]) == []
    # The best rate by the metric lies on the edge, and the one that is chosen does not.
    inner = chosen({1e-3: 0.5, 2.15e-3: 0.90, 4.64e-3: 0.91}, {2.15e-3: 0.05})
    assert (inner.learning_rate, inner.on_edge) == (2.15e-3, False)
    assert next_rates(recipe, rates, [inner]) == []
    # Where every run diverged, no rate is better than another one.
    assert next_rates(recipe, rates, [chosen(dict.fromkeys(rates, math.nan))]) == []


def test_a_rate_searched_at_one_place_holds_at_the_others(tmp_path, workers):
    recipe = tiny_recipe(grid={"data.num_ones": [None, 3]}, search_on={"data.num_ones": None}, arms={"gru": {}})
    study = run_sweep(recipe, tmp_path, progress=False)
    searched, other = study.places()
    assert {result.cell.stage for result in study.at_place(other)} == {"final"}
    assert study.choice(other) == study.choice(searched)
    assert study.at_rate(other, "chosen")[0].cell.learning_rate == study.choice(searched).learning_rate


def test_arms_share_their_data_and_the_longest_run_sets_the_rows():
    recipe = tiny_recipe(arms={"lstm": {}, "gru": {"training": {"steps": 9}}})
    cells = planned(recipe)
    assert {cell.data["num_train"] for cell in cells} == {72}
    assert {cell.experiment().specification.seed for cell in cells} == {0}
    assert {cell.training["steps"] for cell in cells if cell.place["arm"] == "lstm"} == {3}


def test_dry_run_shows_sizes_and_runs_nothing(tmp_path):
    recipe = tiny_recipe(grid={"width": [8, 16]}, arms={"lstm": {}})
    lines = dry_run(recipe)
    assert [(line.stage, line.learning_rate, line.seed) for line in lines[:4]] == [
        ("search", 1e-3, 0), ("search", 1e-2, 0), ("search", 1e-3, 0), ("search", 1e-2, 0),
    ]  # fmt: skip
    assert [(line.stage, line.learning_rate, line.seed) for line in lines[4:]] == [("final", None, 1)] * 2
    assert {(line.hidden_size, line.parameters_per_block, line.state_bytes) for line in lines} == {
        (8, 584, 64), (16, 2192, 128),
    }  # fmt: skip
    result = CliRunner().invoke(app, ["sweep", str(write(tmp_path)), "--dry-run", "--workers", "2"])
    assert result.exit_code == 0
    assert "1 cells, about" in result.output
    assert not (tmp_path / "results").exists()


def test_the_command_runs_a_recipe_and_prints_its_verdicts(tmp_path, workers, monkeypatch):
    expectations = [{"claim": "LSTM is perfect.", "left": {"arms": "lstm"}, "relation": ">=", "right": 1.0}]
    path = write(tmp_path, expectations=expectations)
    arguments = ["sweep", str(path), "--profile", "smoke", "--results", str(tmp_path / "rows")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "not decided: LSTM is perfect. (the smoke profile proves nothing)" in result.output
    assert find_records(tmp_path / "rows")[0].name == "tiny.smoke.sweep.json"
    assert [cell.digest for cell in workers.ran] == [cell.digest for cell in planned(load_recipe(path, "smoke"))]


def test_depths_are_tried_in_order_until_an_arm_learns(tmp_path, workers):
    grid = {"depth": [1, 2, 4]}
    recipe = tiny_recipe(grid=grid, first_depth=0.0, learning_rates=[1e-3])
    study = run_sweep(recipe, tmp_path / "low", progress=False)
    assert {(cell.stage, cell.place["depth"]) for cell in workers.ran} == {("search", 1), ("final", 1)}
    assert {result.cell.fields["num_hidden_layers"] for result in study.results} == {1}
    workers.ran.clear()
    recipe = tiny_recipe(grid=grid, first_depth=1.0, learning_rates=[1e-3], arms={"gru": {}})
    run_sweep(recipe, tmp_path / "high", progress=False)
    assert [(cell.stage, cell.place["depth"]) for cell in workers.ran] == [
        ("search", 1), ("search", 2), ("search", 4), ("final", 4),
    ]  # fmt: skip
    assert [line.stage for line in dry_run(recipe)] == ["search"] * 3 + ["final"]


def test_a_recipe_judges_the_runs_of_another_one_and_trains_nothing(tmp_path, workers):
    claim = {"claim": "GRU is there.", "left": {"arms": "gru"}, "relation": ">=", "right": 0.0}
    other = tiny_recipe(name="phase", arms={"gru": {}}, runs_of="tiny", expectations=[claim])
    with pytest.raises(ValueError, match=r"2 of 2 runs are not in .*tiny/cpu, gru, rate 0.001, seed 0 .*sweep tiny"):
        run_sweep(other, tmp_path / "phase" / "cpu", progress=False)
    run_sweep(tiny_recipe(), tmp_path / "tiny" / "cpu", progress=False)
    workers.ran.clear()
    study = run_sweep(other, tmp_path / "phase" / "cpu", progress=False)
    assert workers.ran == []
    assert len(study.results) == 3
    record = find_records(tmp_path / "phase")[0]
    assert [path.name for path in record.parent.iterdir()] == ["phase.cpu.sweep.json"]
    assert read_study(record).results == study.results
    assert [judgement.verdict for judgement in judge_study(read_study(record))] == ["leans"]
    assert "GRU is there." in write_report(record.parent, tmp_path / "report").read_text()


def test_the_checkpoints_of_judged_seeds_stay_and_are_those_of_the_rows(tmp_path, workers):
    study = run_sweep(tiny_recipe(learning_rates=[1e-3]), tmp_path, progress=False)
    final = {result.digest: result for result in study.results if result.cell.stage == "final"}
    assert {path.name for path in (tmp_path / CHECKPOINTS).iterdir()} == set(final)
    for digest, result in final.items():
        folder = checkpoint_path(tmp_path, digest)
        assert weights_digest(folder) == result.rows["validation"].weights_sha256
        assert read_run(str(folder)).cell == digest
        specification = result.cell.experiment().specification
        splits = load_dataset("hf_memory/bit_parity", **specification.overrides)
        (row,) = evaluate_lengths(folder, specification, {"test_12": splits["test_12"]}, progress=False)
        assert row.metrics == result.rows["test_12"].metrics


def test_where_no_run_follows_the_search_its_checkpoints_stay(tmp_path, workers):
    study = run_sweep(tiny_recipe(seeds={"search": [0]}), tmp_path, progress=False)
    assert {path.name for path in (tmp_path / CHECKPOINTS).iterdir()} == {result.digest for result in study.results}
    assert {result.cell.stage for result in study.results} == {"search"}


def test_a_recipe_may_keep_no_checkpoints_and_the_full_profile_keeps_none_unasked(tmp_path, workers):
    run_sweep(tiny_recipe(learning_rates=[1e-3], checkpoints=False), tmp_path, progress=False)
    assert not (tmp_path / CHECKPOINTS).exists()
    assert not tiny_recipe(profile="full").keeps_checkpoints
    assert tiny_recipe(profile="full", checkpoints=True).keeps_checkpoints
    kept, dropped = (planned(tiny_recipe(checkpoints=flag))[-1] for flag in (True, False))
    assert (kept.keep, dropped.keep) == (True, False)
    assert kept.digest == dropped.digest


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend must be one of local, ray"):
        make_workers("slurm", None)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        make_workers("local", 0)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_recipe_runs_from_its_file_to_its_page(path, tmp_path, workers):
    recipe = load_recipe(path, "smoke")
    study = run_sweep(recipe, tmp_path, progress=False)
    assert [result.error for result in study.results] == [None] * len(planned(recipe))
    text = write_report(tmp_path, tmp_path / "report").read_text()
    assert text.count('class="text undecided"') == len(recipe.expectations)
    assert f"{len(study.results)} of {len(study.results)} runs were measured." in text
