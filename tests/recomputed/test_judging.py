"""Pandas and the package judge made-up sweeps alike, also by what no line of the committed page asks yet."""

import dataclasses
import json

import numpy as np
import pytest

import hf_memory.studies.replication
import hf_memory.studies.sweep
from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import write_cell
from hf_memory.storage import digest, sealed
from hf_memory.studies.expectations import Measure
from hf_memory.studies.judging import judge_study, seeds_that_solve
from hf_memory.studies.outcomes import Result, Study, find_records, read_study, write_record
from hf_memory.studies.plans import final_cells, make_settings, search_cells
from hf_memory.studies.replication import replicate, summary
from hf_memory.studies.sweep import run_sweep
from hf_memory.studies.watched import HistoryPoint, write_history
from tests.recomputed.again import Again, in_a_sentence, lines_of
from tests.recomputed.sweeps import Sweep
from tests.recomputed.verdicts import judge
from tests.studies.sweep_examples import InlineWorkers, made_up_row, tiny_recipe

METRIC = "token_accuracy"
RATES = [1e-4, 4.64e-4, 2.15e-3, 1e-2]
SPLITS = ("validation", "test_8", "test_12")


def claim(left, relation, right, **more):
    sides = {"left": {"arms": "lstm", **left}, "right": {"arms": "gru", **right} if isinstance(right, dict) else right}
    return {"claim": f"Within 3 steps, {left} {relation} {right}, {more}.", "relation": relation, **sides, **more}


CLAIMS = [
    claim({"arms": "gru", "at": {"length": 8, "depth": 1}, "split": "test_8"}, ">", 0.9),
    claim({"minus": "test_12"}, ">", {"minus": "test_12"}, margin=0.1),
    claim({"minus": "test_12"}, "<=", {"minus": "test_12"}, margin=-0.05, plateau_counts=True),
    claim({"arms": ["lstm", "gru"], "over": "max", "metric": "sequence_accuracy"}, "<", {"arms": "mamba"}),
    claim({"arms": ["lstm", "gru"], "over": "named", "split": "test_12"}, ">=", 0.9, plateau_counts=True),
    claim({}, ">=", 0.9, given={"arms": "gru", "split": "test_8"}, given_at_least=0.9),
    claim({"at": {"length": 8}, "rate": "fixed"}, "<", {"at": {"length": 12}, "rate": "fixed"}),
    claim({"rate": "best", "split": "test_12"}, ">=", 0.5),
    claim({"quantity": "extrapolation_length"}, ">=", {"quantity": "extrapolation_length", "when": "crossing"}),
    claim({"split": "test_12"}, ">", {"split": "test_12", "when": "crossing"}),
    claim({"quantity": "longest_trained"}, ">", {"quantity": "longest_trained"}),
    claim({"quantity": "seed_reading", "split": "test_12"}, "<", 1),
    claim({"quantity": "cycle_reading", "metric": "sequence_accuracy", "split": "test_8"}, ">=", 1),
    claim({"quantity": "steps_to", "theta": 0.7}, "<", {"quantity": "steps_to", "theta": 0.7}),
    claim({"quantity": "steps_to", "of_best": True}, "<", {"quantity": "steps_to", "of_best": True}),
    claim({"quantity": "lr_window", "theta": 0.7}, ">", {"quantity": "lr_window", "theta": 0.7}, margin=0.5),
    claim({"quantity": "lr_window", "of_best": True}, "<=", {"quantity": "lr_window", "of_best": True}),
    claim({"quantity": "grid_regret"}, ">=", {"quantity": "grid_regret"}, plateau_counts=True),
    claim({"quantity": "late_drop"}, "<=", {"quantity": "late_drop"}),
    claim({"quantity": "bump"}, ">", {"quantity": "bump"}),
    claim({"quantity": "bump", "below": 1.5}, ">", {"quantity": "bump"}),
]


def drawn(recipe, cell, rng):
    """Rows and looks of one run; some diverge, and some leave the range of floats on a test."""
    likely = {"lstm": [0.02, 0.03, 0.35, 0.6], "gru": [0.02, 0.3, 0.6, 0.08], "mamba": [0, 0, 0, 1]}[cell.place["arm"]]
    skill = rng.choice([0.4, 0.9, 0.99, 1.0], p=likely)
    diverged, rows, points = rng.random() < 0.03, [], []
    for split in SPLITS:
        value = float(np.round(skill - rng.choice([0.0, 0.0, 0.05, 0.3]) * (split != "validation"), 2))
        lost = diverged if split == "validation" else rng.random() < (0.5 if diverged else 0.03)
        row = made_up_row(recipe, cell, split, value)
        measured = {
            METRIC: row.metrics[METRIC],
            "sequence_accuracy": MetricValue(value / 2, value * 100, 200, None, {}),
        }
        loss = np.nan if lost else rng.choice([0.1, 0.2])
        rows.append(dataclasses.replace(row, metrics={**measured, "loss": MetricValue(loss, loss * 200, 200, 0.69)}))
    for step in range(10, 10 * rng.integers(5, 9), 10):
        value = float(np.round(min(skill, step / 60 * rng.choice([1.0, 1.3])), 2))
        looks = {split: value - 0.1 * (split != "validation") for split in SPLITS}
        points += [HistoryPoint(step, split, {METRIC: at, "loss": 2 - at}) for split, at in looks.items()]
    return rows, points


