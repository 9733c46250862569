"""What a sweep has found so far: its cells with their rows, errors and histories, and the rates they lead to.

A sweep's record, ``<recipe>.<profile>.sweep.json``, lies beside the rows. It holds the recipe, the cells with their
digests, and the sizes of the settings; everything else is read from rows. A recipe that judges the runs of another one
has a record alone, which names the folder of the runs.
"""

import dataclasses
import json
import logging
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_memory.experiments.results import SWEEP_ENDING, Row, cell_path, recover_cell
from hf_memory.names import file_name
from hf_memory.storage import encode, read_json, sealed, unsealed, write_text
from hf_memory.studies.cells import Cell, read_failure
from hf_memory.studies.expectations import matches
from hf_memory.studies.plans import Setting, search_place
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.watched import HistoryPoint, read_history
from hf_memory.tasks import task_class

logger = logging.getLogger(__name__)

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Result:
    """One cell and what there is of it.

    Attributes:
        cell: The cell.
        digest: Its digest when the sweep ran.
        rows: Rows by split; empty where it is not finished.
        history: Evaluations during training.
        error: The error of a failed cell. It is no measurement: only a run that diverged is one, with values at chance.
        problems: Why there is nothing to read where there should be.
    """

    cell: Cell
    digest: str
    rows: Mapping[str, Row]
    history: Sequence[HistoryPoint] = ()
    error: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def arm(self) -> str:
        """Name of the arm."""
        return str(self.cell.place["arm"])

    @property
    def is_known(self) -> bool:
        """Whether the run was measured; one that crashed or whose file is damaged was not."""
        return "validation" in self.rows

    @property
    def has_diverged(self) -> bool:
        """Whether the loss on ``validation``, rows as those of training, is no number."""
        return "validation" in self.rows and self._left_floats("validation")

    @property
    def overflows(self) -> tuple[str, ...]:
        """Splits on which a run that did not diverge has a loss that is no number: its state outgrew floats there."""
        return () if self.has_diverged else tuple(filter(self._left_floats, self.rows))

    def _left_floats(self, split: str) -> bool:
        return math.isnan(self.rows[split].measured("loss").value)

    def value(self, split: str, metric: str) -> float:
        """Value of a metric on a split; the chance level for a diverged run, and where the loss there is no number.

        Raises:
            ValueError: If the cell is not finished, or has no such split.
        """
        if split not in self.rows:
            raise ValueError(f"split: {self.cell.name} has no {split!r} (known: {', '.join(self.rows)})")
        if self.has_diverged or self._left_floats(split):
            return self.chance(split, metric)
        return self.rows[split].value(metric)

    def chance(self, split: str, metric: str) -> float:
        """Chance level of a metric on a split, as its row tells it; 0 where the task does not know one.

        Raises:
            ValueError: If the cell is not finished, or has no such split or metric.
        """
        if split not in self.rows:
            raise ValueError(f"split: {self.cell.name} has no {split!r} (known: {', '.join(self.rows)})")
        level = self.rows[split].measured(metric).chance
        return 0.0 if level is None else level

    @property
    def crossing(self) -> int | None:
        """Steps at the first look above the level ``crossing`` of the recipe; None where there is none."""
        level, metric = self.cell.evaluate.get("crossing"), task_class(self.cell.task).headline_metric
        above = (steps for steps, value in self.curve("validation", metric) if level is not None and value > level)
        return next(above, None)

    def at_crossing(self, split: str, metric: str) -> float:
        """Value of a metric on a split at the first crossing; at the end for a run that never crossed, or diverged.

        Raises:
            ValueError: If the cell is not finished, its history is lost, or the split was not evaluated then.
        """
        if not self.history and not self.has_diverged:
            raise ValueError(f"history: {self.cell.name} has no looks, so that nobody knows its first crossing")
        steps = self.crossing
        if steps is None or self.has_diverged:
            return self.value(split, metric)
        found = [p.values for p in self.history if p.steps == steps and p.split == split and metric in p.values]
        if not found:
            raise ValueError(f"history: {self.cell.name} has no {metric!r} on {split!r} at its first crossing")
        return found[0][metric]

    def curve(self, split: str, metric: str) -> list[tuple[int, float]]:
        """Steps and value of each evaluation during training; empty where there is none of that metric."""
        return [(p.steps, p.values[metric]) for p in self.history if p.split == split and metric in p.values]

    def judged_curve(self, split: str, metric: str) -> list[tuple[int, float]]:
        """The same, where something is to be read off it.

        Raises:
            ValueError: The split was not looked at, or the metric is none of those that were measured.
        """
        looks = [point for point in self.history if point.split == split]
        if not looks:
            raise ValueError(f"history: {self.cell.name} has no looks at {split!r}")
        if metric not in looks[0].values:
            raise ValueError(f"history: {metric!r} was not measured on {split!r} (known: {', '.join(looks[0].values)})")
        return self.curve(split, metric)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The learning rate of one place.

    Attributes:
        learning_rate: The rate with the smallest loss on ``validation`` among those whose mean of the metric over seeds
            is within two standard errors of the largest.
        curve: That mean by rate.
        losses: Mean of that loss over seeds by rate; infinite where a run diverged.
        best_per_seed: Mean over seeds of each seed's own best value.
        on_edge: Whether it lies on the edge of the grid.
    """

    learning_rate: float
    curve: Mapping[float, float]
    losses: Mapping[float, float]
    best_per_seed: float
    on_edge: bool

    def beats(self, other: float, by: float) -> bool:
        """Whether the rate is better than another one by more than so much: in the metric, or in the loss of a tie."""
        rate = self.learning_rate
        return self.curve[rate] > self.curve[other] + by or self.losses[rate] < self.losses[other] - by


@dataclasses.dataclass(frozen=True)
class Study:
    """A sweep that was read.

    Attributes:
        recipe: The recipe, in its profile.
        results: All cells that were planned.
        sizes: Place and size of each setting.
        complete: Whether the sweep has come to its end; before, the grid may still grow.
        problems: What could not be read, one sentence each.
    """

    recipe: Recipe
    results: tuple[Result, ...]
    sizes: tuple[Mapping[str, Any], ...] = ()
    complete: bool = True
    problems: tuple[str, ...] = ()

    def select(self, arms: Sequence[str], at: Mapping[str, Any] | None = None) -> list[Result]:
        """Results of some arms at some values of grid axes.

        Raises:
            ValueError: If an axis is none of the grid.
        """
        at = at or {}
        unknown = [axis for axis in at if axis not in self.recipe.grid]
        if unknown:
            raise ValueError(f"at: {unknown[0]!r} is no axis of the grid (known: {', '.join(self.recipe.grid)})")
        found = [result for result in self.results if result.arm in arms and matches(result.cell.place, at)]
        if self.recipe.first_depth is None or "depth" in at:
            return found
        passed = [place for place in self.places(found) if self._is_passed_over(place)]
        return [result for result in found if dict(result.cell.place) not in passed]

    def settled_depth(self, place: Mapping[str, Any]) -> int | None:
        """The first depth of the grid at which the search of a place went above ``first_depth``.

        It is the last one where none did; None while runs are missing, and where no depth is searched.
        """
        if self.recipe.first_depth is None:
            return None
        for depth in self.recipe.grid["depth"]:
            choice = self.choice({**place, "depth": depth})
            if choice is None:
                return None
            if choice.curve[choice.learning_rate] > self.recipe.first_depth:
                break
        return int(depth)

    def _is_passed_over(self, place: Mapping[str, Any]) -> bool:
        """Whether the search for a depth has settled on another one."""
        return self.settled_depth(place) not in (None, place["depth"])

    def places(self, results: Sequence[Result] | None = None) -> list[dict[str, Any]]:
        """The distinct places of results, in order."""
        found: list[dict[str, Any]] = []
        for result in self.results if results is None else results:
            if dict(result.cell.place) not in found:
                found.append(dict(result.cell.place))
        return found

    def at_place(self, place: Mapping[str, Any]) -> list[Result]:
        """Results of one place."""
        return [result for result in self.results if dict(result.cell.place) == dict(place)]

    def choice(self, place: Mapping[str, Any]) -> Choice | None:
        """The rate chosen for a place by the search that belongs to it; None while a run of it is missing.

        An arm with a rate of its own has no search.
        """
        wanted = search_place(self.recipe, place)
        found = [result for result in self.at_place(wanted) if result.cell.stage == "search"]
        if not found or not all(result.is_known for result in found):
            return None
        return choose(found, self.recipe.metric_name)

    def at_rate(self, place: Mapping[str, Any], rate: str) -> list[Result] | None:
        """The runs of a place that count at the ``chosen`` or the ``fixed`` rate; None while the choice is open.

        Where the recipe has fresh seeds for them, these count alone, so that there is none before they are planned.
        """
        choice = self.choice(place) if rate == "chosen" else None
        own_rate = self.recipe.arms[str(place["arm"])].get("learning_rate")
        searched = own_rate or (choice.learning_rate if choice else None)
        wanted = self.recipe.fixed_learning_rate if rate == "fixed" else searched
        if wanted is None:
            return None
        own = [result for result in self.at_place(place) if math.isclose(result.cell.learning_rate, wanted)]
        fresh = [result for result in own if result.cell.stage != "search"]
        counted = fresh if fresh or self.recipe.planned_seeds("final" if rate == "chosen" else "fixed") else own
        return list({result.cell.seed: result for result in counted}.values())

    def control(self) -> tuple[float, bool] | None:
        """Best value of the positive control and whether it is high enough; None where there is none or no run yet."""
        control = self.recipe.control
        if control is None:
            return None
        split, metric = control.get("split", "validation"), control.get("metric") or self.recipe.metric_name
        found = [result for result in self.select(control["arms"], control.get("at") or {}) if result.is_known]
        if not found:
            return None
        best = max(result.value(split, metric) for result in found)
        return best, best >= control["at_least"]


def choose(results: Sequence[Result], metric: str) -> Choice:
    """Choose among the learning rates of one place by ``validation`` and by nothing else.

    A saturated metric does not choose: among all rates within two standard errors of the best, the smallest loss at the
    end, averaged over the seeds of the search, decides. A rate with a diverged run is taken only where all have one.
    """
    runs: dict[float, list[Result]] = {}
    by_seed: dict[int, list[float]] = {}
    for result in results:
        runs.setdefault(result.cell.learning_rate, []).append(result)
        by_seed.setdefault(result.cell.seed, []).append(result.value("validation", metric))
    curve = {rate: statistics.fmean(run.value("validation", metric) for run in runs[rate]) for rate in sorted(runs)}
    alive = [rate for rate in curve if not any(run.has_diverged for run in runs[rate])] or list(curve)
    top = max(alive, key=lambda rate: curve[rate])
    near = curve[top] - 2 * _standard_error(runs[top], metric)
    losses = {rate: statistics.fmean(_final_loss(run) for run in runs[rate]) for rate in curve}
    best = min((rate for rate in alive if curve[rate] >= near), key=lambda rate: losses[rate])
    per_seed = statistics.fmean(max(found) for found in by_seed.values())
    return Choice(best, curve, losses, per_seed, len(curve) > 1 and best in (min(curve), max(curve)))


def _final_loss(result: Result) -> float:
    """Loss on ``validation`` at the end; infinite where the run diverged."""
    loss = result.rows["validation"].value("loss")
    return math.inf if math.isnan(loss) else loss


def _standard_error(results: Sequence[Result], metric: str) -> float:
    """Standard error of the mean over seeds: what the targets of a run leave open, or the seeds where that is more.

    The share of right targets is taken with one right and one wrong more (Laplace), since a share of exactly 1 would
    have no error at all.
    """
    values = [result.value("validation", metric) for result in results]
    targets = min(result.rows["validation"].measured(metric).denominator for result in results)
    share = min(max(statistics.fmean(values), 0.0), 1.0)
    share = (share * targets + 1) / (targets + 2)
    within = math.sqrt(share * (1 - share) / targets / len(values))
    return max(within, statistics.stdev(values) / math.sqrt(len(values))) if len(values) > 1 else within


def record_path(results: Path, recipe: Recipe) -> Path:
    """The file of a sweep's record."""
    return results / (file_name(f"{recipe.name}.{recipe.profile}") + SWEEP_ENDING)


