"""A training run that is watched: evaluated at log-spaced steps, stopped by a rule, and marked where it diverged."""

import dataclasses
import json
import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import TrainerCallback, TrainingArguments

from hf_memory.data.builder import load_dataset
from hf_memory.data.folders import working_folder
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.evaluation import evaluate_lengths, predict, split_metrics
from hf_memory.experiments.further import add_further
from hf_memory.experiments.mechanisms import measure_mechanisms
from hf_memory.experiments.provenance import Run, save_run
from hf_memory.experiments.results import Row, cell_path, write_cell
from hf_memory.experiments.run import Course, Experiment
from hf_memory.experiments.schema import Fields, ListOf, MapOf, Number, Text
from hf_memory.experiments.training import MemoryTrainer
from hf_memory.storage import (
    check_claim,
    copy_folder,
    decode,
    digest,
    encode,
    is_file,
    read_json,
    sealed,
    unsealed,
    write_text,
)
from hf_memory.studies.lean import LeanTrainer
from hf_memory.studies.statistics import log_spaced

logger = logging.getLogger(__name__)

WORK = "hf_memory-run"
"""Name of the folders in which runs of sweeps keep their weights while they are at work."""

CHECKPOINTS = "checkpoints"
"""Folder below the rows that holds the final checkpoints, one folder for each cell."""

Beat = Callable[[int], None]
"""Told of every step."""


@dataclasses.dataclass(frozen=True)
class WatchedExperiment(Experiment):
    """An experiment with evaluations during training, a rule by which it stops, and an end for diverged runs.

    Attributes:
        stop_at: Level of the headline metric on ``validation`` above which the run ends; None for none.
        give_up: Level and share of the steps after which a run that is not above it ends; None for none.
        evaluate: What is evaluated and when, see :class:`hf_memory.studies.recipes.Recipe`.
        keep: Whether the checkpoint stays in the results folder; no part of the definition.
    """

    trainer_class: ClassVar[type[MemoryTrainer]] = LeanTrainer

    stop_at: float | None = None
    give_up: tuple[float, float] | None = None
    evaluate: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keep: bool = False

    def definition(self, arguments: TrainingArguments) -> dict[str, Any]:
        """What defines the run, as JSON values; no weights are drawn for it."""
        with torch.device("meta"):
            base = super().definition(arguments)
        rules = {"stop_at": self.stop_at, "give_up": self.give_up, "evaluate": dict(self.evaluate)}
        return {**base, **{name: value for name, value in rules.items() if value is not None}}

    @property
    def steps(self) -> list[int]:
        """Steps at which the run is evaluated."""
        last, every = self.training["max_steps"], self.evaluate.get("every")
        if every:
            return sorted({*range(every, last + 1, every), last})
        return log_spaced(self.evaluate.get("points", 0), last)

    def run_into(self, results: Path, beat: Beat) -> list[Row]:
        """Train, evaluate, and write the history and then the rows, whose file says that the run is finished."""
        with working_folder(tempfile.gettempdir(), WORK) as output_dir:
            arguments = self.make_arguments(str(output_dir))
            rows = self.load_rows(arguments)
            history = History(self, rows, beat)
            trainer, seconds = self._train(arguments, rows, [history])
            return self.conclude(trainer.model, arguments, Course.of(trainer, seconds), history, rows, results)

    def load_rows(self, arguments: TrainingArguments) -> Mapping[str, Any]:
        """The dataset. Raises a ``ValueError`` where one process would share several GPUs."""
        if arguments.n_gpu > 1:
            raise ValueError(f"{arguments.n_gpu} GPUs are visible to one run; set CUDA_VISIBLE_DEVICES or use ray")
        definition = self.definition(arguments)
        return load_dataset(f"hf_memory/{definition['task']}", definition["preset"], **definition["data"])

    def conclude(
        self,
        model: Any,
        arguments: TrainingArguments,
        course: Course,
        history: "History",
        rows: Mapping[str, Any],
        results: Path,
        **changes: Any,
    ) -> list[Row]:
        """Save and evaluate a trained model, and write what the run leaves.

        Args:
            model: The model.
            arguments: Arguments of its training; its weights go into their folder.
            course: How far the training went.
            history: Evaluations during training.
            rows: The dataset.
            results: Folder of the cells.
            **changes: Fields of the rows that are to be other than measured here.
        """
        definition = self.definition(arguments)
        model.save_pretrained(arguments.output_dir)
        run = self._facts(arguments, digest(definition), course)
        splits = {name: rows[name] for name in rows if name != "train"}
        generate = bool(self.evaluate.get("generate"))
        found = evaluate_lengths(model, self.specification, splits, run=run, progress=False, generate=generate)
        found = add_further(found, model, self.specification, splits, self.evaluate)
        found = [as_diverged(row) if math.isnan(row.measured("loss").value) else row for row in found]
        found = [dataclasses.replace(row, **changes) for row in found]
        check_claim(cell_path(results, run.cell))
        if self.keep:
            save_run(arguments.output_dir, run)
            copy_folder(arguments.output_dir, checkpoint_path(results, run.cell))
        write_history(results, run.cell, history.points)
        write_cell(results, definition, found)
        return found

    def _facts(self, arguments: TrainingArguments, cell: str, course: Course) -> Run:
        """The facts of the run, with clipping, evaluations and the rule by which it ended."""
        run = super()._facts(arguments, cell, course)
        clip = arguments.max_grad_norm
        rules = [f"{arguments.max_steps} steps"]
        if self.stop_at is not None:
            rules.append(f"above {self.stop_at:g} on validation")
        if self.give_up is not None:
            rules.append(f"not above {self.give_up[0]:g} after {self.give_up[1]:.0%} of them")
        every = self.evaluate.get("every")
        looks = f", looked at every {every} steps" if every else f", looked at {len(self.steps)} log-spaced steps"
        looks = looks if len(rules) > 1 else ""
        return dataclasses.replace(
            run,
            schedule=f"{run.schedule}, {f'gradients clipped at {clip:g}' if clip else 'no clipping'}, "
            f"weight decay {arguments.weight_decay:g}",
            stop_rule=" or ".join(rules) + looks,
        )


