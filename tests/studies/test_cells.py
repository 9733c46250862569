"""One cell: the run behind it, its history, its rule to stop, and how it ends."""

import dataclasses
import math
import tempfile

import numpy as np
import pytest

import hf_memory.studies.watched
from hf_memory.data.folders import working_folder
from hf_memory.experiments.results import cell_path, read_definition, read_rows
from hf_memory.storage import claim
from hf_memory.studies.cells import find_failures, read_failure, run_cell, run_cells, state_of
from hf_memory.studies.outcomes import Result, assemble
from hf_memory.studies.watched import WORK, as_diverged, read_history
from tests.studies.sweep_examples import made_up_row, planned, tiny_recipe

METRIC = "token_accuracy"


def cell_of(**changes):
    return planned(tiny_recipe(**changes))[0]


def test_a_cell_leaves_its_rows_under_its_digest_and_is_not_run_again(tmp_path):
    cell = cell_of(training={"steps": 3, "batch_size": 8, "clip": 1.0})
    assert state_of(tmp_path, cell) == "open"
    assert run_cell(cell, tmp_path) == ("trained", "")
    assert state_of(tmp_path, cell) == "finished"
    assert run_cell(cell, tmp_path) == ("finished before", "")
    rows = read_rows(cell_path(tmp_path, cell.digest))
    assert [row.split for row in rows] == ["validation", "test_8", "test_12"]
    assert {(row.arm, row.seed, row.learning_rate, row.steps, row.tokens) for row in rows} == {
        ("lstm", 0, 1e-3, 3, 192)
    }
    assert rows[0].schedule == "cosine, linear warm-up over 10% of the steps, gradients clipped at 1, weight decay 0.1"
    assert rows[0].stop_rule == "3 steps"
    assert read_definition(cell_path(tmp_path, cell.digest))["training"]["max_grad_norm"] == 1.0
    assert {path.name for path in tmp_path.iterdir()} == {f"{cell.digest}.jsonl"}


def test_what_killed_runs_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    first, second = planned(tiny_recipe(arms={"lstm": {}}))[:2]

    def left() -> list[str]:
        with working_folder(tmp_path / "tmp", WORK) as folder:
            pass
        folder.mkdir()
        (folder / ".lock").touch()
        (folder / "model.safetensors").touch()
        return [path.name for path in (tmp_path / "tmp").iterdir()]

    assert left()[0].startswith(f".{WORK}-")
    elsewhere = tmp_path / "tmp" / f".{WORK}-{'0' * 32}"  # of another host
    elsewhere.mkdir()
    (elsewhere / ".lock").touch()
    with working_folder(tmp_path / "tmp", WORK) as other:  # of a run at work
        left()
        assert run_cell(first, tmp_path) == ("trained", "")
        assert {path.name for path in (tmp_path / "tmp").iterdir()} == {other.name, elsewhere.name}
        left()
        assert run_cells([dataclasses.replace(first, seed=5), second], tmp_path) == [("trained", "")] * 2
        assert {path.name for path in (tmp_path / "tmp").iterdir()} == {other.name, elsewhere.name}


def test_looking_at_a_run_does_not_change_it(tmp_path):
    looked = cell_of(evaluate={"points": 3, "splits": ["validation", "test_12"], "rows": 32})
    plain = cell_of()
    assert looked.digest != plain.digest
    for cell in (looked, plain):
        run_cell(cell, tmp_path)
    seen, unseen = (read_rows(cell_path(tmp_path, cell.digest)) for cell in (looked, plain))
    assert [row.weights_sha256 for row in seen] == [row.weights_sha256 for row in unseen]
    assert [row.metrics for row in seen] == [row.metrics for row in unseen]
    history = read_history(tmp_path, looked.digest)
    assert [(point.steps, point.split) for point in history] == [
        (step, split) for step in (1, 2, 3) for split in ("validation", "test_12")
    ]
    last = {point.split: point.values for point in history if point.steps == 3}
    by_split = {row.split: row for row in seen}
    assert last["validation"][METRIC] == by_split["validation"].value(METRIC)
    assert last["test_12"]["loss"] == pytest.approx(by_split["test_12"].value("loss"))
    assert read_history(tmp_path, plain.digest) == []