def write_record(
    results: Path,
    recipe: Recipe,
    settings: Sequence[Setting],
    cells: Sequence[Cell],
    complete: bool = False,
    runs_in: str = ".",
) -> Path:
    """Write what a sweep consists of so far. Runs lie beside the record, or in the folder ``runs_in`` from there."""
    content = {
        "format": FORMAT,
        "complete": complete,
        **({} if runs_in == "." else {"runs_in": runs_in}),
        "recipe": recipe.to_json(),
        "sizes": [{"place": setting.place, **dataclasses.asdict(setting.size)} for setting in settings],
        "cells": [
            {"digest": cell.digest, **{field.name: getattr(cell, field.name) for field in dataclasses.fields(cell)}}
            for cell in cells
        ],
    }
    return write_text(record_path(results, recipe), json.dumps(sealed(encode(content)), indent=1) + "\n")


def find_records(results: Path) -> list[Path]:
    """Whatever has the name of a sweep's record in a folder and below it; :func:`read_study` says what is none."""
    return sorted(results.rglob(f"*{SWEEP_ENDING}")) if results.is_dir() else []


def read_study(record: Path) -> Study:
    """Read a sweep by its record. Damaged files of rows are named in ``problems``, and what is left of them is used.

    Raises:
        ValueError: If the record itself is damaged, or its rows are of several data versions; cells are named.
    """
    study, cells, folder = read_record(record)
    return dataclasses.replace(assemble(folder, study.recipe, cells), sizes=study.sizes, complete=study.complete)


