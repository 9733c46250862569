"""Verdicts: what a recipe expects, read off its results."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.outcomes import Result, Study
from hf_memory.studies.statistics import Verdict, bump, grid_regret, judge, late_drop, left_plateau, lr_window, steps_to


class UndecidedError(ValueError):
    """A quantity that these results cannot give; the message says why."""


@dataclasses.dataclass(frozen=True)
class Judgement:
    """An expectation and its verdict.

    Attributes:
        expectation: The expectation.
        verdict: ``"agrees"``, ``"disagrees"`` or ``"not decided"``.
        left: Left side by seed; empty where it could not be measured.
        right: Right side by seed.
        reason: Why it is not decided, or in how many seeds it holds.
    """

    expectation: Expectation
    verdict: Verdict
    left: Mapping[int, float]
    right: Mapping[int, float]
    reason: str


def judge_study(study: Study) -> list[Judgement]:
    """Judge every expectation of a recipe."""
    return [judge_expectation(study, expectation) for expectation in study.recipe.expectations]


def judge_expectation(study: Study, expectation: Expectation) -> Judgement:
    """Judge one expectation.

    It is not decided in the profile ``smoke``, before the sweep has ended, while runs are missing, where the positive
    control does not work, where a run is still on the plateau, where its condition does not hold, with too few seeds,
    and where the seeds do not agree.
    """
    doubt = _doubt(study)
    if doubt:
        return Judgement(expectation, "not decided", {}, {}, doubt)
    try:
        _check_given(study, expectation)
        left = by_seed(study, expectation.left, expectation.plateau_counts)
        if isinstance(expectation.right, Measure):
            right = by_seed(study, expectation.right, expectation.plateau_counts)
        else:
            right = dict.fromkeys(left, expectation.right)
    except UndecidedError as error:
        return Judgement(expectation, "not decided", {}, {}, str(error))
    # Two runs that never got to a level do not tell which would have been there first.
    shared = sorted(left.keys() & right.keys())
    seeds = [seed for seed in shared if not left[seed] == right[seed] == math.inf]
    if expectation.seeds == "mean":
        means = (_mean(left, seeds), _mean(right, seeds)) if seeds else (math.inf, math.inf)
        holds = [] if means == (math.inf, math.inf) else [expectation.holds(*means)]
        reason = f"in the mean of {len(seeds)} seeds"
    else:
        holds = [expectation.holds(left[seed], right[seed]) for seed in seeds]
        reason = f"holds in {sum(holds)} of {len(seeds)} seeds"
    if len(seeds) < len(shared):
        reason += f"; in {len(shared) - len(seeds)} neither side got there"
    if len(seeds) < expectation.min_seeds:
        reason = f"{reason}, and {expectation.min_seeds} seeds are needed"
        return Judgement(expectation, "not decided", left, right, reason)
    total = len(shared) if expectation.seeds == "each" else len(holds)
    return Judgement(expectation, judge(holds, total), left, right, reason)


def _check_given(study: Study, expectation: Expectation) -> None:
    """Raise where the condition of an expectation does not hold."""
    if expectation.given is None:
        return
    values = by_seed(study, expectation.given, expectation.plateau_counts)
    mean = _mean(values, sorted(values))
    if not mean >= expectation.given_at_least:
        raise UndecidedError(f"{expectation.given.text} is {mean:.3f}, and {expectation.given_at_least:g} is needed")


def _mean(values: Mapping[int, float], seeds: Sequence[int]) -> float:
    return statistics.fmean(values[seed] for seed in seeds)


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


def by_seed(study: Study, measure: Measure, plateau_counts: bool = False) -> dict[int, float]:
    """A measure for each seed: over arms and places of the grid its mean, largest or smallest.

    Raises:
        UndecidedError: Where runs are missing or on the plateau.
        ValueError: Where the measure does not fit the recipe.
    """
    results = study.select(measure.arms, measure.at)
    missing = set(measure.arms) - {result.arm for result in results}
    if missing:
        raise UndecidedError(f"this profile has no run of {', '.join(sorted(missing))} there")
    found = [_at_place(study, place, measure, plateau_counts) for place in study.places(results)]
    shared = set.intersection(*(set(values) for values in found))
    return {seed: _combine(measure.over, [values[seed] for values in found]) for seed in sorted(shared)}


def _combine(over: str, values: Sequence[float]) -> float:
    return statistics.fmean(values) if over == "mean" else max(values) if over == "max" else min(values)


def _at_place(study: Study, place: Mapping[str, object], measure: Measure, plateau_counts: bool) -> dict[int, float]:
    """A measure for each seed at one place."""
    metric = measure.metric or study.recipe.metric_name
    if measure.quantity in ("lr_window", "grid_regret") or measure.rate == "best":
        return _over_rates(study, place, measure, metric, plateau_counts)
    results = study.at_rate(place, measure.rate)
    if not results or not all(result.is_known for result in results):
        raise UndecidedError(f"runs of {place['arm']} are missing")
    if not plateau_counts:
        _check_plateau(study, results)
    try:
        return {result.cell.seed: _quantity(result, measure, metric) for result in results}
    except ValueError as error:
        raise UndecidedError(str(error)) from error


def _over_rates(
    study: Study, place: Mapping[str, object], measure: Measure, metric: str, plateau_counts: bool
) -> dict[int, float]:
    """A measure of the whole learning-rate curve, for each seed of the search."""
    searched = [result for result in study.at_place(place) if result.cell.stage == "search"]
    if not searched or not all(result.is_known for result in searched):
        raise UndecidedError(f"runs of {place['arm']} are missing")
    values: dict[int, float] = {}
    for seed in dict.fromkeys(result.cell.seed for result in searched):
        own = {result.cell.learning_rate: result for result in searched if result.cell.seed == seed}
        best = max(own.values(), key=lambda result: result.value("validation", study.recipe.metric_name))
        if not plateau_counts:
            _check_plateau(study, [best])
        if measure.quantity not in ("lr_window", "grid_regret"):
            values[seed] = _quantity(best, measure, metric)
            continue
        curve = {rate: result.value(measure.split, metric) for rate, result in own.items()}
        theta = measure.theta * max(curve.values()) if measure.of_best else measure.theta
        try:
            values[seed] = lr_window(curve, theta) if measure.quantity == "lr_window" else grid_regret(curve)
        except ValueError as error:
            raise UndecidedError(str(error)) from error
    return values


def _check_plateau(study: Study, results: Sequence[Result]) -> None:
    """Raise where a run that did not fail has not left the plateau on ``validation``."""
    for result in results:
        if result.has_failed:
            continue
        value = result.value("validation", study.recipe.metric_name)
        if not left_plateau(value, study.recipe.plateau):
            raise UndecidedError(f"{result.cell.name}: still on the plateau, {value:.3f} on validation")


def _quantity(result: Result, measure: Measure, metric: str) -> float:
    """A measure of one run. A run that failed never gets to a level.

    Raises:
        UndecidedError: Where the run has no such quantity: no drop and no bump without evaluations.
    """
    if measure.quantity == "value":
        value = result.value(measure.split, metric)
        return value - result.value(measure.minus, metric) if measure.minus else value
    if measure.quantity == "extrapolation_length":
        rows = [row for row in result.rows.values() if row.split == f"test_{row.length}"]
        return float(extrapolation_length({row.length: result.value(row.split, metric) for row in rows}, measure.theta))
    curve = result.curve(measure.split, "loss" if measure.quantity == "bump" else metric)
    if measure.quantity == "steps_to":
        best = max((value for _, value in curve if not math.isnan(value)), default=math.nan)
        steps = steps_to(curve, measure.theta * best if measure.of_best else measure.theta)
        return math.inf if steps is None else float(steps)
    values = [value for _, value in curve if not math.isnan(value)]
    found = late_drop(values) if measure.quantity == "late_drop" else bump(curve)
    if math.isnan(found):
        raise UndecidedError(f"{result.cell.name} has no {measure.quantity.replace('_', ' ')}")
    return found
