"""Recipes: a published figure as one file, with its claim, its settings and the outcome that it predicts.

Every key of a file is documented at :class:`Recipe`; :mod:`hf_memory.studies.recipe_schema` says what it accepts, and
:mod:`hf_memory.studies.recipes_yaml` reads it.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.data.specification import KEYWORDS, Specification, specify
from hf_memory.experiments.mechanisms import TASKS_WITH_PAIRS
from hf_memory.mixers.auto import model_keys
from hf_memory.names import check_names
from hf_memory.studies.expectations import Expectation, matches
from hf_memory.studies.recipe_schema import AXES, TRAINING_KEYS, check_values
from hf_memory.studies.verdicts import LOOKS
from hf_memory.tasks import task_class

TRAINING: dict[str, Any] = {
    "steps": 1000,
    "batch_size": 64,
    "schedule": "cosine",
    "warmup": 0.1,
    "clip": 0.0,
    "weight_decay": 0.1,
    "adam_beta2": 0.999,
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
SEEDS: dict[str, Any] = {"search": [0], "final": [], "fixed": [], "looks": [], "rows": "shared"}
"""See ``seeds`` of :class:`Recipe`."""
FIRST_FRESH = 100
"""The first seed of looks: those below were used while recipes were designed."""
EXTEND: dict[str, Any] = {"up": 4.64e-2, "down": 2.15e-5, "tolerance": 0.005}

_CHANGE = ("claim", "date", "why")


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
        sizing: ``by`` one of :data:`hf_memory.studies.recipe_schema.SIZINGS`, to ``value``; ``mlp_ratio`` is the
            MLP's width over the model's.
        arms: By name: ``mixer`` (by default the name), further ``model`` fields and ``training`` keys,
            ``size_field``, the config field by which the arm is sized (by default ``hidden_size``), ``width`` and
            ``mlp_ratio`` in place of those of ``sizing``, ``learning_rate``, a rate for which nothing is searched, and
            ``at``, values of axes of the grid, or lists of them, to which the arm is kept.
        grid: Axes over which every arm runs: ``config``, ``length``, ``width`` or ``size`` (the value of ``sizing``),
            ``depth``, and any ``data.<keyword>``, ``model.<field>`` or ``training.<key>``.
        learning_rates: The grid of peak learning rates, rising.
        fixed_learning_rate: A rate of the grid that makes an arm of its own, "identical settings for all".
        extend: How far the grid is extended where a chosen rate lies on its edge and is better than its neighbour by
            more than ``tolerance``, in the metric or in the loss that decides a tie; for all arms together. None for
            never.
        seeds: Seeds of the weights: ``search`` for every rate of the grid, then ``final`` for the chosen rate, and
            ``fixed`` for the fixed one. Without ``final`` seeds, those of the search count. ``looks``, the first ones
            of 5, 10 and 20, stand in place of both: seeds from 100 on, as many as the first look has and for the arms
            of claims that it leaves open those of the next. With ``rows: own`` each seed brings rows and order of its
            own, the same for all arms; else all have those of data seed 0.
        search_on: Values of grid axes: the learning rate is searched there only and holds for all others.
        evaluate: Evaluations during training: the number of log-spaced ``points``, or ``every`` so many steps; the
            ``splits`` and the number of ``rows`` of each. At the first look at which the headline metric on
            ``validation`` is above ``crossing``, all splits are evaluated. With ``mechanisms: true`` counterfactual
            recall and induction are measured as well. At the end, with ``generate: true``, the model also writes the
            answers itself, whose metrics have ``generated_`` before their names; with ``decays: true``, what is left of
            a state until it is due; and ``slices: {stale: [age]}`` tells a metric apart by annotations of the task.
        metric: The metric that is judged; by default the headline metric of the task.
        plateau: Level of the metric at which runs linger before they learn; None where there is none.
        first_depth: Depths of the grid are tried in order until the mean over the search's seeds on ``validation`` is
            above this level; the first such depth, else the last one, alone is judged. None for all depths.
        checkpoints: Whether the final checkpoint of every run after the search, or of the search where none follows,
            stays in the results folder; by default in all profiles but ``full``, whose models may be large.
        runs_of: Name of a recipe whose runs these are: nothing is trained, and its folder is read. None for own runs.
        control: The run that must work for anything else to count: the best of ``arms`` on ``split`` is ``at_least``.
        expectations: What the claim predicts, judged by :mod:`hf_memory.studies.judging`. One with ``for_each``, a list
            of arms, stands for one expectation per arm, whose name takes the place of ``{arm}``. In a claim the steps
            for which its runs are trained take the place of ``{steps}``.
        changed: Claims that were registered and are no more, each with its old wording as ``claim``, the ``date`` of
            the change, and ``why``.
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
    seeds: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    search_on: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    evaluate: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str | None = None
    plateau: float | None = None
    first_depth: float | None = None
    checkpoints: bool | None = None
    runs_of: str | None = None
    control: Mapping[str, Any] | None = None
    expectations: tuple[Expectation, ...] = ()
    changed: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, defaults in (("training", TRAINING), ("sizing", SIZING), ("evaluate", EVALUATE), ("seeds", SEEDS)):
            object.__setattr__(self, name, {**defaults, **getattr(self, name)})
        _check_evaluate(self)
        _check_arms(self)
        _check_grid(self)
        _check_rates(self)
        _check_control(self)
        for axes in (measure.at for item in self.expectations for measure in item.measures):
            check_names(axes, self.grid, "axis of at in an expectation")
        object.__setattr__(self, "expectations", tuple(_with_steps(self, item) for item in self.expectations))
        _check_changed(self)
        specify(self.task, self.config, **self.data)

    @property
    def metric_name(self) -> str:
        """The metric that is judged."""
        return self.metric or task_class(self.task).headline_metric

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether final checkpoints stay in the results folder."""
        return self.profile != "full" if self.checkpoints is None else self.checkpoints

    def places(self) -> list[dict[str, Any]]:
        """Every arm at every point of the grid that its ``at`` leaves it."""
        points = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        return [
            {"arm": name, **point}
            for name, arm in self.arms.items()
            for point in points
            if matches(point, arm.get("at") or {})
        ]

    def at(self, place: Mapping[str, Any], group: str) -> dict[str, Any]:
        """Values of the axes ``<group>.<key>`` of the grid by key."""
        return {axis.partition(".")[2]: value for axis, value in place.items() if axis.startswith(f"{group}.")}

    def training_at(self, place: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of ``training`` of a place."""
        arm = self.arms[place["arm"]]
        return {**self.training, **(arm.get("training") or {}), **self.at(place, "training")}

    def steps_of(self, expectation: Expectation) -> list[int]:
        """The steps for which the runs behind an expectation are trained; none where the profile has no such run."""
        places = [place for place in self.places() if any(measure.reads(place) for measure in expectation.measures)]
        return sorted({self.training_at(place)["steps"] for place in places})

    def data_at(self, place: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords of the dataset of a place, without the number of training rows where the recipe leaves it open."""
        length = {"length": place["length"]} if "length" in place else {}
        return {**self.data, **self.at(place, "data"), **length}

    def specification_at(self, place: Mapping[str, Any]) -> Specification:
        """The dataset of a place."""
        return specify(self.task, place.get("config", self.config), **self.data_at(place))

    def planned_seeds(self, stage: str, look: int = 0) -> list[int]:
        """Seeds of a stage, with ``look`` the number of the look where there are looks."""
        if stage == "search" or not self.seeds["looks"]:
            return list(self.seeds[stage])
        if stage == "fixed" and self.fixed_learning_rate is None:
            return []
        return list(range(FIRST_FRESH, FIRST_FRESH + self.seeds["looks"][look]))

    def data_seed(self, seed: int) -> int:
        """The seed of the rows and of their order that goes with a seed of the weights."""
        return seed if self.seeds["rows"] == "own" else 0

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values, from which :meth:`from_json` makes it again."""
        return {**dataclasses.asdict(self), "expectations": [item.to_json() for item in self.expectations]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Recipe":
        """Make a recipe from the values of one profile.

        Raises:
            ValueError: For keys and names that are unknown or missing, and for empty or impossible values.
        """
        check_values(values)
        missing = [name for name in ("name", "task", "arms", "learning_rates") if name not in values]
        if missing:
            raise ValueError(f"recipe: the key {missing[0]!r} is missing")
        values = {**values, "learning_rates": tuple(map(float, values["learning_rates"]))}
        items = [one for item in values.get("expectations") or () for one in _each(item)]
        values["expectations"] = tuple(Expectation.from_json(item) for item in items)
        values["changed"] = tuple(values.get("changed") or ())
        return cls(**values)


def _each(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An expectation, or one for each arm of its ``for_each``."""
    if "for_each" not in item:
        return [item]
    rest = {key: value for key, value in item.items() if key != "for_each"}
    return [_filled(rest, arm) for arm in item["for_each"]]


def _filled(value: Any, arm: str) -> Any:
    """A value with the name of an arm in place of ``{arm}``, also within."""
    if isinstance(value, Mapping):
        return {key: _filled(item, arm) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item, arm) for item in value]
    return value.replace("{arm}", arm) if isinstance(value, str) else value


