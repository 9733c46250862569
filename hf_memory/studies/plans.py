"""From a recipe to its cells: settings with equal budgets, the search over learning rates, and the runs that follow."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.data.specification import Specification, length_bounds, specify
from hf_memory.studies.cells import Cell
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.sizing import Size, find_size

STATE_BYTES = 4
"""Bytes of a number of a state: states are held in float32."""

_TOKENS_PER_SECOND = 25_000
"""Training throughput of one CPU core at width 64 and two layers, a round figure for estimates."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """An arm at one point of the grid: everything but learning rate and seed.

    Attributes:
        place: Arm and grid axes.
        mixer: Key of the mixer.
        config: Configuration of the dataset.
        data: Keywords of the dataset.
        fields: Fields of the config.
        training: All keys of ``training``.
        size: Budget and what the model has of it.
        row_length: Columns of a row of the training length.
        eval_tokens: Tokens of all evaluations of one run.
    """

    place: Mapping[str, Any]
    mixer: str
    config: str | None
    data: Mapping[str, Any]
    fields: Mapping[str, Any]
    training: Mapping[str, Any]
    size: Size
    row_length: int
    eval_tokens: int

    @property
    def seconds(self) -> float:
        """A rough estimate of one run on one core, before any has been measured."""
        width, depth = self.fields["hidden_size"], self.fields["num_hidden_layers"]
        tokens = self.training["steps"] * self.training["batch_size"] * self.row_length + self.eval_tokens / 3
        return 3.0 + tokens / (_TOKENS_PER_SECOND * 64 / width * 2 / depth)

    def cell(self, recipe: Recipe, stage: str, learning_rate: float, seed: int, grid: Sequence[float] = ()) -> Cell:
        """The run at a learning rate and seed."""
        return Cell(
            place=self.place,
            stage=stage,
            mixer=self.mixer,
            task=recipe.task,
            config=self.config,
            data=self.data,
            fields=self.fields,
            training=self.training,
            evaluate=recipe.evaluate,
            learning_rate=learning_rate,
            seed=seed,
            learning_rate_grid=tuple(grid),
        )


def make_settings(recipe: Recipe) -> list[Setting]:
    """All settings of a recipe: every arm at every point of the grid.

    Data are the same for all: as many training rows as the longest run needs, so that no row is seen twice.

    Raises:
        ValueError: If a setting cannot be sized or built; it is named.
    """
    points = [dict(zip(recipe.grid, values, strict=True)) for values in itertools.product(*recipe.grid.values())]
    trainings = [_training(recipe, arm, point) for arm in recipe.arms for point in points]
    num_train = max(training["steps"] * training["batch_size"] for training in trainings)
    settings = []
    for arm, point in itertools.product(recipe.arms, points):
        place = {"arm": arm, **point}
        try:
            settings.append(_setting(recipe, place, num_train))
        except ValueError as error:
            raise ValueError(f"{', '.join(f'{name} {value}' for name, value in place.items())}: {error}") from error
    return settings


def _training(recipe: Recipe, arm: str, place: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of ``training`` of an arm at a place."""
    return {**recipe.training, **(recipe.arms[arm].get("training") or {}), **_group(place, "training")}


