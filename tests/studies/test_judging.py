"""Verdicts: what is measured, what a seed says, and what leaves a claim open."""

import dataclasses
import math

import pytest

from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.judging import (
    by_seed,
    judge_expectation,
    judge_study,
    named,
    needs_more_seeds,
)
from hf_memory.studies.verdicts import Tally
from hf_memory.studies.watched import HistoryPoint
from tests.studies.sweep_examples import made_up, tiny_recipe

FIVE = {"search": [0, 1, 2, 3, 4]}
THREE = {"search": [0, 1, 2]}
RATES = (1e-3, 1e-2)


def measure(**values) -> Measure:
    return Measure.from_json({"arms": "lstm", **values})


def expect(left, relation, right, **values) -> Expectation:
    return Expectation.from_json({"claim": "x", "left": left, "relation": relation, "right": right, **values})


def values_of(lstm, gru=None):
    """Both arms at two rates, the first of which is better, with a value for each seed."""
    both = (("lstm", lstm), ("gru", [0.5] * len(lstm) if gru is None else gru))
    better = {(arm, RATES[0], seed): value for arm, own in both for seed, value in enumerate(own)}
    worse = {(arm, RATES[1], seed): None if value is None else value - 0.2 for (arm, _, seed), value in better.items()}
    return better | worse


def judged(values, expectation, history=None, splits=None, **changes):
    study = made_up(tiny_recipe(**{"seeds": FIVE, **changes}), values, splits, history)
    return judge_expectation(study, expectation)


def test_a_measure_is_taken_at_the_chosen_rate_for_each_seed():
    study = made_up(tiny_recipe(seeds=THREE), values_of((0.9, 0.8, 1.0)))
    assert by_seed(study, measure()) == ({0: 0.9, 1: 0.8, 2: 1.0}, set())
    assert by_seed(study, measure(split="test_12"))[0] == pytest.approx({0: 0.8, 1: 0.7, 2: 0.9})
    assert by_seed(study, measure(minus="test_12"))[0] == pytest.approx(dict.fromkeys(range(3), 0.1))
    assert by_seed(study, measure(arms=["lstm", "gru"], over="min"))[0] == {0: 0.5, 1: 0.5, 2: 0.5}
    assert by_seed(study, measure(arms=["lstm", "gru"]))[0] == pytest.approx({0: 0.7, 1: 0.65, 2: 0.75})
    assert by_seed(study, measure(quantity="extrapolation_length", theta=0.85))[0] == {0: 8, 1: 0, 2: 12}


def test_the_fixed_rate_is_measured_where_it_is_asked_for():
    study = made_up(tiny_recipe(seeds=THREE, fixed_learning_rate=1e-2), values_of((0.9, 0.8, 1.0)))
    assert by_seed(study, measure(rate="fixed"))[0] == pytest.approx({0: 0.7, 1: 0.6, 2: 0.8})


def test_an_arm_with_a_rate_of_its_own_is_measured_there():
    arms = {"lstm": {"learning_rate": 1e-2}, "gru": {}}
    study = made_up(tiny_recipe(arms=arms, seeds=THREE), values_of((0.9, 0.8, 1.0)), stage="final")
    assert by_seed(study, measure())[0] == pytest.approx({0: 0.7, 1: 0.6, 2: 0.8})


@pytest.mark.parametrize(
    ("stop_at", "split", "last", "expected"),
    [
        (0.98, "validation", 0.985, 4.0),
        (0.98, "validation", 0.97, math.inf),  # it went on to its last step, and was above at one look
        (0.98, "test_8", 0.985, math.inf),  # the rule looks at validation alone
        (0.85, "validation", 0.985, math.inf),  # it ended below the level that is asked for
        (None, "validation", 0.985, math.inf),
    ],
)
def test_a_run_that_its_own_rule_ended_above_a_level_holds_it(stop_at, split, last, expected):
    study = made_up(tiny_recipe(training={"steps": 8, "stop_at": stop_at}, seeds=THREE), values_of((1.0, 1.0, 1.0)))
    looks = [HistoryPoint(step, split, {"token_accuracy": value}) for step, value in ((1, 0.4), (4, last))]
    study = dataclasses.replace(
        study, results=tuple(dataclasses.replace(result, history=looks) for result in study.results)
    )
    found = by_seed(study, measure(quantity="steps_to", theta=0.9, split=split))[0]
    assert found == dict.fromkeys(range(3), expected)


