"""One run of a sweep as plain values: what defines it, whether it is done, and how it ended.

A cell leaves ``<digest>.jsonl`` with its rows, or ``<digest>.failed.json`` with its error; evaluations during training
lie beside them in ``<digest>.history.json``. Whether it is done is a question to the folder alone.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from hf_memory.data.specification import length_bounds, specify
from hf_memory.experiments.results import cell_path
from hf_memory.storage import claim, find_files, is_file, read_json, write_text
from hf_memory.studies.stacking import run_stacked, why_not_stackable
from hf_memory.studies.watched import Beat, WatchedExperiment

logger = logging.getLogger(__name__)

Outcome = Literal["trained", "finished before", "failed", "crashed", "failed before", "claimed elsewhere"]

ATTEMPTS = 3
"""How often a cell is run that crashes: whose process is killed, or which finds no memory or no disk. Such an end says
nothing of the model, and may not come again.
"""

STACKED_WIDTH, STACKED_WORK = 8, 10_000
"""Width, and width times tokens of a step, up to which a stack is faster than its runs one after the other, on a CPU.

Measured at width 4 and 2,048 tokens: 1.2 to 2.5 times the runs an hour in stacks of seven, 0.9 to 1.3 in stacks of
four; at width 8 and as many tokens 0.5 (Mamba) to 1.1 (attention). At width 16 GRU, S4D and attention would gain, 1.3
to 1.8, but LSTM, Mamba and DeltaNet would take up to twice as long: stacks do without their compiled loops.
"""

_CRASHES = (OSError, MemoryError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A training run as plain values, so that it can be sent to a process or a machine.

    Attributes:
        place: Where it stands in the recipe: arm and grid axes.
        stage: ``"search"``, ``"final"`` or ``"fixed"``, see :class:`hf_memory.studies.recipes.Recipe`.
        mixer: Key of the mixer.
        task: Key of the task.
        config: Configuration of the dataset.
        data: Keywords of the dataset and knobs of the law.
        fields: Fields of the config.
        training: All keys of :data:`hf_memory.studies.recipes.TRAINING`.
        evaluate: All keys of :data:`hf_memory.studies.recipes.EVALUATE`.
        learning_rate: Peak learning rate.
        seed: Seed of the weights.
        learning_rate_grid: The rates among which this one was chosen; empty during the search.
        keep: Whether the final checkpoint stays in the results folder; no part of what defines the run.
    """

    place: Mapping[str, Any]
    stage: str
    mixer: str
    task: str
    config: str | None
    data: Mapping[str, Any]
    fields: Mapping[str, Any]
    training: Mapping[str, Any]
    evaluate: Mapping[str, Any]
    learning_rate: float
    seed: int
    learning_rate_grid: tuple[float, ...] = ()
    keep: bool = False

    @property
    def name(self) -> str:
        """A line for people."""
        place = ", ".join(f"{name} {value}" for name, value in self.place.items() if name != "arm")
        return f"{self.place['arm']}{f' ({place})' if place else ''}, rate {self.learning_rate:g}, seed {self.seed}"

    def experiment(self) -> "WatchedExperiment":
        """The run in full; names and values are checked."""
        own = self.training
        return WatchedExperiment(
            specification=specify(self.task, self.config, **self.data),
            mixer=self.mixer,
            fields=dict(self.fields),
            training={
                "max_steps": own["steps"],
                "per_device_train_batch_size": own["batch_size"],
                "lr_scheduler_type": own["schedule"],
                "warmup_steps": own["warmup"],
                "max_grad_norm": own["clip"],
                "weight_decay": own["weight_decay"],
                "adam_beta2": own.get("adam_beta2", 0.999),  # runs of before have no such key
                "learning_rate": self.learning_rate,
                "seed": self.seed,
                "disable_tqdm": True,
            },
            optim_groups=own["optim_groups"],
            arm=str(self.place["arm"]),
            learning_rate_grid=self.learning_rate_grid,
            stop_at=own["stop_at"],
            give_up=tuple(own["give_up"]) if own["give_up"] else None,
            evaluate=dict(self.evaluate),
            keep=self.keep,
        )

    @functools.cached_property
    def digest(self) -> str:
        """Digest of what defines the run."""
        return self.experiment().cell("unused")


def run_cell(cell: Cell, results: str | os.PathLike[str], beat: Beat = lambda steps: None) -> tuple[Outcome, str]:
    """Run a cell unless it is finished, has failed, or another process is at it.

    Returns:
        The outcome, and a text: the error of a failed cell, else empty.
    """
    results = Path(results)
    done, failed = cell_path(results, cell.digest), failure_path(results, cell.digest)
    if state_of(results, cell) == "failed":
        return "failed before", read_failure(results, cell.digest) or ""
    with claim(done) as mine:
        if not mine:
            return ("finished before" if done.exists() else "claimed elsewhere"), ""
        try:
            cell.experiment().run_into(results, beat)
        except Exception as error:  # whatever went wrong belongs to this cell alone
            if not mine:
                logger.warning("%s was taken over by another process", cell.name)
                return "claimed elsewhere", ""
            logger.exception("%s failed", cell.name)
            text = f"{type(error).__name__}: {error}"
            return write_failure(results, cell, text, crashed=isinstance(error, _CRASHES)), text
        failed.unlink(missing_ok=True)
    return "trained", ""


