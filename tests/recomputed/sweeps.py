"""A sweep as its files tell it: the rate of each place, and what is measured of each run and of each seed."""

import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pandas

from tests.recomputed.curves import MissingError, bump, late_drop, reached, regret, standard_error, steps_to, window
from tests.recomputed.frames import key_of, read_cells, read_looks, read_rows

BEYOND = 0.05
"""How far above the level of a plateau a run has left it."""
OF_ALL_RATES = ("lr_window", "grid_regret")
NONE = pandas.Series(dtype=float)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The rate of a place, the mean over seeds by rate, and the mean of each seed's best."""

    rate: float
    means: pandas.Series
    mean_of_bests: float

    @property
    def on_edge(self) -> bool:
        return len(self.means) > 1 and self.rate in (self.means.index.min(), self.means.index.max())


class Sweep:
    """The runs of a sweep, what was measured of them, and the recipe that asks: by default that of the record."""

    def __init__(self, record: Path, recipe: dict | None = None):
        self.recipe = recipe or json.loads(record.read_text())["recipe"]
        self._take(read_cells(record))

    def _take(self, runs: pandas.DataFrame) -> None:
        self.runs = runs
        self.rows = read_rows(self.runs)
        self.runs["diverged"] = self.runs.index.isin(self.rows.cell[self.rows.diverged])
        self.runs["headline"] = self.rows[self.rows.split == "validation"].groupby("cell").headline.first()
        self.metric = self.recipe.get("metric") or self.rows.headline.iloc[0]
        self.values = dict(iter(self.rows.set_index("cell").groupby(["split", "metric"]).value))
        self.facts = self.rows.drop_duplicates(["cell", "split"]).set_index("cell")
        self.choice, self.at_rate = functools.cache(self._choice), functools.cache(self._at_rate)
        self.looks = functools.cache(read_looks)

    def places(self, arms: str | list[str], at: dict | None = None) -> list[str]:
        """The places of some arms at some values of the grid, each at the depth on which its search settled."""
        at = at or {}
        found = [json.loads(place) for place in self.runs.place[self.runs.arm.isin(listed(arms))].unique()]
        found = [one for one in found if all(one[axis] in listed(value) for axis, value in at.items())]
        if self.recipe.get("first_depth") is not None and "depth" not in at:
            found = [one for one in found if one["depth"] == self._settled_depth(one)]
        return list(map(key_of, found))

    def _settled_depth(self, place: dict) -> int:
        """The first depth whose search goes above a level, else the last one; its own where there is no search."""
        for depth in self.recipe["grid"]["depth"]:
            try:
                choice = self.choice(key_of({**place, "depth": depth}))
            except MissingError:
                return place["depth"]
            if choice.means[choice.rate] > self.recipe["first_depth"]:
                break
        return depth

    def own_rate(self, place: str) -> float | None:
        """The rate that an arm has without a search."""
        return (self.recipe["arms"][json.loads(place)["arm"]] or {}).get("learning_rate")

    def _choice(self, place: str) -> Choice:
        """Of the rates within two standard errors of the best on ``validation`` the one with the smallest loss."""
        runs = self._searched(key_of({**json.loads(place), **(self.recipe.get("search_on") or {})}))
        value = self.ended(runs, "validation", self.metric)
        loss = self.ended(runs, "validation", "loss").mask(runs.diverged, math.inf).groupby(runs.rate).mean()
        means, alive = value.groupby(runs.rate).mean(), ~runs.diverged.groupby(runs.rate).any()
        alive = alive if alive.any() else ~alive
        top = means[alive].idxmax()
        rows = self.rows[(self.rows.split == "validation") & (self.rows.metric == self.metric)]
        targets = rows.denominator[rows.cell.isin(runs.index[runs.rate == top])].min()
        near = means >= means[top] - 2 * standard_error(value[runs.rate == top], targets)
        return Choice(loss[alive & near].idxmin(), means, value.groupby(runs.seed).max().mean())

    def _searched(self, place: str) -> pandas.DataFrame:
        return self._known(place, self.runs[(self.runs.place == place) & (self.runs.stage == "search")])

    def _known(self, place: str, runs: pandas.DataFrame) -> pandas.DataFrame:
        if runs.headline.isna().any() or not len(runs):
            raise MissingError(f"runs of {json.loads(place)['arm']} are missing")
        return runs

    def _at_rate(self, place: str, rate: str = "chosen") -> pandas.DataFrame:
        """The runs of a place that count at the chosen or the fixed rate, or at the best one of each searched seed."""
        if rate == "best":
            runs = self._searched(place)
            return runs.loc[self.ended(runs, "validation", self.metric).groupby(runs.seed).idxmax()]
        fixed, seeds = self.recipe.get("fixed_learning_rate"), self.recipe["seeds"]
        wanted = fixed if rate == "fixed" else self.own_rate(place) or self.choice(place).rate
        found = self.runs[(self.runs.place == place) & np.isclose(self.runs.rate, float(wanted), rtol=1e-9, atol=0)]
        fresh = found[found.stage != "search"]
        planned = seeds.get("looks") or seeds.get("fixed" if rate == "fixed" else "final")
        counted = fresh if len(fresh) or planned else found
        return self._known(place, counted.drop_duplicates("seed", keep="last").sort_values("seed"))

    def ended(self, runs: pandas.DataFrame, split: str, metric: str) -> pandas.Series:
        """A metric of runs at their end."""
        try:
            return self.values[split, metric].loc[runs.index]
        except KeyError as error:
            raise MissingError(f"{metric} on {split} was not measured") from error

    def _crossed(self, runs: pandas.DataFrame, split: str, metric: str) -> pandas.Series:
        """The same at the first look above the level of the recipe; at the end where there was none."""
        values = {}
        for cell, run in runs.iterrows():
            looks = NONE if run.diverged else self._curve(run, "validation", run.headline)
            above = looks.index[looks > run.crossing]
            values[cell] = self._curve(run, split, metric)[above[0]] if len(above) else math.nan
            if not len(above):
                values[cell] = self.ended(runs.loc[[cell]], split, metric).iloc[0]
        return pandas.Series(values)

    def _curve(self, run: pandas.Series, split: str, metric: str) -> pandas.Series:
        looks = self.looks(run.path)
        if (split, metric) not in looks:
            raise MissingError(f"{run.path.name} has no looks at {metric} on {split}")
        return pandas.Series(looks[split, metric])

    def _of_training(self, runs: pandas.DataFrame, measure: dict, metric: str) -> pandas.Series:
        """A measure of the looks of each run."""
        kind, split, found = measure["quantity"], measure.get("split", "validation"), {}
        curves = {cell: self._curve(run, split, "loss" if kind == "bump" else metric) for cell, run in runs.iterrows()}
        levels = pandas.Series(measure.get("theta", 0.9), index=runs.index)
        if measure.get("of_best"):
            best = pandas.Series({cell: curve.max() for cell, curve in curves.items()})
            if kind == "lr_window":  # the best that a seed has at any rate
                best = best.groupby(runs.seed).transform("max")
            levels = (levels * best).where(best > 0, math.inf)
        for cell, run in runs.iterrows():
            curve, level = curves[cell], levels[cell]
            stop_at = run.stop_at if (split, metric) == ("validation", run.headline) else math.nan
            if kind in ("steps_to", "lr_window"):
                found[cell] = steps_to(curve, level, stop_at)
            else:
                found[cell] = bump(curve, measure.get("below") or math.inf) if kind == "bump" else late_drop(curve)
        return pandas.Series(found, dtype=float)

    def _of_runs(self, runs: pandas.DataFrame, measure: dict) -> pandas.Series:
        """A measure of each run."""
        kind, split = measure.get("quantity", "value"), measure.get("split", "validation")
        metric = measure.get("metric") or ("rows_3_of_5" if kind == "cycle_reading" else self.metric)
        theta = measure.get("theta", 0.9)
        if kind in ("steps_to", "lr_window", "late_drop", "bump"):
            return self._of_training(runs, measure, metric)
        read = self._crossed if measure.get("when") == "crossing" else self.ended
        if kind == "extrapolation_length":
            rows = self.rows[self.rows.cell.isin(runs.index)]
            lengths = rows.length[rows.split == "test_" + rows.length.astype(str)].unique()
            return reached(pandas.DataFrame({one: read(runs, f"test_{one}", metric) for one in lengths}), theta)
        values = read(runs, split, metric)
        if kind == "seed_reading":
            return (values >= theta).astype(float)
        if kind == "cycle_reading":
            return (values > 0.5).astype(float)
        return values - read(runs, measure["minus"], metric) if measure.get("minus") else values

    def _of_rates(self, runs: pandas.DataFrame, measure: dict) -> pandas.Series:
        """A measure of the runs of each seed at all rates."""
        is_window = measure["quantity"] == "lr_window"
        values = self._of_runs(runs, measure if is_window else {**measure, "quantity": "value"}).set_axis(runs.rate)
        curves = {seed: own.sort_index() for seed, own in values.groupby(runs.seed.to_numpy())}
        return pandas.Series(
            {seed: window(np.isfinite(own)) if is_window else regret(own) for seed, own in curves.items()}
        )

    def seeds_that_solve(self, place: str, measure: dict) -> pandas.DataFrame:
        """Of the seeds of each rate, how many get to the level of a window, and how many there are."""
        runs = self._searched(place)
        solved = np.isfinite(self._of_runs(runs, {**measure, "quantity": "lr_window"}))
        return solved.groupby(runs.rate).agg(["sum", "size"])

    def _at_place(self, place: str, measure: dict) -> tuple[pandas.Series, set[int]]:
        """A measure by seed at one place, and the seeds whose run has not left the plateau."""
        if measure.get("quantity") in OF_ALL_RATES:
            runs, values = self.at_rate(place, "best"), self._of_rates(self._searched(place), measure)
        else:
            runs = self.at_rate(place, measure.get("rate", "chosen"))
            values = self._of_runs(runs, measure).set_axis(runs.seed)
        level = self.recipe.get("plateau")
        if level is None:
            return values, set()
        low = self.ended(runs, "validation", self.metric) < level + BEYOND
        return values, set(runs.seed[low & ~runs.diverged])

    def by_seed(self, measure: dict) -> tuple[pandas.Series, set[int]]:
        """A measure by seed, over arms and places, and the seeds in which one of them is on the plateau."""
        arms = listed(measure["arms"])
        places = self.places(arms, measure.get("at"))
        absent = sorted(set(arms) - {json.loads(place)["arm"] for place in places})
        if absent:
            raise MissingError(f"this profile has no run of {', '.join(absent)} there")
        found = {place: self._at_place(place, measure) for place in places}
        table = pandas.concat({place: values for place, (values, _) in found.items()}, axis=1, join="inner")
        if measure.get("quantity") == "longest_trained":
            table = _longest_trained(table, measure.get("theta", 0.9))
        stuck = set().union(*(stuck for _, stuck in found.values())) & set(table.index)
        return table.agg(measure.get("over", "mean"), axis=1, skipna=False), stuck

    def in_search(self, measure: dict) -> pandas.Series:
        """A measure of each run of the search at the chosen rate."""
        found = []
        for place in self.places(measure["arms"], measure.get("at")):
            runs = self._searched(place)
            found.append(self._of_runs(runs[np.isclose(runs.rate, self.choice(place).rate)], measure))
        return pandas.concat(found)


def listed(value: object) -> list:
    """A list of one, where it is none."""
    return value if isinstance(value, list) else [value]


def is_of_search(measure: dict) -> bool:
    """Whether the seeds of the search tell."""
    return measure.get("quantity") in OF_ALL_RATES or measure.get("rate") == "best"


def _longest_trained(table: pandas.DataFrame, theta: float) -> pandas.DataFrame:
    """For each place without its training length, the longest one that was learned with every shorter one."""
    groups: dict[str, dict] = {}
    for place in table:
        rest = json.loads(place)
        longest = max(listed(rest.pop("length")))
        groups.setdefault(key_of(rest), {})[longest] = table[place]
    return pandas.DataFrame({rest: reached(pandas.DataFrame(own), theta) for rest, own in groups.items()})