def test_steps_and_drops_come_from_the_history():
    history = {"lstm": [(1, 0.5), (2, 0.96), (4, 0.97), (8, 0.98), (16, 0.7), (32, 0.7)], "gru": [(1, 0.5), (32, 0.6)]}
    study = made_up(tiny_recipe(seeds=THREE), values_of((0.9, 0.8, 1.0)), history=history)
    assert set(by_seed(study, measure(quantity="steps_to", theta=0.95))[0].values()) == {2.0}
    assert set(by_seed(study, measure(arms="gru", quantity="steps_to", theta=0.95))[0].values()) == {math.inf}
    assert by_seed(study, measure(quantity="late_drop"))[0] == pytest.approx(dict.fromkeys(range(3), 0.27))
    assert by_seed(study, measure(quantity="bump"))[0][0] == pytest.approx((0.5 - 0.0295) / 0.2)
    assert by_seed(study, measure(quantity="bump", below=0.4))[0][0] == pytest.approx((0.4 - 0.0295) / 0.1)
    with pytest.raises(ValueError, match="below is for the quantity bump, got 0.4 with late_drop"):
        measure(quantity="late_drop", below=0.4)


@pytest.mark.parametrize(
    ("lstm", "verdict", "tally"),
    [
        ((0.9, 0.95, 0.9, 0.9, 0.9), "agrees", Tally(5, 0, 5)),
        ((0.9, 0.95, 0.9, 0.9, 0.5), "not decided", Tally(4, 1, 5)),
        ((0.5, 0.5, 0.5, 0.5, 0.5), "disagrees", Tally(0, 5, 5)),
        ((math.nan, 0.5, 0.5, 0.5, 0.5), "disagrees", Tally(0, 5, 5)),
        ((math.nan, 0.9, 0.9, 0.9, 0.9), "not decided", Tally(4, 1, 5)),
    ],
)
def test_five_of_five_decide_and_a_diverged_run_is_at_chance(lstm, verdict, tally):
    judgement = judged(values_of(lstm), expect({"arms": "lstm", "rate": "best"}, ">=", 0.9))
    assert (judgement.verdict, judgement.tally) == (verdict, tally)
    assert judgement.reason.startswith(f"holds in {tally.holds} of 5 seeds (")
    assert needs_more_seeds(judgement) == (verdict == "not decided")


def test_three_seeds_only_lean():
    judgement = judged(values_of((0.9, 0.9, 0.9)), expect({"arms": "lstm"}, ">=", 0.9), seeds=THREE)
    assert (judgement.verdict, judgement.tally) == ("leans", Tally(3, 0, 3))
    assert judgement.reason == "holds in 3 of 3 seeds (0.29 to 1.00)"


@pytest.mark.parametrize("seed", range(5))
def test_there_is_no_verdict_while_a_run_is_missing_or_has_crashed(seed):
    claim, good = expect({"arms": "lstm"}, ">=", 0.9), values_of([0.95] * 5)
    assert judged(good, claim).verdict == "agrees"
    crashed = {key: None if key == ("lstm", 1e-3, seed) else value for key, value in good.items()}
    lost = {key: value for key, value in good.items() if key[2] != seed}
    for values in (crashed, lost):
        judgement = judged(values, claim)
        assert (judgement.verdict, judgement.tally) == ("not decided", None)
        assert "missing" in judgement.reason
    # Three of four with the fourth lost: also where the plan itself no longer holds it.
    four = judged({key: value for key, value in good.items() if key[2] < 3}, claim, seeds={"search": [0, 1, 2, 3]})
    assert four.reason == "1 of 4 planned seeds are missing"