def read_record(record: Path) -> tuple[Study, list[tuple[str, Cell]], Path]:
    """A sweep without its results, its cells with their digests, and the folder in which their runs lie.

    Raises:
        ValueError: The record is damaged.
    """
    try:
        values = unsealed(read_json(record))
        cells = [(cell.pop("digest"), read_cell(cell)) for cell in values["cells"]]
        study = Study(Recipe.from_json(values["recipe"]), (), tuple(values["sizes"]), bool(values["complete"]))
        return study, cells, record.parent / str(values.get("runs_in", "."))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{record} is no record of a sweep ({error}); restore it, or move it away and run the sweep again"
        ) from error


def runs_of_record(record: Path) -> Path:
    """The folder in which the runs of a sweep lie, by its record."""
    return read_record(record)[2]


def read_cell(values: Mapping[str, Any]) -> Cell:
    """A cell from the values of a record, without its digest."""
    return Cell(**{**values, "learning_rate_grid": tuple(values["learning_rate_grid"])})


def assemble(folder: Path, recipe: Recipe, cells: Sequence[tuple[str, Cell]]) -> Study:
    """Read what there is of some cells."""
    problems: list[str] = []
    results = tuple(_read_result(folder, digest, cell, problems) for digest, cell in cells)
    _check_versions(results)
    return Study(recipe, results, problems=tuple(problems))


