"""Verdicts: what is measured, what decides, and what leaves a claim open."""

import dataclasses
import math

import pytest

from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.judging import UndecidedError, by_seed, judge_expectation, judge_study
from tests.studies.sweep_examples import made_up, tiny_recipe

SEEDS = {"search": [0, 1, 2]}


def measure(**values) -> Measure:
    return Measure.from_json({"arms": "lstm", **values})


def expect(left, relation, right, **values) -> Expectation:
    return Expectation.from_json({"claim": "x", "left": left, "relation": relation, "right": right, **values})


def values_of(lstm, gru=(0.5, 0.5, 0.5), rates=(1e-3, 1e-2)):
    """Both arms at two rates, the first of which is better, with a value for each seed."""
    better = {
        (arm, rates[0], seed): value for arm, own in (("lstm", lstm), ("gru", gru)) for seed, value in enumerate(own)
    }
    worse = {(arm, rates[1], seed): None if value is None else value - 0.2 for (arm, _, seed), value in better.items()}
    return better | worse


def test_a_measure_is_taken_at_the_chosen_rate_for_each_seed():
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.8, 1.0)))
    assert by_seed(study, measure()) == {0: 0.9, 1: 0.8, 2: 1.0}
    assert by_seed(study, measure(split="test_12")) == pytest.approx({0: 0.8, 1: 0.7, 2: 0.9})
    assert by_seed(study, measure(minus="test_12")) == pytest.approx(dict.fromkeys(range(3), 0.1))
    assert by_seed(study, measure(arms=["lstm", "gru"], over="min")) == {0: 0.5, 1: 0.5, 2: 0.5}
    assert by_seed(study, measure(arms=["lstm", "gru"], over="mean")) == pytest.approx({0: 0.7, 1: 0.65, 2: 0.75})
    assert by_seed(study, measure(quantity="extrapolation_length", theta=0.85)) == {0: 8, 1: 0, 2: 12}


def test_the_fixed_rate_is_measured_where_it_is_asked_for():
    study = made_up(tiny_recipe(seeds=SEEDS, fixed_learning_rate=1e-2), values_of((0.9, 0.8, 1.0)))
    assert by_seed(study, measure(rate="fixed")) == pytest.approx({0: 0.7, 1: 0.6, 2: 0.8})


def test_windows_and_regret_are_those_of_each_seed():
    values = {("lstm", rate, seed): value for seed, top in ((0, 1.0), (1, 0.5))
              for rate, value in ((1e-3, 0.0), (1e-2, top))}  # fmt: skip
    study = made_up(tiny_recipe(arms={"lstm": {}}, seeds={"search": [0, 1]}), values)
    assert by_seed(study, measure(quantity="lr_window", theta=0.75)) == pytest.approx({0: 0.25, 1: 0.0})
    assert by_seed(study, measure(quantity="lr_window", theta=0.75, of_best=True)) == pytest.approx({0: 0.25, 1: 0.25})
    with pytest.raises(UndecidedError, match="must hold the rates"):
        by_seed(study, measure(quantity="grid_regret"))


def test_steps_and_drops_come_from_the_history():
    history = {"lstm": [(1, 0.5), (2, 0.96), (4, 0.97), (8, 0.98), (16, 0.7), (32, 0.7)], "gru": [(1, 0.5), (32, 0.6)]}
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.8, 1.0)), history=history)
    assert set(by_seed(study, measure(quantity="steps_to", theta=0.95)).values()) == {2.0}
    assert set(by_seed(study, measure(arms="gru", quantity="steps_to", theta=0.95)).values()) == {math.inf}
    assert by_seed(study, measure(quantity="late_drop")) == pytest.approx(dict.fromkeys(range(3), 0.27))
    assert by_seed(study, measure(quantity="bump"))[0] == pytest.approx((0.5 - 0.0295) / 0.2)