@pytest.mark.parametrize(
    ("left", "relation", "right"),
    [
        ({"split": "validation"}, ">=", 0.9),
        ({"quantity": "extrapolation_length", "theta": 0.99}, "<=", 8),
        ({"quantity": "steps_to", "theta": 0.9}, "<=", 8),
    ],
)
def test_of_ten_planned_seeds_five_that_crashed_leave_a_claim_open(left, relation, right):
    """Those of the second look crashed, with their histories written: the first five alone must not decide."""
    recipe = tiny_recipe(arms={"lstm": {}}, learning_rates=[1e-3], seeds={"search": [0], "looks": [5, 10]})
    values = {("lstm", 1e-3, seed): 0.95 if seed < 105 else None for seed in (0, *range(100, 110))}
    study = made_up(recipe, values, history={"lstm": [(1, 0.5), (2, 0.95), (4, 0.95), (8, 0.95)]})
    results = tuple(
        dataclasses.replace(r, cell=dataclasses.replace(r.cell, stage="final" if r.cell.seed else "search"))
        for r in study.results
    )
    claim = expect({"arms": "lstm", **left}, relation, right)
    judgement = judge_expectation(dataclasses.replace(study, results=results), claim)
    assert (judgement.verdict, judgement.tally) == ("not decided", None)
    assert judgement.reason == "runs of lstm are missing"
    whole = tuple(result for result in results if result.is_known)
    assert judge_expectation(dataclasses.replace(study, results=whole), claim).tally == Tally(5, 0, 5)


def test_what_leaves_a_claim_open_is_named():
    claim = expect({"arms": "lstm"}, ">=", 0.9)
    good = values_of([0.95] * 5)

    def reason(expectation=claim, values=good, **changes):
        judgement = judged(values, expectation, **changes)
        assert judgement.verdict == "not decided"
        return judgement.reason

    assert "smoke profile proves nothing" in reason(profile="smoke")
    unfinished = dataclasses.replace(made_up(tiny_recipe(seeds=FIVE), good), complete=False)
    assert judge_expectation(unfinished, claim).reason == "the sweep has not come to its end"
    assert "control reaches 0.500, not 0.95" in reason(control={"arms": ["gru"], "at_least": 0.95})
    assert "no run of nobody" in reason(expect({"arms": "nobody"}, ">=", 0.9))
    assert "has no 'test_99'" in reason(expect({"arms": "lstm", "split": "test_99"}, ">=", 0.9))
    assert "no looks at 'validation'" in reason(expect({"arms": "lstm", "quantity": "late_drop"}, "<", 0.1))
    assert "'recal' was not measured" in reason(expect({"arms": "lstm", "metric": "recal"}, ">=", 0.9))


def test_runs_on_the_plateau_do_not_count_unless_the_claim_names_its_budget():
    values = values_of([0.95] * 5)
    judgement = judged(values, expect({"arms": "gru"}, "<", 0.6), plateau=0.5)
    assert (judgement.verdict, judgement.dropped) == ("not decided", (0, 1, 2, 3, 4))
    assert judgement.reason.endswith("5 had not learned; 5 seeds are needed")
    named_budget = expect({"arms": "gru"}, "<", 0.6, claim="Within 300 steps, x", plateau_counts=True)
    assert judged(values, named_budget, plateau=0.5).verdict == "agrees"
    with pytest.raises(ValueError, match="the claim must say 'within N steps'"):
        expect({"arms": "gru"}, "<", 0.6, plateau_counts=True)


@pytest.mark.parametrize(("learned", "verdict"), [(5, "agrees"), (4, "not decided")])
def test_a_seed_counts_where_it_has_learned_what_the_claim_presupposes(learned, verdict):
    values = values_of([0.95] * learned + [0.6] * (5 - learned))
    given = {"given": {"arms": "lstm"}, "given_at_least": 0.9}
    expectation = expect({"arms": "lstm", "minus": "test_12"}, "<", 0.2, **given)
    judgement = judged(values, expectation)
    assert judgement.verdict == verdict
    assert judgement.dropped == tuple(range(learned, 5))
    assert expectation.in_words("recall").endswith("< 0.2, given that recall on validation of lstm >= 0.9")
    assert Expectation.from_json(expectation.to_json()) == expectation


def test_of_ten_seeds_five_must_have_learned():
    ten = {"search": [0], "final": list(range(1, 11))}
    values = {("lstm", rate, seed): (0.95 if seed in (0, *range(5, 11)) else 0.6) - 0.3 * (rate == 1e-2)
              for seed in range(11) for rate in RATES}  # fmt: skip
    study = made_up(tiny_recipe(arms={"lstm": {}}, seeds=ten), values)
    results = tuple(
        dataclasses.replace(r, cell=dataclasses.replace(r.cell, stage="final")) if r.cell.seed else r
        for r in study.results
    )
    given = {"given": {"arms": "lstm"}, "given_at_least": 0.9}
    study = dataclasses.replace(study, results=results)
    judgement = judge_expectation(study, expect({"arms": "lstm", "minus": "test_12"}, "<", 0.2, **given))
    assert judgement.tally == Tally(6, 0, 10)
    assert judgement.verdict == "not decided"  # six of ten planned seeds are not nine


