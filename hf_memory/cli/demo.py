"""Four unlike mixers on two tasks in a few minutes on a CPU: the whole road from data to a page.

Bit parity asks for a state that is updated at every token, recall for one that holds many things at once. The demo
shows what each mixer keeps when sequences get longer than those it was trained on.
"""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback

from hf_memory.data.specification import specify
from hf_memory.experiments.results import Row, cell_path, read_rows
from hf_memory.experiments.run import SMOKE_ROWS, Experiment
from hf_memory.reports.report import write_page
from hf_memory.storage import ClaimLostError, check_writable, claim
from hf_memory.studies.watched import Beat
from hf_memory.studies.workers import Ended, Pool, Reached

MIXERS = ("lstm", "lru", "delta_net", "attention")

_SHARED = {"hidden_size": 64, "num_hidden_layers": 2}


@dataclasses.dataclass(frozen=True)
class Study:
    """One task of the demo, on which all mixers are trained alike.

    Attributes:
        task: Key of the task.
        data: Keywords of its dataset and knobs of its law.
        fields: Fields of every mixer's config.
        own_fields: Further fields by mixer.
        training: Arguments of Trainer, the same for all.
    """

    task: str
    data: Mapping[str, Any]
    fields: Mapping[str, Any]
    own_fields: Mapping[str, Mapping[str, Any]]
    training: Mapping[str, Any]


