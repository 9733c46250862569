"""Replication: which runs are run again, at which rates, and when a study has failed."""

import json

import pytest

import hf_memory.studies.replication
import hf_memory.studies.sweep
from hf_memory.reports.verdict_tables import replication_table
from hf_memory.studies.replication import (
    RECORD,
    Line,
    Replication,
    pooled,
    read_replication,
    replicate,
    summary,
    table,
)
from hf_memory.studies.sweep import run_sweep
from hf_memory.studies.verdicts import Tally
from tests.studies.sweep_examples import InlineWorkers, tiny_recipe

HOLDS = {"claim": "GRU is right now and then.", "left": {"arms": "gru"}, "relation": ">=", "right": 0.0}
FAILS = {"claim": "LSTM is perfect.", "left": {"arms": "lstm"}, "relation": ">", "right": 1.0}
CHANGED = {"date": "2026-01-01", "why": "a test"}
SEEDS = {"search": [0, 1], "looks": [5], "rows": "own"}


@pytest.fixture
def workers(monkeypatch):
    pool = InlineWorkers()
    for module in (hf_memory.studies.sweep, hf_memory.studies.replication):
        monkeypatch.setattr(module, "make_workers", lambda *args: pool)
    return pool


def swept(folder, workers, **changes):
    """A small sweep, and a pool that has forgotten it."""
    recipe = tiny_recipe(**{"expectations": [HOLDS, FAILS], "seeds": SEEDS, "training": {"steps": 2}, **changes})
    study = run_sweep(recipe, folder, progress=False)
    workers.ran.clear()
    return study


def test_the_runs_behind_claims_that_agreed_run_again_with_fresh_seeds(tmp_path, workers):
    study = swept(tmp_path, workers)
    found = replicate(study, tmp_path, 5, progress=False)
    assert {cell.place["arm"] for cell in workers.ran} == {"gru"}  # LSTM's claim did not agree
    by_stage = {stage: sorted({c.seed for c in workers.ran if c.stage == stage}) for stage in ("search", "final")}
    assert by_stage == {"search": [1500, 1501], "final": list(range(1000, 1005))}
    assert found.seeds == tuple(range(1000, 1005))
    assert found.searched == (1000, 1002, 1004)
    assert {c.learning_rate for c in workers.ran if c.stage == "search"} == {1e-3, 1e-2}
    assert {c.seed: c.experiment().specification.seed for c in workers.ran} == {c.seed: c.seed for c in workers.ran}
    (line,) = found.lines
    assert (line.claim, line.first, line.again, line.holds) == (HOLDS["claim"], Tally(5, 0, 5), Tally(5, 0, 5), True)
    assert line.expected == pytest.approx(6 / 11)
    assert (found.held, found.fewest, found.has_failed) == (1, 0, False)
    assert read_replication(tmp_path) == found


def test_half_of_the_seeds_take_the_rate_of_the_study_and_half_that_of_their_own_search(tmp_path, workers, monkeypatch):
    study = swept(tmp_path, workers)
    committed = study.choice({"arm": "gru"}).learning_rate
    other = ({1e-3, 1e-2} - {committed}).pop()
    plan = hf_memory.studies.replication._Plan
    monkeypatch.setattr(plan, "choices", lambda self, folder, searches: {"[('arm', 'gru')]": other})
    replicate(study, tmp_path, 5, progress=False)
    rates = {cell.seed: cell.learning_rate for cell in workers.ran if cell.stage == "final"}
    assert rates == {1000: other, 1001: committed, 1002: other, 1003: committed, 1004: other}


def test_a_second_replication_runs_nothing(tmp_path, workers):
    study = swept(tmp_path, workers)
    first = replicate(study, tmp_path, 3, progress=False)
    assert first.lines[0].again == Tally(3, 0, 3)
    workers.ran.clear()
    assert replicate(study, tmp_path, 3, progress=False) == first
    assert workers.ran == []


def test_a_mended_study_takes_seeds_that_nobody_has_seen_and_keeps_the_earlier_tables(tmp_path, workers):
    first = replicate(swept(tmp_path, workers), tmp_path, 3, progress=False)
    workers.ran.clear()
    # Mended: the same runs behind other claims. Their seeds have been looked at.
    mended = swept(tmp_path, workers, expectations=[HOLDS], changed=[{**CHANGED, "claim": FAILS["claim"]}])
    second = replicate(mended, tmp_path, 5, fresh=True, progress=False)
    assert (second.seeds, second.earlier) == (tuple(range(2000, 2005)), (first,))
    assert {c.seed for c in workers.ran} == {*range(2000, 2005), 2500, 2501}
    assert read_replication(tmp_path) == second
    # What was stopped goes on with the seeds it had, and the earlier table stays.
    workers.ran.clear()
    assert replicate(mended, tmp_path, 5, progress=False) == second
    assert workers.ran == []
    third = replicate(mended, tmp_path, 3, fresh=True, progress=False)
    assert (third.seeds[0], [found.seeds[0] for found in third.earlier]) == (3000, [1000, 2000])
    note = replication_table(third, "again").note
    assert note.count("Before the study was mended: 1 of 1 lines hold again with") == 2


