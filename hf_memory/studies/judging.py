"""Verdicts: what a recipe expects, read off its results seed by seed.

The rule is that of :mod:`hf_memory.studies.verdicts`; here stands what a seed says. A run that is missing, crashed or
lost its history is no measurement, and there is no verdict while one is missing. Only a diverged run is a result.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.data.specification import length_bounds
from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.outcomes import Result, Study
from hf_memory.studies.statistics import (
    HOLD,
    bump,
    cycle_reading,
    grid_regret,
    late_drop,
    left_plateau,
    seed_reading,
    steps_to,
    window,
)
from hf_memory.studies.verdicts import LOOKS, Tally, Verdict, decide, decide_in_looks
from hf_memory.tasks import task_class


class UndecidedError(ValueError):
    """A quantity that these results cannot give; the message says why."""


@dataclasses.dataclass(frozen=True)
class Judgement:
    """An expectation and its verdict.

    Attributes:
        expectation: The expectation.
        verdict: The verdict.
        left: Left side by seed; empty where it could not be measured.
        right: Right side by seed.
        reason: Why nothing is decided, or in how many seeds the relation holds.
        tally: The seeds on which the verdict rests; None where it could not be measured.
        dropped: Seeds that do not count, since their condition does not hold or they are on the plateau.
    """

    expectation: Expectation
    verdict: Verdict
    left: Mapping[int, float]
    right: Mapping[int, float]
    reason: str
    tally: Tally | None = None
    dropped: tuple[int, ...] = ()


def judge_study(study: Study) -> list[Judgement]:
    """Judge every expectation of a recipe."""
    return [judge_expectation(study, expectation) for expectation in study.recipe.expectations]


def judge_expectation(study: Study, expectation: Expectation) -> Judgement:
    """Judge one expectation.

    It is not decided in the profile ``smoke``, before the sweep has ended, while runs are missing, where the positive
    control does not work, and where fewer than five seeds have learned what the claim presupposes.
    """
    doubt = _doubt(study)
    if doubt:
        return Judgement(expectation, "not decided", {}, {}, doubt)
    try:
        left, right, dropped = _sides(study, expectation)
    except UndecidedError as error:
        return Judgement(expectation, "not decided", {}, {}, str(error))
    verdict, tally = decide_in_looks(_outcomes(expectation, left, right, dropped))
    counted = list(left)[: tally.planned]
    kept = tally.planned - len(dropped & set(counted))
    reason = _reason(tally, len(dropped & set(counted)))
    if dropped & set(counted) and kept < min(LOOKS):
        verdict, reason = "not decided", f"{reason}; {min(LOOKS)} seeds are needed"
    elif expectation.asks_for_more and verdict in ("disagrees", "not decided"):
        weaker, _ = decide_in_looks(_outcomes(expectation, left, right, dropped, margin=0.0))
        if weaker == "agrees":
            verdict, reason = "same direction, smaller", f"{reason}; without its margin it agrees"
    return Judgement(expectation, verdict, left, right, reason, tally, tuple(sorted(dropped)))


def needs_more_seeds(judgement: Judgement) -> bool:
    """Whether a further look may decide: the seeds so far were all measured, and do not."""
    return judgement.tally is not None and decide(judgement.tally) == "not decided"


def _reason(tally: Tally, dropped: int) -> str:
    low, high = tally.interval if tally.planned else (0.0, 1.0)
    parts = [f"holds in {tally.holds} of {tally.planned} seeds ({low:.2f} to {high:.2f})"]
    silent = tally.planned - tally.holds - tally.fails - dropped
    parts += [f"{silent} tied"] if silent else []
    parts += [f"{dropped} had not learned"] if dropped else []
    return ", ".join(parts)


def _outcomes(
    expectation: Expectation,
    left: Mapping[int, float],
    right: Mapping[int, float],
    dropped: set[int],
    margin: float | None = None,
) -> list[bool | None]:
    """What each planned seed says, in order."""
    return [None if seed in dropped else expectation.outcome(left[seed], right[seed], margin) for seed in left]


def _sides(study: Study, expectation: Expectation) -> tuple[dict[int, float], dict[int, float], set[int]]:
    """Both sides by seed, in the order of the plan, and the seeds that do not count.

    Raises:
        UndecidedError: A run is missing.
    """
    expectation = named(study, expectation)
    left, dropped = by_seed(study, expectation.left, expectation.plateau_counts)
    right: dict[int, float] = {}
    if isinstance(expectation.right, Measure):
        right, more = by_seed(study, expectation.right, expectation.plateau_counts)
        dropped |= more
    else:
        right = dict.fromkeys(left, float(expectation.right))
    if expectation.given is not None:
        condition, _ = by_seed(study, expectation.given, plateau_counts=True)
        dropped |= {seed for seed, value in condition.items() if not value >= expectation.given_at_least}
    seeds = [seed for seed in left if seed in right]
    planned = _planned(study, expectation.left, len(seeds))
    if len(seeds) < planned:
        raise UndecidedError(f"{planned - len(seeds)} of {planned} planned seeds are missing")
    return {seed: left[seed] for seed in seeds}, {seed: right[seed] for seed in seeds}, dropped & set(seeds)


def _planned(study: Study, measure: Measure, found: int) -> int:
    """How many seeds there must be: those of the recipe, or of the look to which the claim has come."""
    recipe, stage = study.recipe, {"chosen": "final"}.get(measure.stage, measure.stage)
    looks = [look for look in recipe.seeds["looks"] if look >= found] if stage != "search" else []
    return looks[0] if looks else len(recipe.planned_seeds(stage) or recipe.planned_seeds("search"))


def _doubt(study: Study) -> str:
    """Why nothing can be decided whatever the numbers say; empty where something can."""
    if study.recipe.profile == "smoke":
        return "the smoke profile proves nothing"
    if not study.complete:
        return "the sweep has not come to its end"
    control = study.control()
    if study.recipe.control is not None and (control is None or not control[1]):
        level = study.recipe.control["at_least"]
        reached = "nothing yet" if control is None else f"{control[0]:.3f}"
        return f"the positive control reaches {reached}, not {level:g}"
    return ""


def named(study: Study, expectation: Expectation) -> Expectation:
    """The expectation with the one arm of its left side that the seeds of the search name, where it leaves that open.

    Raises:
        UndecidedError: A run of the search is missing.
    """
    left = expectation.left
    if left.over != "named":
        return expectation
    best = max if expectation.relation in (">=", ">") else min
    means = {arm: statistics.fmean(_in_search(study, dataclasses.replace(left, arms=(arm,)))) for arm in left.arms}
    return dataclasses.replace(expectation, left=dataclasses.replace(left, arms=(best(means, key=means.__getitem__),)))


def _in_search(study: Study, measure: Measure) -> list[float]:
    """A measure of one arm at its chosen rate, for each seed of the search."""
    values = []
    for place in study.places(study.select(measure.arms, measure.at)):
        choice = study.choice(place)
        if choice is None:
            raise UndecidedError(f"runs of {place['arm']} are missing")
        searched = [result for result in study.at_place(place) if result.cell.stage == "search"]
        chosen = [result for result in searched if math.isclose(result.cell.learning_rate, choice.learning_rate)]
        values += [_quantity(result, measure, measure.metric_in(study.recipe.metric_name)) for result in chosen]
    if not values:
        raise UndecidedError(f"this profile has no run of {', '.join(measure.arms)} there")
    return values


def by_seed(study: Study, measure: Measure, plateau_counts: bool = False) -> tuple[dict[int, float], set[int]]:
    """A measure for each seed: over arms and places of the grid its mean, largest or smallest.

    Returns:
        The values, and the seeds in which a run has not left the plateau, unless such runs count.

    Raises:
        UndecidedError: Where runs are missing.
        ValueError: Where the measure does not fit the recipe.
    """
    results = study.select(measure.arms, measure.at)
    missing = set(measure.arms) - {result.arm for result in results}
    if missing:
        raise UndecidedError(f"this profile has no run of {', '.join(sorted(missing))} there")
    found, stuck, places = [], set[int](), study.places(results)
    for place in places:
        values, lingering = _at_place(study, place, measure)
        found.append(values)
        stuck |= lingering
    if measure.quantity == "longest_trained":
        found = _longest_lengths(places, found, measure.theta)
    shared = [seed for seed in found[0] if all(seed in values for values in found)]
    combined = {seed: _combine(measure.over, [values[seed] for values in found]) for seed in shared}
    return combined, set() if plateau_counts else stuck & set(shared)


def _longest_lengths(
    places: Sequence[Mapping[str, Any]], found: Sequence[Mapping[int, float]], theta: float
) -> list[dict[int, float]]:
    """For each place without its training length, the longest length that was learned with all shorter ones."""
    groups: dict[str, dict[int, Mapping[int, float]]] = {}
    for place, values in zip(places, found, strict=True):
        rest = {axis: value for axis, value in place.items() if axis != "length"}
        groups.setdefault(repr(sorted(rest.items())), {})[length_bounds(place["length"])[1]] = values
    reached = []
    for by_length in groups.values():
        shared = [seed for seed in next(iter(by_length.values())) if all(seed in own for own in by_length.values())]
        curves = {seed: {length: own[seed] for length, own in by_length.items()} for seed in shared}
        reached.append({seed: float(extrapolation_length(curve, theta)) for seed, curve in curves.items()})
    return reached


def _combine(over: str, values: Sequence[float]) -> float:
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values) if over == "max" else min(values) if over == "min" else statistics.fmean(values)


def _at_place(study: Study, place: Mapping[str, Any], measure: Measure) -> tuple[dict[int, float], set[int]]:
    """A measure for each seed at one place, and the seeds whose run is on the plateau."""
    metric = measure.metric_in(study.recipe.metric_name)
    if measure.stage == "search":
        return _over_rates(study, place, measure, metric)
    results = study.at_rate(place, measure.rate)
    if not results or not all(result.is_known for result in results):
        raise UndecidedError(f"runs of {place['arm']} are missing")
    values = {result.cell.seed: _quantity(result, measure, metric) for result in results}
    return values, {result.cell.seed for result in results if _is_stuck(study, result)}


def seeds_that_solve(study: Study, place: Mapping[str, Any], measure: Measure) -> dict[float, Tally]:
    """In how many seeds of the search each learning rate solves the task; runs that tell nothing are on neither side.

    Args:
        study: A sweep.
        place: One of its places.
        measure: A window of learning rates, whose level, split and metric are meant.
    """
    metric, found = measure.metric_in(study.recipe.metric_name), dict[float, list[bool | None]]()
    searched = [result for result in study.at_place(place) if result.cell.stage == "search"]
    for seed in dict.fromkeys(result.cell.seed for result in searched):
        runs = [result for result in searched if result.cell.seed == seed]
        for run in runs:
            found.setdefault(run.cell.learning_rate, []).append(_solves(run, runs, measure, metric))
    return {rate: Tally(own.count(True), own.count(False), len(own)) for rate, own in sorted(found.items())}


def _solves(run: Result, runs: Sequence[Result], measure: Measure, metric: str) -> bool | None:
    """Whether a run gets to the level that is set for the runs of its seed; None where that was not measured."""
    try:
        known = run.is_known and all(own.is_known or not measure.of_best for own in runs)
        return math.isfinite(_steps(run, measure, metric, _level(runs, measure, metric))) if known else None
    except UndecidedError:
        return None


def _over_rates(
    study: Study, place: Mapping[str, Any], measure: Measure, metric: str
) -> tuple[dict[int, float], set[int]]:
    """A measure of the whole learning-rate curve, for each seed of the search."""
    searched = [result for result in study.at_place(place) if result.cell.stage == "search"]
    if not searched or not all(result.is_known for result in searched):
        raise UndecidedError(f"runs of {place['arm']} are missing")
    values: dict[int, float] = {}
    stuck = set[int]()
    for seed in dict.fromkeys(result.cell.seed for result in searched):
        own = {result.cell.learning_rate: result for result in searched if result.cell.seed == seed}
        best = max(own.values(), key=lambda result: result.value("validation", study.recipe.metric_name))
        stuck |= {seed} if _is_stuck(study, best) else set()
        values[seed] = _of_rates(own, best, measure, metric)
    return values, stuck


def _of_rates(own: Mapping[float, Result], best: Result, measure: Measure, metric: str) -> float:
    """A measure of the runs of one seed at all rates."""
    try:
        if measure.quantity == "lr_window":
            level = _level(list(own.values()), measure, metric)
            return window({rate: math.isfinite(_steps(run, measure, metric, level)) for rate, run in own.items()})
        if measure.quantity == "grid_regret":
            return grid_regret({rate: run.value(measure.split, metric) for rate, run in own.items()})
    except UndecidedError:
        raise
    except ValueError as error:
        raise UndecidedError(str(error)) from error
    return _quantity(best, measure, metric)


def _is_stuck(study: Study, result: Result) -> bool:
    """Whether a run that did not diverge has not left the plateau on ``validation``."""
    value = result.value("validation", study.recipe.metric_name)
    return not result.has_diverged and not left_plateau(value, study.recipe.plateau)


_OF_TESTS = ("value", "longest_trained", "extrapolation_length", "seed_reading", "cycle_reading")
"""Quantities that are read off the tests of a run, and not off its training."""


def _of_tests(result: Result, measure: Measure, metric: str) -> float:
    """A measure of the tests of one run, at its end or where it first crossed the level of its recipe."""
    read = result.at_crossing if measure.when == "crossing" else result.value
    if measure.quantity == "extrapolation_length":
        rows = [row for row in result.rows.values() if row.split == f"test_{row.length}"]
        return float(extrapolation_length({row.length: read(row.split, metric) for row in rows}, measure.theta))
    value = read(measure.split, metric)
    if measure.quantity == "seed_reading":
        return float(seed_reading([value], measure.theta)[0])
    if measure.quantity == "cycle_reading":
        return float(cycle_reading([value])[0])
    return value - read(measure.minus, metric) if measure.minus else value


def _level(runs: Sequence[Result], measure: Measure, metric: str) -> float:
    """The level that is to be held: ``theta``, or so much of the best that any of the runs has at any look.

    Of nothing no share is held, so that the level is infinite there.
    """
    if not measure.of_best:
        return measure.theta
    values = [value for run in runs for _, value in _looks(run, measure, metric) if not math.isnan(value)]
    best = max(values, default=0.0)
    return measure.theta * best if best > 0 else math.inf


def _looks(result: Result, measure: Measure, metric: str) -> list[tuple[int, float]]:
    """The values of a run over its training."""
    try:
        return result.judged_curve(measure.split, metric)
    except ValueError as error:
        raise UndecidedError(str(error)) from error


def _steps(result: Result, measure: Measure, metric: str, level: float) -> float:
    """Steps until a run holds a level; infinite where it never does."""
    steps = steps_to(_held(result, measure, metric, _looks(result, measure, metric), level), level)
    return math.inf if steps is None else float(steps)


def _held(
    result: Result, measure: Measure, metric: str, curve: list[tuple[int, float]], level: float
) -> list[tuple[int, float]]:
    """Looks of a run; where its own rule ended it above ``level``, its last look stands for those that it was spared.

    A level counts once it is held, and a run that ends at its first look above ``stop_at`` would not hold any: the
    faster it learned, the less.
    """
    stop_at = result.cell.training.get("stop_at")
    judged = measure.split == "validation" and metric == task_class(result.cell.task).headline_metric
    ended = stop_at is not None and judged and level <= stop_at < curve[-1][1]
    return [*curve, *([curve[-1]] * (HOLD - 1))] if ended else curve


def _quantity(result: Result, measure: Measure, metric: str) -> float:
    """A measure of one run. A run that diverged never gets to a level.

    Raises:
        UndecidedError: The run has no such quantity: a split or metric was not measured, or its history is lost.
    """
    if measure.quantity == "steps_to":
        return _steps(result, measure, metric, _level([result], measure, metric))
    if measure.quantity in _OF_TESTS:
        try:
            return _of_tests(result, measure, metric)
        except ValueError as error:
            raise UndecidedError(str(error)) from error
    curve = _looks(result, measure, "loss" if measure.quantity == "bump" else metric)
    values = [value for _, value in curve if not math.isnan(value)]
    found = late_drop(values) if measure.quantity == "late_drop" else bump(curve, below=measure.below)
    if math.isnan(found):
        raise UndecidedError(f"{result.cell.name} has no {measure.quantity.replace('_', ' ')}")
    return found