STUDIES = (
    Study(
        task="bit_parity",
        data={"length": 32, "test_lengths": [32, 48, 64, 128, 256], "num_train": 40_000, "num_test": 1_000},
        fields={**_SHARED, "intermediate_size": 128},
        own_fields={"attention": {"position_code": "rope"}, "delta_net": {"allow_neg_eigval": True}},
        training={"max_steps": 600, "per_device_train_batch_size": 64, "learning_rate": 3e-3},
    ),
    Study(
        task="mqar",
        data={"vocab_size": 64, "num_kv_pairs": 4, "length": 32, "test_lengths": [32, 64, 128], "num_train": 40_000,
              "num_test": 1_000},
        fields=_SHARED,
        # Each mixer has one short convolution, on queries, keys and values where it has these: without it softmax
        # attention needs millions of tokens to leave the plateau at which it names one of the four values at random.
        own_fields={
            "attention": {"position_code": "rope", "num_heads": 1, "conv_kernel": 4},
            "delta_net": {"num_heads": 1, "conv_kernel": 4},
            "lstm": {"block_conv_kernel": 4},
            "lru": {"block_conv_kernel": 4},
        },
        training={"max_steps": 600, "per_device_train_batch_size": 64, "learning_rate": 5e-3},
    ),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of the demo: a mixer on a study.

    Attributes:
        study: Place of the study in :data:`STUDIES`.
        mixer: Key of the mixer.
        smoke: A few steps on a few rows.
        out: Folder of the demo.
    """

    study: int
    mixer: str
    smoke: bool
    out: Path

    @property
    def name(self) -> str:
        """What the progress bar calls it."""
        return f"{self.mixer} on {STUDIES[self.study].task}"

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        return 5 if self.smoke else STUDIES[self.study].training["max_steps"]

    @property
    def checkpoint(self) -> Path:
        """Folder of its checkpoint."""
        return self.out / "checkpoints" / f"{STUDIES[self.study].task}-{self.mixer}"

    @property
    def path(self) -> Path:
        """File of its rows, which is there once the cell is finished."""
        return cell_path(self.out / "rows", self.experiment().cell(self.checkpoint))

    def experiment(self) -> Experiment:
        """The run in full."""
        study = STUDIES[self.study]
        return Experiment(
            specification=specify(study.task, **{**study.data, **(SMOKE_ROWS if self.smoke else {})}),
            mixer=self.mixer,
            fields={**study.fields, **study.own_fields.get(self.mixer, {})},
            training={
                **study.training,
                "max_steps": self.steps,
                "disable_tqdm": True,
                "use_cpu": True,
            },
        )


def run_demo(output_dir: str | os.PathLike[str], workers: int = 2, smoke: bool = False) -> list[Row]:
    """Train and evaluate every cell, and write the page.

    Rows lie in ``<output_dir>/rows``, checkpoints in ``<output_dir>/checkpoints``, and the page with its figures in
    ``<output_dir>/report``. Cells whose rows are there already are not run again.

    Args:
        output_dir: Where everything is written.
        workers: Processes, each with one thread: on a CPU two processes with a thread each do more than twice the work
            of one with two.
        smoke: A few steps on a few rows, which proves nothing but that everything is in place.

    Returns:
        The rows of all cells.

    Raises:
        RuntimeError: If a cell failed; the others are finished first.
    """
    out = Path(output_dir)
    check_writable(out)
    cells = [Cell(study, mixer, smoke, out) for study in range(len(STUDIES)) for mixer in MIXERS]
    paths = [cell.path for cell in cells]
    with Pool(run_cell, workers) as pool, _Progress(cells) as progress:
        todo = []
        for cell, path in zip(cells, paths, strict=True):
            if path.exists():
                progress.end(cell, f"{_summary(read_rows(path))} (finished before)")
            else:
                todo.append(cell)
        failures = _follow(pool, todo, progress)
    if failures:
        names = ", ".join(cell.name for cell in failures)
        texts = [f"{cell.name}:\n{error}" for cell, error in failures.items()]
        raise RuntimeError(f"not finished: {names}\n" + "\n".join(texts))
    rows = [row for path in paths for row in read_rows(path)]
    write_page(rows, out / "report", "Four mixers on two memory tasks")
    return rows


def _follow(pool: Pool[Cell, bool], cells: Sequence[Cell], progress: "_Progress") -> dict[Cell, str]:
    """Run cells and show how far they are. Returns the errors of those that failed."""
    failures: dict[Cell, str] = {}
    for event in pool.run(cells):
        cell = event.piece
        if isinstance(event, Reached):
            progress.reach(cell, event.step)
        elif not isinstance(event, Ended):
            progress.start(cell)
        elif event.error:
            failures[cell] = event.error
            progress.end(cell, "failed")
        else:
            took = f"{event.seconds:.0f} s" if event.value else "finished elsewhere"
            progress.end(cell, f"{_summary(read_rows(cell.path))} ({took})")
    return failures


class _Progress:
    """A bar over the steps of all cells, with the names of those that are running."""

    def __init__(self, cells: Sequence[Cell]):
        self._reached = dict.fromkeys(cells, 0)
        self._running: list[str] = []
        total = sum(cell.steps for cell in cells)
        self._bar = tqdm(total=total, unit="step", desc="demo", smoothing=0.05)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def start(self, cell: Cell) -> None:
        """A cell is running."""
        self._running.append(cell.name)
        self._bar.set_postfix_str(", ".join(self._running))

    def reach(self, cell: Cell, step: int) -> None:
        """A cell is at a step."""
        self._bar.update(step - self._reached[cell])
        self._reached[cell] = step

    def end(self, cell: Cell, text: str) -> None:
        """A cell is over, and a text says how."""
        self.reach(cell, cell.steps)
        self._bar.write(f"{cell.name}: {text}", file=sys.stderr)
        if cell.name in self._running:
            self._running.remove(cell.name)
        self._bar.set_postfix_str(", ".join(self._running))


def run_cell(cell: Cell, beat: Beat) -> bool:
    """Run a cell unless it is finished; where another process is at it, wait for that. Returns whether it ran here."""
    path = cell.path
    while not path.exists():
        with contextlib.suppress(ClaimLostError), claim(path) as mine:
            if mine:
                cell.experiment().run(cell.out / "rows", cell.checkpoint, [_BeatEachStep(beat)])
                return True
        beat(0)
        time.sleep(0.5)
    return False


class _BeatEachStep(TrainerCallback):
    """Tells a beat of every step."""

    def __init__(self, beat: Beat):
        self.beat = beat

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass the step on."""
        self.beat(state.global_step)


def _summary(rows: list[Row]) -> str:
    """The first and the last test length in a few words."""
    tests = sorted((row for row in rows if row.split == f"test_{row.length}"), key=lambda row: row.length)
    values = [f"{row.value():.3f} at {row.length}" for row in (tests[0], tests[-1])]
    return f"{tests[0].headline.replace('_', ' ')} {', '.join(values)}"
