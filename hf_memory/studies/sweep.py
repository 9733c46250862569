"""Sweeps: a recipe's cells, run in two stages, on any number of processes and by any number of sweeps at once.

First the learning rates of every setting with the seeds of the search; the grid grows where a best rate lies on its
edge, for all arms alike. Then fresh seeds at the rate that was best on ``validation``. Finished cells are not run
again, so that a sweep that was stopped goes on, and two sweeps on one folder share the work.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_memory.experiments.provenance import measure_state
from hf_memory.experiments.training import model_for_task
from hf_memory.studies.cells import Cell, forget_failures, state_of
from hf_memory.studies.judging import judge_study, named, needs_more_seeds
from hf_memory.studies.outcomes import Choice, Study, assemble, record_path, write_record
from hf_memory.studies.plans import (
    Setting,
    by_depth,
    final_cells,
    is_searched,
    make_settings,
    rates_beyond,
    search_cells,
    search_place,
)
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.registration import check_readable, check_registered
from hf_memory.studies.running import WHOLE, OtherShardsOpenError, ReuseOther, Runner, Shard, key, make_workers

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Line:
    """A cell of the search, or a run that follows it, as ``--dry-run`` shows it.

    Attributes:
        name: Arm and place.
        stage: Stage; the rate of a run after the search is not known yet.
        learning_rate: Peak learning rate, or None.
        seed: Seed of the weights.
        hidden_size: Width.
        parameters_per_block: Parameters of a block.
        parameters_non_embedding: Parameters of all blocks and of the final norm.
        state_bytes: Bytes held for one sequence of the training length.
        seconds: Estimated time on one core.
    """

    name: str
    stage: str
    learning_rate: float | None
    seed: int
    hidden_size: int
    parameters_per_block: int
    parameters_non_embedding: int
    state_bytes: int
    seconds: float


def run_sweep(
    recipe: Recipe,
    results: str | os.PathLike[str],
    *,
    workers: int | None = None,
    backend: str = "local",
    gpu_share: float = 0.0,
    stack: int = 1,
    retry_failed: bool = False,
    progress: bool = True,
    other_code: ReuseOther = "report",
    shard: Shard = WHOLE,
) -> Study:
    """Run every cell of a recipe that is not finished, and write the record by which reports read it.

    Args:
        recipe: The recipe in its profile.
        results: Folder of rows and record.
        workers: Cells at a time; by default one per core.
        backend: ``"local"`` or ``"ray"``.
        gpu_share: GPU of each process, with ``ray``.
        stack: Cells that differ in learning rate, seed and data seed alone and are trained as one stacked model, at
            most, where that pays.
        retry_failed: Run the failed cells of the folder again.
        progress: Show a bar over cells with the time that is left.
        other_code: What becomes of finished cells that other code made: ``"report"`` names them, ``"overwrite"`` runs
            them again, ``"accept"`` runs a sample of them again and records whether the numbers are equal.
        shard: The part of the cells of each stage that is run.

    Returns:
        The results of all cells; not ``complete`` where those of other shards are open.

    Raises:
        ValueError: If a setting cannot be sized, before anything is run; and where the recipe judges the runs of
            another one, whose folder is ``../../<recipe>/<profile>`` from this one, and a run is not there.
    """
    if stack < 1:
        raise ValueError(f"stack must be at least 1, got {stack}")
    results = Path(results)
    results.mkdir(parents=True, exist_ok=True)
    if retry_failed:
        forget_failures(results)
    check_readable(recipe)
    check_registered(recipe, record_path(results, recipe))
    settings = make_settings(recipe)
    seconds = {key(setting.place): setting.seconds for setting in settings}
    with (
        make_workers(backend, workers, gpu_share) as pool,
        Runner(recipe.name, runs_folder(recipe, results), pool, seconds, stack, progress, other_code, shard) as runner,
    ):
        return _Sweep(recipe, settings, runner, results).run()


class _Sweep:
    """The course of one sweep."""

    def __init__(self, recipe: Recipe, settings: list[Setting], runner: Runner, results: Path):
        self.recipe, self.results, self.settings, self.runner = recipe, results, settings, runner
        self.cells: list[Cell] = []

    def run(self) -> Study:
        """Both stages, as far as the shard goes."""
        try:
            self._run()
        except OtherShardsOpenError as waiting:
            self.runner.say(str(waiting))
            return dataclasses.replace(self._study(), complete=False)
        return self._study()

    def _run(self) -> None:
        rates = list(self.recipe.learning_rates)
        for settings in by_depth(self.recipe, self.settings):
            self._do(search_cells(self.recipe, self._unsettled(settings), rates))
        while new := next_rates(self.recipe, rates, [choice for choice in self._choices().values() if choice]):
            logger.info("a best rate lies on the edge: %s is added for all arms", new)
            self._do(search_cells(self.recipe, self.settings, new))
            rates = sorted([*rates, *new])
        self._do(self._final(rates, self.settings))
        for look in range(1, len(self.recipe.seeds["looks"])):
            wanted = self._of_open_claims()
            self._do(self._final(rates, [setting for setting in self.settings if setting.place in wanted], look))
        # A run that crashed is tried again by the next sweep; until then no claim that needs it is decided.
        self._write(complete=True)

    def _unsettled(self, settings: Sequence[Setting]) -> list[Setting]:
        """Settings whose arm has not learned at a smaller depth."""
        study = self._study()
        return [s for s in settings if (study.settled_depth(s.place) or s.place.get("depth")) == s.place.get("depth")]

    def _choices(self) -> dict[str, Choice | None]:
        """The rate chosen at each place that was searched; None where a run of the search crashed."""
        study = self._study()
        return {key(s.place): study.choice(s.place) for s in self.settings if is_searched(self.recipe, s.place)}

    def _final(self, rates: Sequence[float], settings: Sequence[Setting], look: int = 0) -> list[Cell]:
        """The runs after the search that are not planned yet."""
        choices, study = self._choices(), self._study()
        if self.recipe.first_depth is not None:
            settings = [s for s in settings if study.settled_depth(s.place) == s.place["depth"]]
        found = [choices.get(key(search_place(self.recipe, setting.place))) for setting in settings]
        chosen = [None if choice is None else choice.learning_rate for choice in found]
        known = {cell.digest for cell in self.cells}
        cells = final_cells(self.recipe, settings, rates, chosen, look)
        return [cell for cell in cells if cell.digest not in known]

    def _of_open_claims(self) -> list[dict[str, Any]]:
        """Places of the claims that the looks so far leave open."""
        study = dataclasses.replace(self._study(), complete=True)
        wanted: list[dict[str, Any]] = []
        for judgement in judge_study(study):
            if needs_more_seeds(judgement):
                for measure in named(study, judgement.expectation).measures:
                    wanted += study.places(study.select(measure.arms, measure.at))
        return wanted

    def _study(self) -> Study:
        return assemble(self.runner.results, self.recipe, [(cell.digest, cell) for cell in self.cells])

    def _do(self, cells: list[Cell]) -> None:
        """Run cells; the record is written first, so that a report of an unfinished sweep knows what is missing."""
        self.cells += cells
        if self.recipe.runs_of is not None:
            check_finished(self.recipe, self.runner.results, cells)
        self._write()
        if self.recipe.runs_of is None:
            self.runner.run(cells)

    def _write(self, complete: bool = False) -> None:
        runs_in = os.path.relpath(self.runner.results, self.results)
        write_record(self.results, self.recipe, self.settings, self.cells, complete, runs_in)


def next_rates(recipe: Recipe, rates: Sequence[float], choices: Sequence[Choice]) -> list[float]:
    """Rates by which the grid is to be extended, for all arms together; none where no choice asks for it.

    A choice on the edge asks for more where it beats the rate beside it by more than the tolerance, so that a flat top
    does not.
    """
    on_edge = [choice for choice in choices if choice.on_edge]
    tolerance = recipe.extend["tolerance"] if recipe.extend else 0.0
    return [
        rate
        for rate, edge, inner in rates_beyond(recipe, rates)
        if any(own.learning_rate == edge and own.beats(inner, tolerance) for own in on_edge)
    ]


def runs_folder(recipe: Recipe, results: Path) -> Path:
    """Where the runs of a recipe lie: its own folder, or that of the recipe whose runs it judges, beside it."""
    return results if recipe.runs_of is None else results.parent.parent / recipe.runs_of / recipe.profile


def check_finished(recipe: Recipe, folder: Path, cells: Sequence[Cell]) -> None:
    """Check that runs of another recipe are there.

    Raises:
        ValueError: One is missing; the message says which command makes it.
    """
    missing = [cell for cell in cells if state_of(folder, cell) != "finished"]
    if missing:
        raise ValueError(
            f"runs_of: {len(missing)} of {len(cells)} runs are not in {folder}, {missing[0].name} among them; "
            f"`hf-memory sweep {recipe.runs_of} --profile {recipe.profile}` makes them"
        )


def dry_run(recipe: Recipe) -> list[Line]:
    """All cells with sizes, state and estimated time; nothing is run.

    The runs after the search are those of the recipe without an extended grid, at a rate still to be chosen. Where a
    depth is searched, it is the last one, and no search stops before.
    """
    settings = make_settings(recipe)
    cells = search_cells(recipe, settings, recipe.learning_rates)
    last = by_depth(recipe, settings)[-1]
    after = final_cells(recipe, last, recipe.learning_rates, [recipe.learning_rates[0]] * len(last))
    state = {key(setting.place): _state_bytes(recipe, setting) for setting in settings}
    by_place = {key(setting.place): setting for setting in settings}
    return [
        Line(
            name=", ".join([str(cell.place["arm"]), *(f"{n} {v}" for n, v in cell.place.items() if n != "arm")]),
            stage=cell.stage,
            learning_rate=None if cell.stage == "final" else cell.learning_rate,
            seed=cell.seed,
            hidden_size=by_place[key(cell.place)].fields["hidden_size"],
            parameters_per_block=by_place[key(cell.place)].size.parameters_per_block,
            parameters_non_embedding=by_place[key(cell.place)].size.parameters_non_embedding,
            state_bytes=state[key(cell.place)],
            seconds=by_place[key(cell.place)].seconds,
        )
        for cell in [*cells, *after]
    ]


def _state_bytes(recipe: Recipe, setting: Setting) -> int:
    """Bytes of the live state of one sequence of the training length."""
    specification = setting.cell(recipe, "search", recipe.learning_rates[0], 0).experiment().specification
    model = model_for_task(setting.mixer, specification.task, **setting.fields).eval()
    return measure_state(model, setting.row_length)[1]