def _with_steps(recipe: Recipe, expectation: Expectation) -> Expectation:
    """An expectation with the steps of its runs in place of ``{steps}`` in its claim."""
    steps = recipe.steps_of(expectation) or [recipe.training["steps"]]
    if "{steps}" in expectation.claim and len(steps) > 1:
        raise ValueError(
            f"claim {expectation.claim!r}: its runs have several numbers of steps, {steps}; write them out"
        )
    return dataclasses.replace(expectation, claim=expectation.claim.replace("{steps}", f"{steps[0]:,}"))


def _check_evaluate(recipe: Recipe) -> None:
    wanted, task = recipe.evaluate, task_class(recipe.task)
    if wanted.get("mechanisms") and recipe.task not in TASKS_WITH_PAIRS:
        raise ValueError(f"evaluate: mechanisms need one of {', '.join(TASKS_WITH_PAIRS)}, got {recipe.task}")
    if wanted.get("generate") and task.head != "causal":
        raise ValueError(f"evaluate: generate needs a task whose answers are written, got {recipe.task}")
    if wanted.get("every") and wanted["points"]:
        raise ValueError("evaluate: points and every exclude each other; give points: 0")
    if wanted.get("crossing") is not None and "validation" not in wanted["splits"]:
        raise ValueError("evaluate: crossing needs validation among the splits")