def _group(place: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Values of the axes ``<group>.<key>`` by key."""
    return {axis.partition(".")[2]: value for axis, value in place.items() if axis.startswith(f"{group}.")}


def _setting(recipe: Recipe, place: Mapping[str, Any], num_train: int) -> Setting:
    arm = recipe.arms[place["arm"]]
    config = place.get("config", recipe.config)
    data = {"num_train": num_train, **recipe.data, **_group(place, "data")}
    if "length" in place:
        data["length"] = place["length"]
    specification = specify(recipe.task, config, **data)
    fields = {"num_hidden_layers": 2, **recipe.model, **(arm.get("model") or {}), **_group(place, "model")}
    if "depth" in place:
        fields["num_hidden_layers"] = place["depth"]
    by, ratio, field = recipe.sizing["by"], recipe.sizing["mlp_ratio"], arm.get("size_field") or "hidden_size"
    target = place.get("width" if by == "hidden" else "size", recipe.sizing["value"])
    if target is None:
        target = fields.get("hidden_size", 64)
    length = length_bounds(specification.train_length)[1]
    if "hidden_size" not in fields and field != "hidden_size":
        raise ValueError(f"model: hidden_size must be given where an arm is sized by {field}")
    size = find_size(arm["mixer"], specification.task, length, fields, by, target, field=field, mlp_ratio=ratio)
    training = _training(recipe, place["arm"], place)
    return Setting(
        place=place,
        mixer=arm["mixer"],
        config=config,
        data=data,
        fields={**fields, **size.fields},
        training=training,
        size=size,
        row_length=specification.task.row_length(length),
        eval_tokens=_eval_tokens(specification, recipe.evaluate),
    )


def _eval_tokens(specification: Specification, evaluate: Mapping[str, Any]) -> int:
    """Tokens of the evaluations during and after training."""
    total = 0
    for name, split in specification.splits.items():
        columns = split.parts[0].task.row_length(length_bounds(split.parts[0].length)[1])
        total += 0 if name == "train" else columns * split.num_examples
        if name in evaluate["splits"]:
            total += evaluate["points"] * columns * min(evaluate["rows"], split.num_examples)
    return total


def search_place(recipe: Recipe, place: Mapping[str, Any]) -> dict[str, Any]:
    """The place at which the learning rate of ``place`` is searched."""
    return {**place, **recipe.search_on}


def search_cells(recipe: Recipe, settings: Sequence[Setting], rates: Sequence[float]) -> list[Cell]:
    """The runs of the search."""
    searched = [setting for setting in settings if search_place(recipe, setting.place) == dict(setting.place)]
    if not searched:
        raise ValueError(f"search_on: no point of the grid has {dict(recipe.search_on)}")
    seeds = recipe.seeds["search"]
    return [setting.cell(recipe, "search", rate, seed) for seed in seeds for setting in searched for rate in rates]


def final_cells(
    recipe: Recipe, settings: Sequence[Setting], rates: Sequence[float], chosen: Sequence[float]
) -> list[Cell]:
    """The runs after the search, with ``chosen`` the rate of each setting.

    Where there are no fresh seeds and the rate was searched elsewhere, the seeds of the search run here too.
    """
    cells = []
    for setting, rate in zip(settings, chosen, strict=True):
        elsewhere = search_place(recipe, setting.place) != dict(setting.place)
        seeds = recipe.seeds["final"] or (recipe.seeds["search"] if elsewhere else [])
        cells += [setting.cell(recipe, "final", rate, seed, rates) for seed in seeds]
        fixed = recipe.fixed_learning_rate
        if fixed is not None and not (math.isclose(fixed, rate) and recipe.seeds["final"]):
            cells += [setting.cell(recipe, "fixed", fixed, seed) for seed in recipe.seeds["fixed"]]
    return cells


def next_rates(recipe: Recipe, rates: Sequence[float], curves: Sequence[Mapping[float, float]]) -> list[float]:
    """Rates by which the grid is to be extended, for all arms together; none where no best rate asks for it.

    A best rate on the edge asks for more where it beats the rate beside it by more than the tolerance, so that a flat
    top does not.
    """
    if recipe.extend is None or len(rates) < 2:
        return []
    low, high, tolerance = recipe.extend["down"], recipe.extend["up"], recipe.extend["tolerance"]
    new = []
    for edge, inner, limit_ok in (
        (rates[-1], rates[-2], lambda rate: rate <= high * 1.001),
        (rates[0], rates[1], lambda rate: rate >= low * 0.999),
    ):
        rate = next_rate(inner, edge)
        asks = any(curve[edge] == max(curve.values()) and curve[edge] > curve[inner] + tolerance for curve in curves)
        if asks and limit_ok(rate):
            new.append(rate)
    return new


def next_rate(inner: float, edge: float) -> float:
    """The rate that follows two neighbours of a grid, with three digits.

    Where they lie on a grid of so many rates a decade, so does the next one; else their ratio is kept.

    >>> next_rate(2.15e-3, 4.64e-3), next_rate(2.15e-4, 1e-4), next_rate(1e-3, 2e-3)
    (0.01, 4.64e-05, 0.004)
    """
    per_decade = round(1 / abs(math.log10(edge / inner)))
    places = [per_decade * math.log10(rate) for rate in (inner, edge)]
    if per_decade and all(abs(place - round(place)) < 0.01 for place in places):
        following = 10 ** ((2 * round(places[1]) - round(places[0])) / per_decade)
    else:
        following = edge * edge / inner
    return float(f"{following:.2e}")