def test_the_relation_without_its_margin_is_a_verdict_of_its_own():
    values = values_of([0.9] * 5, [0.8] * 5)
    left, right = {"arms": "lstm"}, {"arms": "gru"}
    assert judged(values, expect(left, ">=", right, margin=0.05)).verdict == "agrees"
    smaller = judged(values, expect(left, ">=", right, margin=0.2))
    assert smaller.verdict == "same direction, smaller"
    assert smaller.reason.startswith("holds in 0 of 5 seeds")
    assert not needs_more_seeds(smaller)
    assert judged(values, expect(left, "<", right, margin=-0.1)).verdict == "disagrees"
    # A margin that makes the relation easier is no threshold that a weaker claim could stand on.
    assert judged(values, expect(right, ">=", left, margin=-0.05)).verdict == "disagrees"


def test_equal_sides_and_runs_that_never_got_there_tell_nothing():
    history = {"lstm": [(1, 0.5), (2, 0.6), (4, 0.6)], "gru": [(1, 0.5), (32, 0.6), (64, 0.6)]}
    steps = {"quantity": "steps_to", "theta": 0.95}
    claim = expect({"arms": "lstm", **steps}, "<", {"arms": "gru", **steps})
    values = values_of([0.9] * 5)
    judgement = judged(values, claim, history)
    assert (judgement.verdict, judgement.tally) == ("not decided", Tally(0, 0, 5))
    assert judgement.reason == "holds in 0 of 5 seeds (0.00 to 0.52), 5 tied"
    history["lstm"] = [(1, 0.96), (2, 0.97), (4, 0.98)]
    assert judged(values, claim, history).verdict == "agrees"
    history["gru"] = history["lstm"]
    assert judged(values, claim, history).tally == Tally(0, 0, 5)


@pytest.mark.parametrize(
    ("relation", "verdict"), [("<", "disagrees"), (">", "disagrees"), ("<=", "agrees"), (">=", "agrees")]
)
def test_what_equals_a_level_is_neither_below_nor_above_it(relation, verdict):
    """A reading is 0 or 1: "it never passes" could not fail if a 1 that meets the 1 told nothing."""
    judgement = judged(values_of([1.0] * 5), expect({"arms": "lstm"}, relation, 1))
    assert (judgement.verdict, judgement.tally.holds + judgement.tally.fails) == (verdict, 5)
    both = judged(values_of([1.0] * 5, [1.0] * 5), expect({"arms": "lstm"}, "<", {"arms": "gru"}))
    assert (both.verdict, both.tally) == ("not decided", Tally(0, 0, 5))


def test_a_claim_that_some_arm_does_it_is_judged_on_the_arm_that_the_search_names():
    ten = {"search": [0, 1], "final": [2, 3, 4, 5, 6]}
    by_arm = {"lstm": [0.9, 0.9, *[0.5] * 5], "gru": [0.6, 0.6, *[0.95] * 5]}
    values = {(arm, rate, seed): value - 0.2 * (rate == 1e-2) for arm, own in by_arm.items()
              for seed, value in enumerate(own) for rate in RATES}  # fmt: skip
    study = made_up(tiny_recipe(seeds=ten), values)
    results = [
        dataclasses.replace(r, cell=dataclasses.replace(r.cell, stage="search" if r.cell.seed < 2 else "final"))
        for r in study.results
    ]
    study = dataclasses.replace(study, results=tuple(results))
    some = expect({"arms": ["lstm", "gru"], "over": "named"}, ">=", 0.8)
    assert named(study, some).left.arms == ("lstm",)
    assert judge_expectation(study, some).tally == Tally(0, 5, 5)
    assert "the one that the search names among lstm, gru" in some.in_words("recall")
    with pytest.raises(ValueError, match="named after the fact"):
        expect({"arms": ["lstm", "gru"], "over": "max"}, ">=", 0.8)
    assert expect({"arms": ["lstm", "gru"], "over": "max"}, "<=", 0.8).left.over == "max"