def _check_arms(recipe: Recipe) -> None:
    arms = {}
    for name, arm in recipe.arms.items():
        arm = {"mixer": name, **(arm or {})}
        check_names([arm["mixer"]], model_keys(), f"mixer of arm {name!r}")
        arms[name] = arm
    object.__setattr__(recipe, "arms", arms)


def _check_grid(recipe: Recipe) -> None:
    by = recipe.sizing["by"]
    for axis, values in recipe.grid.items():
        group, _, key = axis.rpartition(".")
        check_names([group], ("", "data", "model", "training"), "group of an axis of grid")
        known = {"": AXES, "training": TRAINING_KEYS}.get(group)
        if known is not None:
            check_names([key], known, f"{group} axis of grid".strip())
            for value in values:
                known[key].check(value, f"grid.{axis}")
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
    for axis, value in recipe.search_on.items():
        check_names([value], recipe.grid[axis], f"{axis} of search_on")
    _check_places(recipe)
    depths = list(recipe.grid.get("depth", ()))
    if recipe.first_depth is not None and (not depths or depths != sorted(depths) or recipe.extend is not None):
        raise ValueError("first_depth needs the axis depth of grid, in rising order, and extend: null")
    if recipe.first_depth is not None and "depth" in recipe.search_on:
        raise ValueError("search_on: each depth has a search of its own where first_depth is given")


def _check_places(recipe: Recipe) -> None:
    """Raise where an arm is kept to axes or values that the grid does not have, or to none of it."""
    for name, arm in recipe.arms.items():
        check_names(arm.get("at") or {}, recipe.grid, f"axis of at in arm {name!r}")
    places = recipe.places()
    empty = set(recipe.arms) - {place["arm"] for place in places}
    if empty:
        raise ValueError(f"arms.{min(empty)}.at leaves no point of the grid")
    for place in places:
        if recipe.arms[place["arm"]].get("at") and {**place, **recipe.search_on} not in places:
            raise ValueError(f"arms.{place['arm']}.at leaves out the place of search_on, where rates are searched")


def _check_rates(recipe: Recipe) -> None:
    rates = recipe.learning_rates
    if list(rates) != sorted(set(rates)):
        raise ValueError(f"learning_rates must be distinct numbers in rising order, got {list(rates)}")
    if recipe.fixed_learning_rate not in (None, *rates):
        raise ValueError(f"fixed_learning_rate must be one of {list(rates)}, got {recipe.fixed_learning_rate}")
    if recipe.seeds["fixed"] and recipe.fixed_learning_rate is None:
        raise ValueError("seeds: fixed needs fixed_learning_rate")
    _check_looks(recipe)
    if set(recipe.seeds["search"]) & set(recipe.seeds["final"]):
        raise ValueError("seeds: final seeds must be fresh ones, which the search did not see")
    if recipe.extend is not None:
        object.__setattr__(recipe, "extend", {**EXTEND, **recipe.extend})


def _check_looks(recipe: Recipe) -> None:
    looks, seeds = list(recipe.seeds["looks"]), recipe.seeds
    if looks and looks != list(LOOKS)[: len(looks)] and not (len(looks) == 1 and 0 < looks[0] < min(LOOKS)):
        raise ValueError(f"seeds: looks must be the first ones of {list(LOOKS)}, or one smaller number, got {looks}")
    if looks and (seeds["final"] or seeds["fixed"]):
        raise ValueError("seeds: looks stand in place of final and fixed")
    if looks and max(seeds["search"]) >= FIRST_FRESH:
        raise ValueError(f"seeds: those of the search must be below {FIRST_FRESH}, where fresh ones begin")


def _check_changed(recipe: Recipe) -> None:
    for entry in recipe.changed:
        check_names(entry, _CHANGE, "key of an entry of changed")
        missing = [key for key in _CHANGE if not isinstance(entry.get(key), str) or not entry[key].strip()]
        if missing:
            raise ValueError(f"changed: the text {missing[0]!r} is missing in {dict(entry)!r}")
    known = {item.claim for item in recipe.expectations}
    kept = [entry["claim"] for entry in recipe.changed if entry["claim"] in known]
    if kept:
        raise ValueError(f"changed: {kept[0]!r} is still expected")


def _check_control(recipe: Recipe) -> None:
    if recipe.control is None:
        return
    check_names(recipe.control.get("at") or {}, recipe.grid, "axis of at in control")
    if not set(recipe.control["arms"]) & set(recipe.arms):
        raise ValueError(f"control: none of its arms is one of this profile's ({', '.join(recipe.arms)})")