@pytest.mark.parametrize(
    ("rule", "steps"),
    [({"stop_at": 0.01}, 1), ({"stop_at": 1.0}, 4), ({"give_up": [0.99, 0.5]}, 2), ({"give_up": [0.01, 0.5]}, 4)],
)
def test_rules_end_a_run_at_an_evaluation(tmp_path, rule, steps):
    cell = cell_of(training={"steps": 4, "batch_size": 8, **rule}, evaluate={"points": 3, "rows": 32})
    run_cell(cell, tmp_path)
    row = read_rows(tmp_path)[0]
    assert row.steps == steps
    assert row.stop_rule.startswith("4 steps or ")
    assert row.stop_rule.endswith("looked at 3 log-spaced steps")


def test_a_failed_cell_is_recorded_and_not_tried_again(tmp_path):
    cell = dataclasses.replace(cell_of(), evaluate={"points": 1, "splits": ["nowhere"], "rows": 8})
    outcome, text = run_cell(cell, tmp_path)
    assert outcome == "failed"
    assert text.startswith("ValueError: evaluate: 'nowhere' is no split")
    assert state_of(tmp_path, cell) == "failed"
    assert read_failure(tmp_path, cell.digest) == text
    assert run_cell(cell, tmp_path) == ("failed before", text)
    assert len(find_failures(tmp_path)) == 1
    find_failures(tmp_path)[0].write_text("{")
    assert read_failure(tmp_path, cell.digest) == "its record is damaged"


def test_a_cell_that_is_claimed_is_left_alone(tmp_path):
    cell = cell_of()
    with claim(cell_path(tmp_path, cell.digest)) as mine:
        assert mine
        assert run_cell(cell, tmp_path) == ("claimed elsewhere", "")


def test_a_cell_that_was_taken_over_while_it_ran_leaves_nothing(tmp_path):
    cell = cell_of(evaluate={"points": 2, "splits": ["validation"], "rows": 8})
    lease = cell_path(tmp_path, cell.digest).with_suffix(".jsonl.lease")
    record = "filelock/2\npid=1\nhost=elsewhere\nmode=lease\ntoken=0123\nduration=120.0\n"
    assert run_cell(cell, tmp_path, lambda steps: lease.write_text(record)) == ("claimed elsewhere", "")
    assert state_of(tmp_path, cell) == "open"
    assert {path.name for path in tmp_path.iterdir()} <= {lease.name}


def test_a_diverged_run_ends_early_and_counts_as_chance(tmp_path, monkeypatch):
    predict = hf_memory.studies.watched.predict

    def diverging(*args, **kwargs):
        columns = predict(*args, **kwargs)
        return {**columns, "token_loss": np.full_like(columns["token_loss"], math.nan)}

    monkeypatch.setattr(hf_memory.studies.watched, "predict", diverging)
    monkeypatch.setattr("hf_memory.experiments.evaluation.predict", diverging)
    recipe = tiny_recipe(training={"steps": 4, "batch_size": 8}, evaluate={"points": 3, "rows": 32})
    cell = planned(recipe)[0]
    assert run_cell(cell, tmp_path)[0] == "trained"
    rows = read_rows(tmp_path)
    assert {row.steps for row in rows} == {1}
    assert all(math.isnan(value.value) for row in rows for value in row.metrics.values())
    (result,) = assemble(tmp_path, recipe, [(cell.digest, cell)]).results
    assert result.has_diverged
    assert result.value("validation", METRIC) == rows[0].measured(METRIC).chance == 9 / 16
    assert as_diverged(rows[0]).measured(METRIC).chance == 9 / 16


def test_chance_is_that_of_the_row_which_knows_how_many_targets_each_law_had(tmp_path):
    recipe = tiny_recipe()
    cell = planned(recipe)[0]
    row = made_up_row(recipe, cell, "test_12", 0.75)
    level = dataclasses.replace(row.metrics[METRIC], chance=0.0667)
    other = dataclasses.replace(row.metrics["loss"], chance=None)
    row = dataclasses.replace(row, metrics={METRIC: level, "loss": other})
    result = Result(cell, cell.digest, {"test_12": row})
    assert result.chance("test_12", METRIC) == 0.0667
    assert result.chance("test_12", "loss") == 0.0
    for split, metric, message in (
        ("test_99", METRIC, "has no 'test_99'"),
        ("test_12", "none", "'none' was not measured"),
    ):
        with pytest.raises(ValueError, match=message):
            result.chance(split, metric)
    (lost,) = assemble(tmp_path, recipe, [("none", cell)]).results
    assert not lost.is_known
    with pytest.raises(ValueError, match="has no 'test_12'"):
        lost.chance("test_12", METRIC)


