"""From a recipe to its cells: settings, the search over learning rates, and the runs that follow."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.data.specification import Specification, length_bounds
from hf_memory.experiments.run import fields_for_length
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
        rows = {"seed": recipe.data_seed(seed)} if recipe.data_seed(seed) else {}
        return Cell(
            place=self.place,
            stage=stage,
            mixer=self.mixer,
            task=recipe.task,
            config=self.config,
            data={**self.data, **rows},
            fields=self.fields,
            training=self.training,
            evaluate=recipe.evaluate,
            learning_rate=learning_rate,
            seed=seed,
            learning_rate_grid=tuple(grid),
            keep=recipe.keeps_checkpoints and (stage != "search" or not recipe.planned_seeds("final")),
        )


def make_settings(recipe: Recipe) -> list[Setting]:
    """All settings of a recipe: every arm at every point of the grid.

    Data are the same for all: as many training rows as the longest run needs, so that no row is seen twice.

    Raises:
        ValueError: If a setting cannot be sized or built; it is named.
    """
    longest, settings = longest_run(recipe), []
    for place in recipe.places():
        num_train = _rows_needed(recipe, place) if _is_apart(recipe, place) else longest
        try:
            settings.append(_setting(recipe, place, num_train))
        except ValueError as error:
            raise ValueError(f"{', '.join(f'{name} {value}' for name, value in place.items())}: {error}") from error
    return settings


def longest_run(recipe: Recipe) -> int:
    """Training rows of the longest run, which all have but those of arms with a published setting of their own."""
    return max((_rows_needed(recipe, place) for place in recipe.places() if not _is_apart(recipe, place)), default=0)


def _rows_needed(recipe: Recipe, place: Mapping[str, Any]) -> int:
    training = recipe.training_at(place)
    return int(training["steps"] * training["batch_size"])


def _is_apart(recipe: Recipe, place: Mapping[str, Any]) -> bool:
    """Whether an arm has a published setting of its own, and with it rows of its own."""
    return recipe.arms[place["arm"]].get("learning_rate") is not None


def _setting(recipe: Recipe, place: Mapping[str, Any], num_train: int) -> Setting:
    """Data, then fields, then the size that goes with them; each is asked once."""
    arm, specification = recipe.arms[place["arm"]], recipe.specification_at(place)
    fields = {"num_hidden_layers": 2, **recipe.model, **(arm.get("model") or {}), **recipe.at(place, "model")}
    if "depth" in place:
        fields["num_hidden_layers"] = place["depth"]
    by, field = recipe.sizing["by"], arm.get("size_field") or "hidden_size"
    ratio = recipe.sizing["mlp_ratio"] if arm.get("mlp_ratio") is None else arm["mlp_ratio"]
    target = arm.get("width") or place.get("width" if by == "hidden" else "size", recipe.sizing["value"])
    if target is None:
        target = fields.get("hidden_size", 64)
    length, training = length_bounds(specification.train_length)[1], recipe.training_at(place)
    if "hidden_size" not in fields and field != "hidden_size":
        raise ValueError(f"model: hidden_size must be given where an arm is sized by {field}")
    size = find_size(arm["mixer"], specification.task, length, fields, by, target, field=field, mlp_ratio=ratio)
    return Setting(
        place=place,
        mixer=arm["mixer"],
        config=place.get("config", recipe.config),
        data={"num_train": num_train, **recipe.data_at(place)},
        fields=fields_for_length(arm["mixer"], {**fields, **size.fields}, specification),
        training=training,
        size=size,
        row_length=specification.task.row_length(length),
        eval_tokens=_eval_tokens(specification, recipe.evaluate, training["steps"]),
    )


def _eval_tokens(specification: Specification, evaluate: Mapping[str, Any], steps: int) -> int:
    """Tokens of the evaluations during and after training."""
    total, looks = 0, math.ceil(steps / evaluate["every"]) if evaluate.get("every") else evaluate["points"]
    for name, split in specification.splits.items():
        columns = split.parts[0].task.row_length(length_bounds(split.parts[0].length)[1])
        total += 0 if name == "train" else columns * split.num_examples
        if name in evaluate["splits"]:
            total += looks * columns * min(evaluate["rows"], split.num_examples)
    return total


def by_depth(recipe: Recipe, settings: Sequence[Setting]) -> list[list[Setting]]:
    """Settings in the order in which their searches run: depth by depth where a depth is searched, else together."""
    if recipe.first_depth is None:
        return [list(settings)]
    return [[setting for setting in settings if setting.place["depth"] == depth] for depth in recipe.grid["depth"]]


def search_place(recipe: Recipe, place: Mapping[str, Any]) -> dict[str, Any]:
    """The place at which the learning rate of ``place`` is searched."""
    return {**place, **recipe.search_on}


def search_cells(recipe: Recipe, settings: Sequence[Setting], rates: Sequence[float]) -> list[Cell]:
    """The runs of the search."""
    searched = [setting for setting in settings if is_searched(recipe, setting.place)]
    if not searched and not all(_is_apart(recipe, setting.place) for setting in settings):
        raise ValueError(f"search_on: no point of the grid has {dict(recipe.search_on)}")
    return [
        setting.cell(recipe, "search", rate, seed)
        for seed in recipe.seeds["search"]
        for setting in searched
        for rate in _rates_of(recipe, setting.place, rates)
    ]


def _rates_of(recipe: Recipe, place: Mapping[str, Any], rates: Sequence[float]) -> Sequence[float]:
    """The rates of a place: those of the grid, or the one of its arm, which no extension of the grid concerns."""
    own = recipe.arms[place["arm"]].get("learning_rate")
    if own is None:
        return rates
    return [own] if list(rates) == list(recipe.learning_rates) else []


def is_searched(recipe: Recipe, place: Mapping[str, Any]) -> bool:
    """Whether the seeds of the search run at a place: to find its rate, or to name one arm among several."""
    is_named = any(item.left.over == "named" and place["arm"] in item.left.arms for item in recipe.expectations)
    return search_place(recipe, place) == dict(place) and (is_named or not _is_apart(recipe, place))


def final_cells(
    recipe: Recipe,
    settings: Sequence[Setting],
    rates: Sequence[float],
    chosen: Sequence[float | None],
    look: int = 0,
) -> list[Cell]:
    """The runs after the search.

    Where there are no fresh seeds and the rate was searched elsewhere, the seeds of the search run here too.

    Args:
        recipe: The recipe.
        settings: The settings that are to run.
        rates: The grid that was searched.
        chosen: The rate of each setting; None where the search has not come to its end.
        look: Number of the look, for recipes with looks; its cells hold those of the looks before.
    """
    cells = []
    for setting, found in zip(settings, chosen, strict=True):
        own = recipe.arms[setting.place["arm"]].get("learning_rate")
        rate, grid = (found, rates) if own is None else (own, ())
        if rate is None:
            continue
        elsewhere = search_place(recipe, setting.place) != dict(setting.place)
        fresh = recipe.planned_seeds("final", look)
        seeds = fresh or (recipe.seeds["search"] if elsewhere or own is not None else [])
        cells += [setting.cell(recipe, "final", rate, seed, grid) for seed in seeds]
        fixed = None if own is not None else recipe.fixed_learning_rate
        if fixed is not None and not (math.isclose(fixed, rate) and fresh):
            cells += [setting.cell(recipe, "fixed", fixed, seed) for seed in recipe.planned_seeds("fixed", look)]
    return cells


def rates_beyond(recipe: Recipe, rates: Sequence[float]) -> list[tuple[float, float, float]]:
    """For each end at which a grid may grow: the rate that would join it, the edge, and the rate beside that."""
    if recipe.extend is None or len(rates) < 2:
        return []
    ends = ((rates[-1], rates[-2]), (rates[0], rates[1]))
    found = [(next_rate(inner, edge), edge, inner) for edge, inner in ends]
    low, high = recipe.extend["down"] * 0.999, recipe.extend["up"] * 1.001
    return [one for one in found if low <= one[0] <= high]


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