def run_cells(
    cells: Sequence[Cell], results: str | os.PathLike[str], beat: Beat = lambda steps: None
) -> list[tuple[Outcome, str]]:
    """Run cells as one stacked model, or a single cell alone, unless they are finished, have failed or are claimed.

    Where the stack fails, its cells run one by one, so that an error belongs to the cell that has it.

    Returns:
        For each cell, what :func:`run_cell` returns.
    """
    results, stacked = Path(results), set[str]()
    with contextlib.ExitStack() as claims:
        mine = [cell for cell in cells if len(cells) > 1 and _claimed(cell, results, claims)]
        if len(mine) > 1:
            try:
                run_stacked([cell.experiment() for cell in mine], results, beat)
            except Exception:  # whatever went wrong, the cells can still run alone
                logger.exception("a stack of %d cells failed; they run one by one", len(mine))
            stacked = {cell.digest for cell in mine if state_of(results, cell) == "finished"}
    return [("trained", "") if cell.digest in stacked else run_cell(cell, results, beat) for cell in cells]


def _claimed(cell: Cell, results: Path, claims: contextlib.ExitStack) -> bool:
    """Claim a cell that has neither finished nor failed."""
    if state_of(results, cell) == "failed":
        return False
    return bool(claims.enter_context(claim(cell_path(results, cell.digest))))


def can_stack(cell: Cell) -> bool:
    """Whether runs like this one can be trained side by side. Transformers' polynomial schedule knows one rate only."""
    with torch.device("meta"):
        return cell.training["schedule"] != "polynomial" and not why_not_stackable(
            cell.experiment().make_model(cell.seed)
        )


def stack_pays(cell: Cell) -> bool:
    """Whether runs like this one are faster side by side: on a GPU, and on a CPU where a step is small."""
    longest = length_bounds(specify(cell.task, cell.config, **cell.data).train_length)[1]
    width = cell.fields["hidden_size"]
    is_small = width <= STACKED_WIDTH and width * cell.training["batch_size"] * longest <= STACKED_WORK
    return torch.cuda.is_available() or is_small


def as_stacks(cells: Sequence[Cell], size: int, workers: int = 1) -> list[tuple[Cell, ...]]:
    """Cells that differ in learning rate, seed and data seed alone, in stacks of at most ``size``; others alone.

    Stacks are smaller where there would be fewer of them than ``workers``, and there are none where they would not pay
    (:data:`STACKED_WORK`).
    """
    size = min(size, math.ceil(len(cells) / workers))
    if size <= 1:
        return [(cell,) for cell in cells]
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        data = {**cell.data, "seed": 0}
        alike = dataclasses.replace(cell, stage="search", learning_rate=1.0, seed=0, learning_rate_grid=(), data=data)
        groups.setdefault(alike.digest, []).append(cell)
    stacks = []
    for group in groups.values():
        step = size if stack_pays(group[0]) and can_stack(group[0]) else 1
        stacks += [tuple(group[start : start + step]) for start in range(0, len(group), step)]
    return stacks


def state_of(results: Path, cell: Cell) -> Literal["finished", "failed", "open"]:
    """Whether the folder holds a cell's rows, or an error with which it has ended for good."""
    if cell_path(results, cell.digest).exists():
        return "finished"
    failure = _read_record(failure_path(results, cell.digest))
    return "open" if failure is None or failure.get("crashes", ATTEMPTS) < ATTEMPTS else "failed"


def failure_path(results: Path, cell: str) -> Path:
    """The file of a failed cell."""
    return results / f"{cell}.failed.json"


def find_failures(results: Path) -> list[Path]:
    """The files of all failed cells of a folder."""
    return find_files(results, "*.failed.json")


def forget_failures(results: Path) -> None:
    """Make all failed cells of a folder open again."""
    for failure in find_failures(results):
        failure.unlink(missing_ok=True)


def write_failure(results: Path, cell: Cell, error: str, crashed: bool = False) -> Literal["failed", "crashed"]:
    """Record the error of a cell.

    Returns:
        ``"crashed"`` where it is to be tried again, else ``"failed"``.
    """
    path = failure_path(results, cell.digest)
    content: dict[str, Any] = {"cell": cell.digest, "name": cell.name, "error": error}
    if crashed:
        content["crashes"] = 1 + (_read_record(path) or {}).get("crashes", 0)
    write_text(path, json.dumps(content, indent=2) + "\n")
    return "crashed" if content.get("crashes", ATTEMPTS) < ATTEMPTS else "failed"


def read_failure(results: Path, cell: str) -> str | None:
    """The error of a cell; None where there is none."""
    record = _read_record(failure_path(results, cell))
    return None if record is None else str(record.get("error", "its record is damaged"))


def _read_record(path: Path) -> dict[str, Any] | None:
    """What a record of an error holds; nothing where it is damaged, and None where there is none."""
    if not is_file(path):
        return None
    try:
        record = read_json(path)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