def test_seed_rate_and_rules_are_in_the_digest_and_the_place_is_not():
    cell = cell_of()
    others = [
        dataclasses.replace(cell, seed=5),
        dataclasses.replace(cell, learning_rate=2e-3),
        dataclasses.replace(cell, learning_rate_grid=(1e-3, 1e-2)),
        dataclasses.replace(cell, training={**cell.training, "stop_at": 0.9}),
        dataclasses.replace(cell, training={**cell.training, "clip": 1.0}),
        dataclasses.replace(cell, training={**cell.training, "optim_groups": "uniform"}),
    ]
    assert len({cell.digest, *(other.digest for other in others)}) == 7
    assert dataclasses.replace(cell, place={**cell.place, "width": 8}, stage="final").digest == cell.digest


def test_looks_come_every_so_many_steps_and_the_row_says_so(tmp_path):
    changes = {"training": {"steps": 7, "batch_size": 8, "stop_at": 0.999}, "evaluate": {"points": 0, "every": 3}}
    cell = cell_of(**changes)
    assert cell.experiment().steps == [3, 6, 7]
    run_cell(cell, tmp_path)
    assert [point.steps for point in read_history(tmp_path, cell.digest)] == [3, 6, 7]
    rule = "7 steps or above 0.999 on validation, looked at every 3 steps"
    assert read_rows(cell_path(tmp_path, cell.digest))[0].stop_rule == rule


def test_all_splits_are_evaluated_at_the_first_crossing_and_once(tmp_path):
    cell = cell_of(training={"steps": 4, "batch_size": 8}, evaluate={"points": 3, "crossing": 0.0, "rows": 16})
    run_cell(cell, tmp_path)
    points = read_history(tmp_path, cell.digest)
    assert [(point.steps, point.split) for point in points] == [
        (1, "validation"), (1, "test_8"), (1, "test_12"), (2, "validation"), (4, "validation"),
    ]  # fmt: skip
    result = assemble(tmp_path, tiny_recipe(), [(cell.digest, cell)]).results[0]
    assert result.crossing == 1
    assert result.at_crossing("test_12", METRIC) == points[2].values[METRIC]
    never = cell_of(training={"steps": 4, "batch_size": 8}, evaluate={"points": 3, "crossing": 1.0})
    run_cell(never, tmp_path)
    assert {point.split for point in read_history(tmp_path, never.digest)} == {"validation"}
    missed = assemble(tmp_path, tiny_recipe(), [(never.digest, never)]).results[0]
    assert missed.at_crossing("test_12", METRIC) == missed.rows["test_12"].value()


def test_a_run_at_its_first_crossing_is_what_it_would_have_been_had_it_stopped_there(tmp_path):
    changes = {"data": {"length": 8, "test_lengths": [8, 12], "num_validation": 16, "num_test": 16}}
    plan, looks = {"steps": 9, "batch_size": 8}, {"points": 3, "rows": 16}
    level = 0.0
    whole = cell_of(**changes, training=plan, evaluate={**looks, "crossing": level})
    stopped = cell_of(**changes, training={**plan, "stop_at": level}, evaluate=looks)
    run_cell(whole, tmp_path)
    run_cell(stopped, tmp_path)
    results = [assemble(tmp_path, tiny_recipe(), [(c.digest, c)]).results[0] for c in (whole, stopped)]
    assert results[0].crossing == results[1].history[-1].steps < 9
    for split in ("validation", "test_8", "test_12"):
        assert results[0].at_crossing(split, METRIC) == results[1].value(split, METRIC)


def test_written_answers_are_judged_beside_those_of_teacher_forcing(tmp_path):
    data = {"length": 4, "test_lengths": [4], "num_validation": 16, "num_test": 16, "alphabet_size": 3}
    changes = {"task": "string_copy", "data": data, "evaluate": {"points": 0, "generate": True}}
    cell = cell_of(training={"steps": 2, "batch_size": 8}, **changes)
    run_cell(cell, tmp_path)
    for row in read_rows(cell_path(tmp_path, cell.digest)):
        assert row.metrics["generated_sequence_accuracy"].value == row.metrics["sequence_accuracy"].value
        assert 0 <= row.metrics["generated_token_accuracy"].value <= 1
    result = assemble(tmp_path, tiny_recipe(), [(cell.digest, cell)]).results[0]
    assert result.chance("test_4", "generated_sequence_accuracy") == result.chance("test_4", "sequence_accuracy")