def lay(folder, recipe, rng, lost=0.0):
    """A sweep on disk, with a search and what follows from it; a share of its runs is lost."""
    settings = make_settings(recipe)
    runs = [(cell, *drawn(recipe, cell, rng)) for cell in search_cells(recipe, settings, recipe.learning_rates)]
    searched = Study(recipe, tuple(Result(cell, "", {row.split: row for row in rows}) for cell, rows, _ in runs))
    chosen = [found and found.learning_rate for found in (searched.choice(one.place) for one in settings)]
    cells = final_cells(recipe, settings, recipe.learning_rates, chosen)
    runs += [(cell, *drawn(recipe, cell, rng)) for cell in cells]
    write_record(folder, recipe, settings, [cell for cell, _, _ in runs], complete=True)
    record = find_records(folder)[0]
    sweep = json.loads(record.read_text())
    del sweep["sha256"]
    for told, (cell, rows, points) in zip(sweep["cells"], runs, strict=True):
        definition = {"cell": cell.digest}
        told["digest"] = digest(definition)
        if rng.random() >= lost:
            write_cell(folder, definition, [dataclasses.replace(row, cell=told["digest"]) for row in rows])
            write_history(folder, told["digest"], points)
    record.write_text(json.dumps(sealed(sweep)))
    return record


@pytest.fixture(scope="module")
def recipe():
    return tiny_recipe(
        arms={"lstm": {}, "gru": {"training": {"stop_at": 0.8}}, "mamba": {"learning_rate": 1e-3}},
        grid={"length": [8, 12], "depth": [1, 2]}, first_depth=0.9, learning_rates=RATES, fixed_learning_rate=1e-4,
        seeds={"search": [0, 1], "looks": [5], "rows": "own"}, plateau=0.55, expectations=CLAIMS,
        evaluate={"points": 8, "splits": ["validation"], "crossing": 0.85},
        control={"arms": ["mamba"], "split": "validation", "at_least": 0.95},
    )  # fmt: skip


@pytest.mark.parametrize(("seed", "lost"), [(0, 0.0), (1, 0.0), (2, 0.01)])
def test_both_give_the_same_verdicts(tmp_path, recipe, seed, lost):
    record = lay(tmp_path, recipe, np.random.default_rng(seed), lost)
    sweep, study = Sweep(record), read_study(record)
    for item, theirs in zip(sweep.recipe["expectations"], judge_study(study), strict=True):
        ours, tally = judge(sweep, item), theirs.tally
        assert (ours.word, ours.planned > 0, ours.dropped) == (theirs.verdict, tally is not None, set(theirs.dropped))
        assert (dict(ours.left), dict(ours.right)) == (pytest.approx(theirs.left), pytest.approx(theirs.right))
        assert ours.reason == theirs.reason or tally is None
    for place in sweep.places(["lstm", "gru"]) if not lost else ():
        for measure in ({"arms": "lstm", "theta": 0.7}, {"arms": "lstm", "of_best": True}):
            theirs = seeds_that_solve(study, json.loads(place), Measure.from_json({**measure, "quantity": "lr_window"}))
            ours = sweep.seeds_that_solve(place, measure)
            assert {rate: (one.holds, one.planned) for rate, one in theirs.items()} == dict(
                zip(ours.index, map(tuple, ours.to_numpy()), strict=True)
            )
    sweep.recipe["control"] = {**recipe.control, "at_least": 1.5}
    study = dataclasses.replace(study, recipe=dataclasses.replace(recipe, control=sweep.recipe["control"]))
    assert {judge(sweep, item).reason for item in sweep.recipe["expectations"]} == {judge_study(study)[0].reason}


def test_both_count_what_holds_again(tmp_path, monkeypatch):
    for module in (hf_memory.studies.sweep, hf_memory.studies.replication):
        monkeypatch.setattr(module, "make_workers", lambda *args: InlineWorkers())
    claims = [
        claim({}, ">", 1.0),
        claim({"arms": "gru", "split": "test_12"}, ">=", 0.0),
        claim({"arms": ["lstm", "gru"], "over": "named"}, ">", 0.2),
    ]
    seeds = {"search": [0, 1], "looks": [5], "rows": "own"}
    recipe = tiny_recipe(expectations=claims, seeds=seeds, training={"steps": 3})
    theirs = replicate(run_sweep(recipe, tmp_path, progress=False), tmp_path, 5, progress=False)
    first = Sweep(*find_records(tmp_path))
    again = Again(first, tmp_path / "replication")
    lines = lines_of(first, again)
    assert [(line.claim, line.first.holds, line.again.holds, line.held) for line in lines] == [
        (line.claim, line.first.holds, line.again.holds, line.holds) for line in theirs.lines
    ]
    assert len(lines) == 2
    assert in_a_sentence(lines, again) == summary(theirs)
    for held in (2, 3, 12):  # of twelve lines, some of which hold: the study failed, or it stands
        ours = [dataclasses.replace(lines[0], held=place < held) for place in range(12)]
        made_up = tuple(dataclasses.replace(theirs.lines[0], holds=place < held) for place in range(12))
        assert in_a_sentence(ours, again) == summary(dataclasses.replace(theirs, lines=made_up))