def _read_result(folder: Path, digest: str, cell: Cell, problems: list[str]) -> Result:
    """What there is of one cell. Rows of another run than the file's name says are none of it."""
    rows: list[Row] = []
    path = cell_path(folder, digest)
    missing: list[str] = []
    if os.path.lexists(path):
        rows, missing = recover_cell(path)
        strangers = sorted({f"{row.cell}, seed {row.seed}" for row in rows if not _belongs(row, digest, cell)})
        if strangers:
            rows, missing = [], [*missing, f"{path.name} holds rows of another run ({'; '.join(strangers)})"]
    history = read_history(folder, digest)
    if rows and (cell.evaluate.get("points") or cell.evaluate.get("every")) and not history:
        missing = [*missing, f"{path.name}: its evaluations during training are lost"]
    error = None if rows else read_failure(folder, digest)
    problems += missing + ([f"{cell.name} crashed: {error}"] if error else [])
    return Result(cell, digest, {row.split: row for row in rows}, history, error, tuple(missing))


def _belongs(row: Row, digest: str, cell: Cell) -> bool:
    return row.cell == digest and row.seed == cell.seed and math.isclose(row.learning_rate or 0, cell.learning_rate)


def _check_versions(results: Sequence[Result]) -> None:
    """Raise where rows of several data versions would stand in one study."""
    cells: dict[str, set[str]] = {}
    for result in results:
        for row in result.rows.values():
            cells.setdefault(row.data_version, set()).add(result.digest)
    if len(cells) > 1:
        listed = "; ".join(f"{version}: cells {', '.join(sorted(found))}" for version, found in sorted(cells.items()))
        raise ValueError(f"rows: data_version of one sweep must be one, got {listed}")