@pytest.mark.parametrize(
    ("lstm", "verdict", "reason"),
    [
        ((0.9, 0.95, 0.5), "agrees", "holds in 2 of 3 seeds"),
        ((0.5, 0.5, 0.95), "disagrees", "holds in 1 of 3 seeds"),
        ((0.9, 0.9, None), "agrees", "holds in 2 of 3 seeds"),
        ((None, None, 0.95), "disagrees", "holds in 1 of 3 seeds"),
    ],
)
def test_two_thirds_of_the_seeds_give_the_verdict_and_failed_runs_are_misses(lstm, verdict, reason):
    study = made_up(tiny_recipe(seeds=SEEDS), values_of(lstm))
    judgement = judge_expectation(study, expect({"arms": "lstm", "rate": "best"}, ">=", 0.9))
    assert (judgement.verdict, judgement.reason) == (verdict, reason)


def test_the_mean_over_seeds_can_decide():
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.9, 0.3)))
    assert judge_expectation(study, expect({"arms": "lstm"}, ">=", 0.71, seeds="mean")).verdict == "disagrees"
    assert judge_expectation(study, expect({"arms": "lstm"}, ">=", 0.69, seeds="mean")).verdict == "agrees"
    left, right = {"arms": "lstm"}, {"arms": "gru"}
    assert judge_expectation(study, expect(left, ">", right, margin=0.19, seeds="mean")).verdict == "agrees"
    assert judge_expectation(study, expect(left, ">", right, margin=0.21, seeds="mean")).verdict == "disagrees"


def test_what_leaves_a_claim_open_is_named():
    claim = expect({"arms": "lstm"}, ">=", 0.9)
    good = values_of((0.95, 0.95, 0.95))

    def reason(expectation=claim, values=good, **changes):
        judgement = judge_expectation(made_up(tiny_recipe(**{"seeds": SEEDS, **changes}), values), expectation)
        assert judgement.verdict == "not decided"
        return judgement.reason

    assert "smoke profile proves nothing" in reason(profile="smoke")
    unfinished = dataclasses.replace(made_up(tiny_recipe(seeds=SEEDS), good), complete=False)
    assert judge_expectation(unfinished, claim).reason == "the sweep has not come to its end"
    assert "control reaches 0.500, not 0.95" in reason(control={"arms": ["gru"], "at_least": 0.95})
    assert "5 seeds are needed" in reason(expect({"arms": "lstm"}, ">=", 0.9, min_seeds=5))
    assert "still on the plateau, 0.500" in reason(expect({"arms": "gru"}, ">=", 0.9), plateau=0.4)
    assert "no run of nobody" in reason(expect({"arms": "nobody"}, ">=", 0.9))
    assert "has no 'test_99'" in reason(expect({"arms": "lstm", "split": "test_99"}, ">=", 0.9))
    lost = {key: value for key, value in good.items() if key[2] == 0}
    assert "runs of lstm are missing" in reason(values=lost, seeds={"search": [0], "final": [7]}, learning_rates=[0.1])


def test_a_plateau_counts_where_the_claim_is_about_it_and_failed_runs_are_not_on_it():
    recipe = tiny_recipe(seeds=SEEDS, plateau=0.4)
    study = made_up(recipe, values_of((0.95, 0.95, 0.95)))
    assert judge_expectation(study, expect({"arms": "gru"}, "<", 0.6, plateau_counts=True)).verdict == "agrees"
    failed = made_up(recipe, values_of((0.95, 0.95, 0.95), (None, None, None)))
    assert judge_expectation(failed, expect({"arms": "gru"}, "<", 0.6)).verdict == "agrees"


def test_the_control_must_work_before_anything_is_decided():
    claims = [{"claim": "x", "left": {"arms": "gru"}, "relation": "<", "right": 0.6}]
    recipe = tiny_recipe(seeds=SEEDS, control={"arms": ["lstm"], "at_least": 0.95}, expectations=claims)
    assert [j.verdict for j in judge_study(made_up(recipe, values_of((0.95, 0.9, 0.9))))] == ["agrees"]
    assert [j.verdict for j in judge_study(made_up(recipe, values_of((0.9, 0.9, 0.9))))] == ["not decided"]