def test_the_control_must_work_before_anything_is_decided():
    claims = [{"claim": "x", "left": {"arms": "gru"}, "relation": "<", "right": 0.6}]
    recipe = tiny_recipe(seeds=FIVE, control={"arms": ["lstm"], "at_least": 0.95}, expectations=claims)
    assert [j.verdict for j in judge_study(made_up(recipe, values_of([0.95, *[0.9] * 4])))] == ["agrees"]
    assert [j.verdict for j in judge_study(made_up(recipe, values_of([0.9] * 5)))] == ["not decided"]


def test_relations_tell_nothing_with_nan():
    for relation in (">=", ">", "<=", "<"):
        assert expect({"arms": "lstm"}, relation, 0.5).outcome(math.nan, 0.5) is None
    assert expect({"arms": "lstm"}, "<", 0.5).outcome(3.0, math.inf) is True
    assert expect({"arms": "lstm"}, "<", 0.5).outcome(math.inf, 3.0) is False
    assert expect({"arms": "lstm"}, "<=", {"arms": "gru"}).outcome(math.inf, math.inf) is None
    assert expect({"arms": "lstm"}, ">=", {"arms": "gru"}).outcome(0.5, 0.5) is True
    assert expect({"arms": "lstm"}, ">", {"arms": "gru"}).outcome(0.5, 0.5) is None


def test_a_relation_reads_as_a_sentence():
    item = expect(
        {"arms": "lstm", "quantity": "lr_window", "of_best": True},
        ">=",
        {"arms": ["gru", "rnn"], "over": "max"},
        margin=0.5,
    )
    left = "decades of learning rates at 0.9 of its best recall on validation of lstm"
    assert item.in_words("recall") == f"{left} >= recall on validation of max of gru, rnn + 0.5"
    assert Expectation.from_json(item.to_json()) == item
    with pytest.raises(ValueError, match="unknown quantity: 'lr_windw'; did you mean 'lr_window'"):
        measure(quantity="lr_windw")


def test_a_level_may_be_a_share_of_the_best():
    history = {"lstm": [(1, 0.1), (2, 0.35), (4, 0.4), (8, 0.4)]}
    study = made_up(tiny_recipe(seeds=THREE), values_of((0.9, 0.8, 1.0)), history=history)
    share = measure(quantity="steps_to", theta=0.8, of_best=True)
    assert by_seed(study, share)[0] == dict.fromkeys(range(3), 2.0)
    assert set(by_seed(study, dataclasses.replace(share, of_best=False))[0].values()) == {math.inf}


def test_of_nothing_no_share_is_held():
    history = {"lstm": [(1, 0.0), (2, 0.0), (4, 0.0), (8, 0.0)]}
    study = made_up(tiny_recipe(seeds=THREE), values_of((0.9, 0.8, 1.0)), history=history)
    assert set(by_seed(study, measure(quantity="steps_to", of_best=True))[0].values()) == {math.inf}


def test_the_longest_trained_length_is_that_of_all_shorter_ones_too():
    recipe = tiny_recipe(grid={"length": [8, 12, 16]}, data={"test_lengths": [], "num_validation": 32}, seeds=THREE)
    study = made_up(recipe, values_of((0.9, 0.9, 0.9)), splits={"validation": 0.0})
    reached = {8: (0.95, 0.95, 0.2), 12: (0.95, 0.5, 0.95), 16: (0.95, 0.95, 0.95)}
    results = [
        made_up_like(result, reached[result.cell.place["length"]][result.cell.seed]) if result.arm == "lstm" else result
        for result in study.results
    ]
    study = dataclasses.replace(study, results=tuple(results))
    assert by_seed(study, measure(quantity="longest_trained", theta=0.9))[0] == {0: 16, 1: 8, 2: 0}
    both = measure(arms=["lstm", "gru"], quantity="longest_trained", theta=0.9, over="max")
    assert by_seed(study, both)[0] == {0: 16, 1: 8, 2: 0}


def made_up_like(result, value):
    """A result with another value of its metric on all splits."""
    rows = {}
    for split, row in result.rows.items():
        measured = dataclasses.replace(row.measured(), value=value, numerator=200 * value)
        rows[split] = dataclasses.replace(row, metrics={**row.metrics, row.headline: measured})
    return dataclasses.replace(result, rows=rows)


