"""Recipes: a published figure as one file, with its claim, its settings and the outcome that it predicts.

Every key of a file is checked against :class:`Recipe`, where it is documented;
:mod:`hf_memory.studies.recipes_yaml` reads it.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.data.specification import KEYWORDS, specify
from hf_memory.experiments.mechanisms import TASKS_WITH_PAIRS
from hf_memory.mixers.auto import model_keys
from hf_memory.names import check_names
from hf_memory.studies.expectations import Expectation
from hf_memory.tasks import task_class

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
_FURTHER = {"evaluate": ("mechanisms",)}
"""Keys without a default, so that the runs of a recipe that lacks them stay the runs they were."""
EXTEND: dict[str, Any] = {"up": 4.64e-2, "down": 2.15e-5, "tolerance": 0.005}

_ARM = ("mixer", "model", "training", "size_field")
_AXES = ("config", "length", "width", "size", "depth")
_CONTROL = ("arms", "at", "split", "metric", "at_least")


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
            ``rows`` of each. With ``mechanisms: true`` counterfactual recall and induction are measured as well.
        metric: The metric that is judged; by default the headline metric of the task.
        plateau: Level of the metric at which runs linger before they learn; None where there is none.
        control: The run that must work for anything else to count: the best of ``arms`` on ``split`` is ``at_least``.
        expectations: What the claim predicts, judged by :mod:`hf_memory.studies.expectations`.
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
            check_names(getattr(self, name), (*defaults, *_FURTHER.get(name, ())), f"key of {name}")
            object.__setattr__(self, name, {**defaults, **getattr(self, name)})
        if self.evaluate.get("mechanisms") and self.task not in TASKS_WITH_PAIRS:
            raise ValueError(f"evaluate: mechanisms need one of {', '.join(TASKS_WITH_PAIRS)}, got {self.task}")
        _check_arms(self)
        _check_grid(self)
        _check_rates(self)
        _check_control(self)
        for axes in (measure.at for item in self.expectations for measure in item.measures):
            check_names(axes, self.grid, "axis of at in an expectation")
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
    check_names(recipe.control.get("at") or {}, recipe.grid, "axis of at in control")
    if "at_least" not in recipe.control:
        raise ValueError("control: the key 'at_least' is missing")
    if not set(_list(recipe.control, "arms")) & set(recipe.arms):
        raise ValueError(f"control: none of its arms is one of this profile's ({', '.join(recipe.arms)})")