def test_relations_never_hold_with_nan():
    for relation in (">=", ">", "<=", "<"):
        assert not expect({"arms": "lstm"}, relation, 0.5).holds(math.nan, 0.5)
    assert expect({"arms": "lstm"}, "<", 0.5).holds(3.0, math.inf)
    assert not expect({"arms": "lstm"}, "<", 0.5).holds(math.inf, math.inf)


def test_a_relation_reads_as_a_sentence():
    item = expect(
        {"arms": "lstm", "quantity": "lr_window", "of_best": True},
        ">=",
        {"arms": ["gru", "rnn"], "over": "max"},
        margin=0.5,
    )
    assert (
        item.text
        == "lr window at 0.9 of its best on validation of lstm >= metric on validation of max of gru, rnn + 0.5"
    )
    assert Expectation.from_json(item.to_json()) == item
    with pytest.raises(ValueError, match="unknown quantity: 'lr_windw'; did you mean 'lr_window'"):
        measure(quantity="lr_windw")


def test_runs_that_never_got_there_on_both_sides_tell_nothing():
    history = {"lstm": [(1, 0.5), (2, 0.6), (4, 0.6)], "gru": [(1, 0.5), (32, 0.6)]}
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.8, 1.0)), history=history)
    steps = {"quantity": "steps_to", "theta": 0.95}
    never = expect({"arms": "lstm", **steps}, "<", {"arms": "gru", **steps})
    judgement = judge_expectation(study, never)
    assert judgement.verdict == "not decided"
    assert judgement.reason == "holds in 0 of 0 seeds; in 3 neither side got there, and 1 seeds are needed"
    in_the_mean = dataclasses.replace(never, seeds="mean", min_seeds=0)
    assert judge_expectation(study, in_the_mean).verdict == "not decided"
    history["lstm"] = [(1, 0.96), (2, 0.97), (4, 0.98)]
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.8, 1.0)), history=history)
    assert judge_expectation(study, never).verdict == "agrees"


@pytest.mark.parametrize(("level", "verdict"), [(0.45, "agrees"), (0.55, "not decided")])
def test_a_claim_about_a_model_that_has_learned_nothing_is_left_open(level, verdict):
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.8, 1.0)))
    given = {"given": {"arms": "gru"}, "given_at_least": level}
    expectation = expect({"arms": "gru", "minus": "test_12"}, "<", 0.2, **given)
    judgement = judge_expectation(study, expectation)
    assert judgement.verdict == verdict
    assert expectation.text.endswith(f"< 0.2, given that metric on validation of gru >= {level:g}")
    if verdict == "not decided":
        assert judgement.reason == "metric on validation of gru is 0.500, and 0.55 is needed"
    assert Expectation.from_json(expectation.to_json()) == expectation


def test_a_level_may_be_a_share_of_the_best():
    history = {"lstm": [(1, 0.1), (2, 0.35), (4, 0.4), (8, 0.4)]}
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.8, 1.0)), history=history)
    share = measure(quantity="steps_to", theta=0.8, of_best=True)
    assert by_seed(study, share) == dict.fromkeys(range(3), 2.0)
    assert set(by_seed(study, dataclasses.replace(share, of_best=False)).values()) == {math.inf}


@pytest.mark.parametrize("quantity", ["late_drop", "bump"])
def test_a_quantity_that_a_run_does_not_have_leaves_the_claim_open(quantity):
    study = made_up(tiny_recipe(seeds=SEEDS), values_of((0.9, 0.8, 1.0)), history={})
    for relation in ("<", ">", "<=", ">="):
        judgement = judge_expectation(study, expect({"arms": "lstm", "quantity": quantity}, relation, 0.5))
        assert judgement.verdict == "not decided"
        assert "has no" in judgement.reason
