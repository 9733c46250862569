"""Recipes: a published figure as one file, with its claim, its settings and the outcome that it predicts.

A recipe is YAML. ``profiles`` holds overrides of the rest under names (``cpu``, ``cpu_long``, ``full``); ``smoke``
exists for every recipe, takes seconds and proves nothing. Every key is checked against :class:`Recipe`, where it is
documented.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_memory.auto import model_keys
from hf_memory.data.specification import KEYWORDS, specify
from hf_memory.expectations import Expectation
from hf_memory.tasks import task_class
from hf_memory.tasks.base import check_names

PROFILES = ("smoke", "cpu", "cpu_long", "full")
"""Names of profiles: seconds; half an hour on two cores; up to four hours on them; the setting of the paper."""

SIZINGS = ("hidden", "params_per_layer", "params", "state")
"""What all arms have alike: the width, or a number of parameters (of a block, of all blocks), or of state numbers."""

TRAINING: dict[str, Any] = {
    "steps": 1000,
    "batch_size": 64,
    "schedule": "cosine",
    "warmup": 0.1,
    "clip": 0.0,
    "weight_decay": 0.1,
    "optim_groups": "documented",
    "stop_at": None,
    "give_up": None,
}
"""Keys of ``training`` with their defaults. ``clip`` 0 is no clipping. ``stop_at`` ends a run once the headline
metric on ``validation`` is above it; ``give_up: [value, share]`` ends it where the metric is not above ``value`` after
that share of the steps.
"""

SIZING: dict[str, Any] = {"by": "hidden", "value": None, "mlp_ratio": None}
EVALUATE: dict[str, Any] = {"points": 0, "splits": ["validation"], "rows": 512}
SEEDS: dict[str, Any] = {"search": [0], "final": [], "fixed": []}
EXTEND: dict[str, Any] = {"up": 4.64e-2, "down": 2.15e-5, "tolerance": 0.005}

_ARM = ("mixer", "model", "training", "size_field")
_AXES = ("config", "length", "width", "size", "depth")
_CONTROL = ("arms", "at", "split", "metric", "at_least")
_SMOKE = {"num_train": 64, "num_validation": 32, "num_test": 32}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A sweep in one profile. Each field is a key of the file; ``profiles`` is the only other one.

    Attributes:
        name: Name of the recipe, a word.
        title: What the figure shows.
        source: Where it was published.
        claim: What was concluded from it.
        paper: The paper's values, as text.
        profile: Name of the profile.
        task: Key of the task.
        config: Configuration of its dataset; None for the first.
        data: Keywords of the dataset and knobs of the law.
        model: Fields of every arm's config.
        training: See :data:`TRAINING`.
        sizing: ``by`` one of :data:`SIZINGS`, to ``value``; ``mlp_ratio`` is the MLP's width over the model's.
        arms: By name: ``mixer`` (by default the name), further ``model`` fields and ``training`` keys, and
            ``size_field``, the config field by which the arm is sized (by default ``hidden_size``).
        grid: Axes over which every arm runs: ``config``, ``length``, ``width`` or ``size`` (the value of ``sizing``),
            ``depth``, and any ``data.<keyword>``, ``model.<field>`` or ``training.<key>``.
        learning_rates: The grid of peak learning rates, rising.
        fixed_learning_rate: A rate of the grid that makes an arm of its own, "identical settings for all".
        extend: How far the grid is extended where a best rate lies on its edge and is better than its neighbour by more
            than ``tolerance``; for all arms together. None for never.
        seeds: Seeds of the weights: ``search`` for every rate of the grid, then ``final`` for the chosen rate, and
            ``fixed`` for the fixed one. Without ``final`` seeds, those of the search count.
        search_on: Values of grid axes: the learning rate is searched there only and holds for all others.
        evaluate: Evaluations during training: the number of log-spaced ``points``, the ``splits`` and the number of
            ``rows`` of each.
        metric: The metric that is judged; by default the headline metric of the task.
        plateau: Level of the metric at which runs linger before they learn; None where there is none.
        control: The run that must work for anything else to count: the best of ``arms`` on ``split`` is ``at_least``.
        expectations: What the claim predicts, judged by :mod:`hf_memory.expectations`.
    """

    name: str
    profile: str
    task: str
    arms: Mapping[str, Mapping[str, Any]]
    learning_rates: tuple[float, ...]
    title: str = ""
    source: str = ""
    claim: str = ""
    paper: str = ""
    config: str | None = None
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sizing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    fixed_learning_rate: float | None = None
    extend: Mapping[str, float] | None = None
    seeds: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    search_on: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    evaluate: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str | None = None
    plateau: float | None = None
    control: Mapping[str, Any] | None = None
    expectations: tuple[Expectation, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise ValueError(f"name must be a word of letters, digits, - and _, got {self.name!r}")
        for name, defaults in (("training", TRAINING), ("sizing", SIZING), ("evaluate", EVALUATE), ("seeds", SEEDS)):
            check_names(getattr(self, name), defaults, f"key of {name}")
            object.__setattr__(self, name, {**defaults, **getattr(self, name)})
        _check_arms(self)
        _check_grid(self)
        _check_rates(self)
        _check_control(self)
        specify(self.task, self.config, **self.data)

    @property
    def metric_name(self) -> str:
        """The metric that is judged."""
        return self.metric or task_class(self.task).headline_metric

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values, from which :meth:`from_json` makes it again."""
        return {**dataclasses.asdict(self), "expectations": [item.to_json() for item in self.expectations]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Recipe":
        """Make a recipe from the values of one profile.

        Raises:
            ValueError: For keys and names that are unknown or missing, and for empty or impossible values.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        check_names(values, names, "key of a recipe")
        missing = [name for name in ("name", "task", "arms", "learning_rates") if name not in values]
        if missing:
            raise ValueError(f"recipe: the key {missing[0]!r} is missing")
        values = {**values, "learning_rates": tuple(float(rate) for rate in _list(values, "learning_rates"))}
        values["expectations"] = tuple(Expectation.from_json(item) for item in values.get("expectations") or ())
        return cls(**values)


def load_recipe(path: str | os.PathLike[str], profile: str = "cpu") -> Recipe:
    """Read a recipe in one of its profiles.

    Raises:
        ValueError: If the file is not YAML, lacks the profile, or holds what :class:`Recipe` refuses; it is named.
    """
    try:
        values = _numbers(yaml.safe_load(Path(path).read_text()))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, got {type(values).__name__}")
    known = list(values.get("arms") or {})
    try:
        recipe = Recipe.from_json(_with_profile(values, profile))
        _check_named_arms(recipe, [*known, *recipe.arms])
        return recipe
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _with_profile(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """The keys of a file with those of one profile over them."""
    profiles = values.pop("profiles", {})
    check_names([profile], PROFILES, "profile")
    check_names(profiles, PROFILES, "profile")
    if profile not in profiles and profile != "smoke":
        raise ValueError(f"profile: {profile!r} is not one of this recipe's (smoke, {', '.join(profiles)})")
    base = "cpu" if "cpu" in profiles else next(iter(profiles), None)
    chosen = merge(values, profiles.get(base if profile == "smoke" else profile) or {})
    if profile == "smoke":
        chosen = merge(_smoke(chosen), profiles.get("smoke") or {})
    return {**chosen, "profile": profile}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides laid over values, mapping by mapping; a list of names over a mapping keeps these of its keys.

    >>> merge({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 5}, "b": 4})
    {'a': {'x': 1, 'y': 5}, 'b': 4}
    >>> merge({"arms": {"lstm": {}, "gru": {}}}, {"arms": ["gru"]})
    {'arms': {'gru': {}}}
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key != "grid":
            merged[key] = merge(old, value)
        elif isinstance(old, Mapping) and isinstance(value, list):
            check_names(value, old, f"entry of {key}")
            merged[key] = {name: old[name] for name in value}
        else:
            merged[key] = value
    return merged


def _smoke(values: dict[str, Any]) -> dict[str, Any]:
    """A few steps of every arm at one rate and the first value of every axis but ``config``."""
    grid = {axis: choices if axis == "config" else choices[:1] for axis, choices in (values.get("grid") or {}).items()}
    arms = {
        name: {**(arm or {}), "training": {**((arm or {}).get("training") or {}), "steps": 3}}
        for name, arm in (values.get("arms") or {}).items()
    }
    rate = values.get("fixed_learning_rate") or (values.get("learning_rates") or [1e-3])[0]
    final = (values.get("seeds") or {}).get("final") or []
    training = {**(values.get("training") or {}), "steps": 3, "batch_size": 8}
    return {
        **values,
        "grid": grid,
        "arms": arms,
        "training": training,
        "learning_rates": [rate],
        "extend": None,
        "data": {**(values.get("data") or {}), **_SMOKE},
        "seeds": {"search": [0], "final": final[:1], "fixed": []},
        "evaluate": {
            **(values.get("evaluate") or {}),
            "points": min(2, (values.get("evaluate") or {}).get("points", 0)),
        },
    }


def _numbers(value: Any) -> Any:
    """Numbers like ``1e-3``, which YAML 1.1 reads as text because they have no point."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value)
    return float(value) if is_number else value


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    """A list that is not empty."""
    found = values[name]
    if not isinstance(found, (list, tuple)) or not found:
        raise ValueError(f"{name} must be a list of at least one value, got {found!r}")
    return list(found)


def _check_arms(recipe: Recipe) -> None:
    if not isinstance(recipe.arms, Mapping) or not recipe.arms:
        raise ValueError(f"arms must name at least one arm, got {recipe.arms!r}")
    arms = {}
    for name, arm in recipe.arms.items():
        arm = {"mixer": name, **(arm or {})}
        check_names(arm, _ARM, f"key of arm {name!r}")
        check_names([arm["mixer"]], model_keys(), f"mixer of arm {name!r}")
        check_names(arm.get("training") or {}, TRAINING, f"key of training of arm {name!r}")
        arms[name] = arm
    object.__setattr__(recipe, "arms", arms)


def _check_grid(recipe: Recipe) -> None:
    by = recipe.sizing["by"]
    check_names([by], SIZINGS, "sizing")
    for axis in recipe.grid:
        _list(recipe.grid, axis)
        if "." not in axis:
            check_names([axis], _AXES, "axis of grid")
            continue
        group, _, key = axis.partition(".")
        check_names([group], ("data", "model", "training"), "group of an axis of grid")
        if group == "training":
            check_names([key], TRAINING, "training axis of grid")
        if group == "data":
            check_names([key], (*KEYWORDS, *task_class(recipe.task).knob_names()), "data axis of grid")
    wrong = "size" if by == "hidden" else "width"
    if wrong in recipe.grid:
        raise ValueError(
            f"grid: the axis is {'width' if by == 'hidden' else 'size'} where sizing is by {by}, got {wrong}"
        )
    if by != "hidden" and recipe.sizing["value"] is None and "size" not in recipe.grid:
        raise ValueError(f"sizing: value must be given for sizing by {by}, or the axis size of grid")
    check_names(recipe.search_on, recipe.grid, "axis of search_on")


def _check_rates(recipe: Recipe) -> None:
    rates = recipe.learning_rates
    if list(rates) != sorted(set(rates)) or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ValueError(f"learning_rates must be distinct positive numbers in rising order, got {list(rates)}")
    if recipe.fixed_learning_rate not in (None, *rates):
        raise ValueError(f"fixed_learning_rate must be one of {list(rates)}, got {recipe.fixed_learning_rate}")
    if recipe.seeds["fixed"] and recipe.fixed_learning_rate is None:
        raise ValueError("seeds: fixed needs fixed_learning_rate")
    _list(recipe.seeds, "search")
    if set(recipe.seeds["search"]) & set(recipe.seeds["final"]):
        raise ValueError("seeds: final seeds must be fresh ones, which the search did not see")
    if recipe.extend is not None:
        check_names(recipe.extend, EXTEND, "key of extend")
        object.__setattr__(recipe, "extend", {**EXTEND, **recipe.extend})


def _check_control(recipe: Recipe) -> None:
    if recipe.control is None:
        return
    check_names(recipe.control, _CONTROL, "key of control")
    if "at_least" not in recipe.control:
        raise ValueError("control: the key 'at_least' is missing")
    if not set(_list(recipe.control, "arms")) & set(recipe.arms):
        raise ValueError(f"control: none of its arms is one of this profile's ({', '.join(recipe.arms)})")


def _check_named_arms(recipe: Recipe, known: Sequence[str]) -> None:
    """Raise where a name is no arm of any profile; one that this profile leaves out is an expectation not decided."""
    for item in recipe.expectations:
        for measure in item.measures:
            check_names(measure.arms, known, f"arm in the expectation {item.claim!r}")
    if recipe.control is not None:
        check_names(recipe.control["arms"], known, "arm of control")
