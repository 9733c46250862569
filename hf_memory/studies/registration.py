"""What a recipe registers, checked before anything runs: its claims can be read off its runs, and none is reworded.

A claim is registered with its margin and plan before its runs. Where one is changed or dropped afterwards, the recipe
lists it under ``changed`` with its old wording, the date and the reason, and pages show it; a sweep does not go on in a
folder whose record holds claims that have gone without a word, or claims of results that had another plan.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_memory.data.specification import Specification, length_bounds
from hf_memory.experiments.evaluation import GENERATED
from hf_memory.experiments.further import DECAYS, annotation_names, is_slice, slice_name
from hf_memory.experiments.generation import answer_blocks
from hf_memory.experiments.mechanisms import MEASURES
from hf_memory.experiments.metrics import metric_names
from hf_memory.experiments.results import cell_path
from hf_memory.mixers.auto import mixer_config
from hf_memory.names import check_names
from hf_memory.storage import encode
from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.outcomes import read_record
from hf_memory.studies.plans import longest_run
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.statistics import FOUR_POINTS, HOLD

_REMARKS = ("title", "source", "claim", "paper", "checkpoints", "expectations", "changed")
"""Keys of a recipe that change neither runs nor how they are judged, and claims, which are compared one by one."""


def check_readable(recipe: Recipe) -> None:
    """Check that every metric, split and quantity that is judged will be there.

    Raises:
        ValueError: For the first one that the runs will not hold; it names the claim.
    """
    if recipe.profile != "smoke":
        _check_control(recipe)
        _check_steps(recipe)
    if recipe.profile != "smoke" and recipe.expectations:
        _check_to_the_end(recipe)
    for place in recipe.places():
        specification = recipe.specification_at(place)
        unknown = [split for split in recipe.evaluate["splits"] if split not in specification.splits]
        if unknown:
            known = ", ".join(specification.splits)
            raise ValueError(f"evaluate: {unknown[0]!r} is no split of {_where(place)} (known: {known})")
        _check_metric(recipe, specification, "validation", recipe.metric_name, "metric")
        _check_length(recipe, specification, place)
        _check_answers(recipe, specification)
        _check_slices(recipe, specification)
        for claim, measure in measures_of(recipe):
            if measure.reads(place):
                _check_measure(recipe, specification, measure, claim)


def _check_control(recipe: Recipe) -> None:
    """Raise where this profile has no run of the positive control, without which nothing is ever decided."""
    measure = _control_of(recipe)
    if measure is not None and not any(map(measure.reads, recipe.places())):
        raise ValueError(f"control: at {dict(measure.at)} there is no run of {', '.join(measure.arms)} in this profile")


def _check_steps(recipe: Recipe) -> None:
    """Raise where a claim names another budget than that of its runs."""
    for item in recipe.expectations:
        found = re.findall(r"(?:within|trained for) (\d[\d,]*) steps", item.claim, re.IGNORECASE)
        named, steps = {int(number.replace(",", "")) for number in found}, recipe.steps_of(item)
        if named and steps and named != set(steps):
            trained = " and ".join(f"{number:,}" for number in steps)
            raise ValueError(
                f"claim {item.claim!r}: its runs are trained for {trained} steps in the profile {recipe.profile}; "
                "{steps} stands for their number"
            )


def _check_length(recipe: Recipe, specification: Specification, place: Mapping[str, Any]) -> None:
    """Raise where a filter is built for another length than the longest one that the run meets."""
    arm = recipe.arms[place["arm"]]
    fields = {**recipe.model, **(arm.get("model") or {}), **recipe.at(place, "model")}
    given = fields.get("max_position_embeddings")
    if given not in (None, specification.longest_row) and mixer_config(arm["mixer"], **fields).limited_length:
        raise ValueError(
            f"model: max_position_embeddings of {_where(place)} must be {specification.longest_row}, the longest row "
            f"that is evaluated, or be left out; got {given}"
        )


def _check_answers(recipe: Recipe, specification: Specification) -> None:
    """Raise where a model is to write answers that are not one block of their row."""
    if recipe.evaluate.get("generate"):
        for split in specification.splits.values():
            part = split.parts[0]
            _, labels = part.task.sample(np.random.default_rng(0), length_bounds(part.length)[0], 2)
            answer_blocks(torch.from_numpy(labels))


def _check_slices(recipe: Recipe, specification: Specification) -> None:
    """Raise where a metric is to be told apart that the task does not have, or by no annotation of its."""
    part = specification.splits["validation"].parts[0]
    length = length_bounds(part.length)[0]
    for metric, annotations in (recipe.evaluate.get("slices") or {}).items():
        known = [name for name in metric_names(part.task, length) if name != "loss"]
        check_names([metric], known, "metric of evaluate.slices")
        check_names(annotations, annotation_names(part.task, length), f"annotation of evaluate.slices.{metric}")


def _check_to_the_end(recipe: Recipe) -> None:
    """Raise where runs that are judged end because they are bad: what they would have done later is not known."""
    for place in recipe.places():
        if recipe.training_at(place)["give_up"] is not None:
            raise ValueError("training: give_up must be null where runs are judged, which go on to the end")


def measures_of(recipe: Recipe) -> list[tuple[str, Measure]]:
    """Everything that is measured, with the claim that needs it; that of the control is called ``control``."""
    control = _control_of(recipe)
    found = [(item.claim, measure) for item in recipe.expectations for measure in item.measures]
    return found if control is None else [*found, ("control", control)]


def _control_of(recipe: Recipe) -> Measure | None:
    """What is measured of the positive control."""
    values = {key: value for key, value in (recipe.control or {}).items() if key != "at_least" and value}
    return Measure.from_json(values) if values else None


def _check_measure(recipe: Recipe, specification: Specification, measure: Measure, claim: str) -> None:
    """Check one measure at one place."""
    metric = measure.metric_in(recipe.metric_name)
    sliced = is_slice(metric, recipe.evaluate.get("slices") or {})
    at_end = sliced or metric in DECAYS or metric.startswith(GENERATED)
    if at_end and (measure.needs_history or measure.when == "crossing"):
        raise ValueError(f"metric in {claim!r}: {metric} is measured at the end of a run alone; looks have the others")
    if metric in MEASURES and not measure.needs_history:
        raise ValueError(f"metric in {claim!r}: {metric} is measured at looks alone; the end of a run has the others")
    if measure.when == "crossing" and recipe.evaluate.get("crossing") is None:
        raise ValueError(f"when in {claim!r}: evaluate has no crossing")
    if measure.quantity == "longest_trained" and "length" not in recipe.grid:
        raise ValueError(f"quantity in {claim!r}: longest_trained needs the axis length of grid")
    # Looks may be at the rows of training; the rows of results never are.
    known = [name for name in specification.splits if name != "train" or measure.needs_history]
    for split in filter(None, (measure.split, measure.minus)):
        check_names([split], known, f"split in {claim!r}")
        _check_metric(recipe, specification, split, metric, f"metric in {claim!r}")
    tests = [name for name in specification.splits if name.startswith("test_")]
    if measure.quantity == "extrapolation_length" and not tests:
        raise ValueError(f"quantity in {claim!r}: extrapolation_length needs test splits")
    if measure.rate == "fixed" and recipe.fixed_learning_rate is None:
        raise ValueError(f"rate in {claim!r}: there is no fixed_learning_rate")
    if measure.quantity == "grid_regret":
        missing = [rate for rate in FOUR_POINTS if not any(abs(rate / own - 1) < 0.01 for own in recipe.learning_rates)]
        if missing and recipe.profile != "smoke":
            raise ValueError(f"quantity in {claim!r}: grid_regret needs the learning rates {missing}")
    if measure.needs_history:
        check_names([measure.split], recipe.evaluate["splits"], f"split of evaluate in {claim!r}")
        if not recipe.evaluate.get("every") and recipe.evaluate["points"] < HOLD and recipe.profile != "smoke":
            raise ValueError(f"evaluate: points must be at least {HOLD} for {measure.quantity} in {claim!r}")


def _check_metric(recipe: Recipe, specification: Specification, split: str, metric: str, kind: str) -> None:
    parts, wanted = specification.splits[split].parts, recipe.evaluate
    known = metric_names(parts[0].task, length_bounds(parts[0].length)[0])
    further = [*(MEASURES if wanted.get("mechanisms") else ())]
    further += [f"{GENERATED}{name}" for name in known if name != "loss"] if wanted.get("generate") else []
    if len(parts) == 1:  # rows that mix laws are not told apart
        slices = wanted.get("slices") or {}
        further += [*(DECAYS if wanted.get("decays") else ()), *([metric] if is_slice(metric, slices) else ())]
        further += [slice_name(name, note, low) for name in slices for note in slices[name] for low in (0, 1, 2, 4, 8)]
    check_names([metric], (*known, *further), kind)


def _where(place: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in place.items())


def check_registered(recipe: Recipe, record: Path) -> None:
    """Check that every claim that a folder's record holds is still expected as it was, or listed as changed.

    Once a run has ended, what the claim rests on stands as well: its runs, how many there are to be, and by what they
    are chosen and judged. Rates by which a sweep extends its grid are no change, since the recipe's rule adds them.

    Raises:
        ValueError: A claim was reworded, moved its margin, vanished, or has another plan; it is named, with what to do.
            The record is damaged, so that nobody knows what was registered.
    """
    if not os.path.lexists(record):
        return
    study, cells, folder = read_record(record)
    has_results = any(cell_path(folder, digest).exists() for digest, _ in cells)
    listed = {entry["claim"] for entry in recipe.changed}
    for item in study.recipe.expectations:
        if item.claim in listed:
            continue
        if not any(_is_same(item, other) for other in recipe.expectations):
            raise ValueError(
                f"expectations: {item.claim!r} was registered before these runs "
                f"({item.in_words(study.recipe.metric_name)}) and is not expected now; list its wording under "
                "`changed` with date and why, or choose another results folder"
            )
        change = _difference(_plan(study.recipe, item), _plan(recipe, item)) if has_results else ""
        if change:
            raise ValueError(
                f"expectations: {item.claim!r} was registered before these runs with another plan: {change}; reword it "
                "and list its wording under `changed` with date and why, or choose another results folder"
            )


def _plan(recipe: Recipe, item: Expectation) -> dict[str, Any]:
    """What a claim rests on: the arms and places that it and the control read, and all else that is no remark."""
    measures = [measure for measure in (*item.measures, _control_of(recipe)) if measure is not None]
    places = [place for place in recipe.places() if any(measure.reads(place) for measure in measures)]
    arms = {place["arm"]: recipe.arms[place["arm"]] for place in places}
    rows = longest_run(recipe) if any(arm.get("learning_rate") is None for arm in arms.values()) else 0
    values = {key: value for key, value in recipe.to_json().items() if key not in _REMARKS}
    plan: dict[str, Any] = encode({**values, "arms": arms, "grid": places, "rows of the longest run": rows})
    return plan


def _difference(before: Any, now: Any, name: str = "") -> str:
    """The first difference between two plans, in words; empty where there is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        found = (_difference(before.get(key), now.get(key), f"{name}.{key}".strip(".")) for key in {**before, **now})
        return next(filter(None, found), "")
    return "" if before == now else f"{name} was {before!r} and is {now!r}"


def _is_same(one: Expectation, other: Expectation) -> bool:
    """Whether two expectations predict the same in the same words; remarks may differ."""
    silent = ("published", "because")
    values = [{key: value for key, value in item.to_json().items() if key not in silent} for item in (one, other)]
    return json.dumps(values[0], sort_keys=True) == json.dumps(values[1], sort_keys=True)