def test_readings_are_one_where_a_run_passes():
    study = made_up(tiny_recipe(seeds=THREE), values_of((0.9, 0.89, 1.0)))
    assert by_seed(study, measure(quantity="seed_reading"))[0] == {0: 1, 1: 0, 2: 1}
    assert by_seed(study, measure(quantity="seed_reading", theta=0.95))[0] == {0: 0, 1: 0, 2: 1}
    assert by_seed(study, measure(arms=["lstm", "gru"], quantity="seed_reading"))[0] == {0: 0.5, 1: 0, 2: 0.5}
    cycles = measure(quantity="cycle_reading", metric="token_accuracy", split="test_12")
    half = made_up(tiny_recipe(seeds=THREE), values_of((0.6, 0.7, 0.4)))  # 0.1 less on the test
    assert by_seed(half, cycles)[0] == {0: 0, 1: 1, 2: 0}
    assert measure(quantity="cycle_reading").metric_in("exact_offsets") == "rows_3_of_5"
    assert measure(quantity="seed_reading").metric_in("exact_offsets") == "exact_offsets"


def test_tests_at_the_first_crossing_are_read_off_the_history():
    recipe = tiny_recipe(seeds=THREE, evaluate={"points": 4, "crossing": 0.85})
    looks = {"lstm": [(1, 0.5), (2, 0.86), (4, 0.95)], "gru": [(1, 0.5), (4, 0.5)]}
    study = made_up(recipe, values_of((0.9, 0.8, 1.0)), history=looks)
    tests = [HistoryPoint(2, name, {"token_accuracy": value}) for name, value in (("test_8", 0.92), ("test_12", 0.6))]
    crossed = [
        dataclasses.replace(r, history=[*r.history, *(tests if r.cell.place["arm"] == "lstm" else [])])
        for r in study.results
    ]
    study = dataclasses.replace(study, results=tuple(crossed))
    assert study.results[0].crossing == 2
    at = {"split": "test_12", "when": "crossing"}
    assert by_seed(study, measure(**at))[0] == dict.fromkeys(range(3), 0.6)
    assert by_seed(study, measure(split="test_12"))[0] == pytest.approx({0: 0.8, 1: 0.7, 2: 0.9})
    assert by_seed(study, measure(split="validation", minus="test_12", when="crossing"))[0][0] == pytest.approx(0.26)
    reached = measure(quantity="extrapolation_length", when="crossing")
    assert by_seed(study, reached)[0] == dict.fromkeys(range(3), 8)
    # What never crossed is tested at its end.
    assert by_seed(study, measure(arms="gru", **at))[0] == pytest.approx(dict.fromkeys(range(3), 0.4))
    lost = dataclasses.replace(study.results[0], history=study.results[0].history[:-2])
    with pytest.raises(ValueError, match="no 'token_accuracy' on 'test_12' at its first crossing"):
        lost.at_crossing("test_12", "token_accuracy")
    with pytest.raises(ValueError, match="has no looks"):
        dataclasses.replace(lost, history=[]).at_crossing("test_12", "token_accuracy")


def test_an_arm_is_judged_at_the_first_depth_that_learned():
    recipe = tiny_recipe(grid={"depth": [1, 2, 4]}, first_depth=0.9, seeds=THREE)
    study = made_up(recipe, values_of((0.95, 0.95, 0.95)))
    by_place = {1: 0.5, 2: 0.95, 4: 0.99}
    results = [made_up_like(r, by_place[r.cell.place["depth"]]) if r.arm == "lstm" else r for r in study.results]
    study = dataclasses.replace(study, results=tuple(results))
    assert study.settled_depth({"arm": "lstm", "depth": 4}) == 2
    assert study.settled_depth({"arm": "gru", "depth": 1}) == 4  # none learned: the last one is judged
    assert by_seed(study, measure())[0] == dict.fromkeys(range(3), 0.95)
    assert by_seed(study, measure(at={"depth": 4}))[0] == dict.fromkeys(range(3), 0.99)
    assert {result.cell.place["depth"] for result in study.select(["lstm"])} == {2}
    open_ = dataclasses.replace(study, results=tuple(r for r in results if r.cell.place["depth"] == 1))
    assert open_.settled_depth({"arm": "lstm", "depth": 1}) is None