def as_diverged(row: Row) -> Row:
    """A row of a run whose loss is not a number: no other value of it counts either."""
    metrics = {name: dataclasses.replace(value, value=math.nan) for name, value in row.metrics.items()}
    return dataclasses.replace(row, metrics=metrics)


@dataclasses.dataclass(frozen=True)
class HistoryPoint:
    """One evaluation during training: steps taken, split, and value by metric."""

    steps: int
    split: str
    values: Mapping[str, float]


class History(TrainerCallback):
    """Evaluates a run at its log-spaced steps, tells the sweep about steps, and ends the run by its rule."""

    def __init__(self, experiment: WatchedExperiment, rows: Mapping[str, Any], beat: Beat):
        self.experiment, self.beat, self.points = experiment, beat, list[HistoryPoint]()
        self._steps = set(experiment.steps)
        wanted = experiment.evaluate.get("splits", []) if self._steps else []
        unknown = [name for name in wanted if name not in rows]
        if unknown:
            raise ValueError(f"evaluate: {unknown[0]!r} is no split (known: {', '.join(rows)})")
        mixed = [name for name in wanted if len(experiment.specification.splits[name].parts) > 1]
        if mixed and experiment.evaluate.get("mechanisms"):
            raise ValueError(f"evaluate: mechanisms need splits of one law, and {mixed[0]!r} mixes several")
        self._rows = {name: TensorRows(rows[name].select(range(self._size(name, len(rows[name]))))) for name in wanted}
        # What else is evaluated at the first crossing; None once that is done, or where nobody asks for it.
        asked = experiment.evaluate.get("crossing") is not None
        self._others = {name: rows[name] for name in rows if name not in ("train", *wanted)} if asked else None

    def _size(self, split: str, num_rows: int) -> int:
        """Rows of a split that are looked at; all where it mixes laws, which are told apart by their order."""
        mixed = len(self.experiment.specification.splits[split].parts) > 1
        return num_rows if mixed else min(num_rows, self.experiment.evaluate.get("rows", 512))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Evaluate where it is due, and decide whether to go on."""
        self.beat(state.global_step)
        if state.global_step not in self._steps:
            return
        values = {name: self._evaluate(model, name, rows) for name, rows in self._rows.items()}
        self.points += [HistoryPoint(state.global_step, name, found) for name, found in values.items()]
        if any(math.isnan(found["loss"]) for found in values.values()):
            logger.warning("the loss is not a number after %d steps: the run ends", state.global_step)
            control.should_training_stop = True
        headline = values.get("validation", {}).get(self.experiment.specification.task.headline_metric)
        if headline is not None and self._others is not None and headline > self.experiment.evaluate["crossing"]:
            crossed = {name: self._evaluate(model, name, TensorRows(rows)) for name, rows in self._others.items()}
            self.points += [HistoryPoint(state.global_step, name, found) for name, found in crossed.items()]
            self._others = None
        if headline is not None and self._ends(headline, state.global_step / state.max_steps):
            control.should_training_stop = True

    def _ends(self, headline: float, share: float) -> bool:
        experiment = self.experiment
        reached = experiment.stop_at is not None and headline > experiment.stop_at
        give_up = experiment.give_up
        return reached or (give_up is not None and share >= give_up[1] and not headline > give_up[0])

    def _evaluate(self, model: Any, name: str, rows: TensorRows) -> dict[str, float]:
        """Values of all metrics on some rows of a split."""
        specification = self.experiment.specification
        model.eval()
        values = split_metrics(specification, name, rows.lengths.numpy(), predict(model, rows, 256))
        if self.experiment.evaluate.get("mechanisms"):
            values |= measure_mechanisms(model, specification.splits[name].parts[0].task, rows)
        model.train()
        found = {metric: float(value.value) for metric, value in values.items()}
        return dict.fromkeys(found, math.nan) if math.isnan(found["loss"]) else found


_POINT = {"steps": Number(0, 1 << 62, whole=True), "split": Text(), "values": MapOf(Number(finite=False), least=1)}
_HISTORY = Fields(
    {"cell": Text(), "points": ListOf(Fields(_POINT, needed=tuple(_POINT)), least=1)}, needed=("cell", "points")
)


def checkpoint_path(results: Path, cell: str) -> Path:
    """The folder of a cell's final checkpoint."""
    return results / CHECKPOINTS / cell


def history_path(results: Path, cell: str) -> Path:
    """The file of a cell's evaluations during training."""
    return results / f"{cell}.history.json"


def write_history(results: Path, cell: str, points: Sequence[HistoryPoint]) -> None:
    """Write the evaluations during training, where there were any."""
    if points:
        content = {"cell": cell, "points": [encode(dataclasses.asdict(point)) for point in points]}
        write_text(history_path(results, cell), json.dumps(sealed(content), allow_nan=False) + "\n")


def read_history(results: Path, cell: str) -> list[HistoryPoint]:
    """The evaluations during training; none where the file is missing, damaged or another's, which is logged."""
    path = history_path(results, cell)
    if not is_file(path):
        return []
    try:
        content = decode(unsealed(read_json(path)))
        _HISTORY.check(content, "history")
        if content["cell"] != cell:
            raise ValueError(f"it is that of the cell {content['cell']}")
        return [HistoryPoint(**point) for point in content["points"]]
    except ValueError as error:
        logger.warning("damaged history: %s (%s)", path, error)
        return []