def test_a_missing_run_leaves_a_line_open_and_it_does_not_hold(tmp_path, workers, monkeypatch):
    study = swept(tmp_path, workers)
    run_into = hf_memory.studies.watched.WatchedExperiment.run_into

    def broken(self, results, beat):
        if self.training["seed"] == 1003:
            raise ValueError("wrong")
        return run_into(self, results, beat)

    monkeypatch.setattr(hf_memory.studies.watched.WatchedExperiment, "run_into", broken)
    (line,) = replicate(study, tmp_path, 5, progress=False).lines
    assert (line.again, line.holds) == (None, False)
    monkeypatch.setattr(hf_memory.studies.watched.WatchedExperiment, "run_into", run_into)
    assert not replicate(study, tmp_path, 5, progress=False).lines[0].holds  # what failed is not tried again unasked
    workers.ran.clear()
    (line,) = replicate(study, tmp_path, 5, retry_failed=True, progress=False).lines
    assert (line.again, line.holds) == (Tally(5, 0, 5), True)
    assert [cell.seed for cell in workers.ran] == [1003]


def test_runs_are_stacked_as_in_the_sweep(tmp_path, workers, monkeypatch):
    study, sizes, run = swept(tmp_path, workers), [], workers.run
    monkeypatch.setattr(workers, "run", lambda stacks, *others: (sizes.extend(map(len, stacks)), run(stacks, *others)))
    (line,) = replicate(study, tmp_path, 5, stack=4, progress=False).lines
    assert line.holds
    assert max(sizes) == 4


def test_the_named_arm_is_not_named_anew(tmp_path, workers):
    some = {"claim": "Some arm.", "left": {"arms": ["gru", "lstm"], "over": "named"}, "relation": ">=", "right": 0.0}
    study = swept(tmp_path, workers, expectations=[some])
    (line,) = replicate(study, tmp_path, 5, progress=False).lines
    assert line.holds
    assert len({cell.place["arm"] for cell in workers.ran}) == 1


def test_numbers_of_seeds_that_decide_nothing_are_refused(tmp_path, workers):
    study = swept(tmp_path, workers)
    for seeds in (0, 6, 7):
        with pytest.raises(ValueError, match=f"from 1 to 4, got {seeds}"):
            replicate(study, tmp_path, seeds, progress=False)


def lines(*held: bool) -> Replication:
    made = tuple(Line(f"claim {i}", Tally(5, 0, 5), Tally(5 * h, 5 - 5 * h, 5), 6 / 11, h) for i, h in enumerate(held))
    return Replication("tiny", "cpu", tuple(range(1000, 1005)), (1000, 1002, 1004), made)


def test_a_study_fails_where_too_few_lines_hold_again():
    # Of ten lines with 6 / 11 each, at least 3 hold in 95 % of cases.
    assert lines(*[True] * 3, *[False] * 7).fewest == 3
    assert not lines(*[True] * 3, *[False] * 7).has_failed
    failed = lines(*[True] * 2, *[False] * 8)
    assert failed.has_failed
    assert summary(failed) == (
        "2 of 10 lines hold again with 5 fresh seeds, 3 of them with a search of their own; 5.5 were expected, and at "
        "least 3 in 95 % of cases: the study failed"
    )
    # Three lines of which none holds are no failure of one study, and are one of four such studies.
    few = lines(*[False] * 3)
    assert few.fewest == 0
    assert summary(few).endswith("at least 0 in 95 % of cases: too few lines for a failure to show")
    assert pooled([few] * 4).has_failed
    assert summary(pooled([few] * 4)).startswith("0 of 12 lines hold again with 5 fresh seeds")
    assert table(failed)[1] == ("claim 0", "5 of 5", "5 of 5", "0.55", "yes")
    assert table(failed)[3] == ("claim 2", "5 of 5", "0 of 5", "0.55", "no")


def test_a_damaged_table_is_named(tmp_path):
    assert read_replication(tmp_path) is None
    (tmp_path / "replication").mkdir()
    (tmp_path / "replication" / RECORD).write_text(json.dumps({"lines": [1]}))
    with pytest.raises(ValueError, match=r"replication\.json is no table of a replication"):
        read_replication(tmp_path)
