"""Four unlike mixers on two tasks in a few minutes on a CPU: the whole road from data to a page.

Bit parity asks for a state that is updated at every token, recall for one that holds many things at once. The demo
shows what each mixer keeps when sequences get longer than those it was trained on.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging

from hf_memory.data.specification import specify
from hf_memory.experiments.results import Row, cell_path, read_rows
from hf_memory.experiments.run import SMOKE_ROWS, Experiment
from hf_memory.reports.report import write_page
from hf_memory.storage import ClaimLostError, claim

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
    """One run of the demo: a mixer on a study."""

    study: int
    mixer: str
    smoke: bool

    @property
    def name(self) -> str:
        """What the progress bar calls it."""
        return f"{self.mixer} on {STUDIES[self.study].task}"

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        return 5 if self.smoke else STUDIES[self.study].training["max_steps"]

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


class _Report(TrainerCallback):
    """Tells the parent about steps, and ends a run whose parent is gone."""

    def __init__(self, messages: Any, cell: Cell, parent: int):
        self.messages, self.cell, self.parent = messages, cell, parent

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send every tenth step."""
        if os.getppid() != self.parent:
            sys.exit(1)
        if state.global_step % 10 == 0:
            self.messages.put(("steps", self.cell, 10))


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
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    out = Path(output_dir)
    cells = [Cell(study, mixer, smoke) for study in range(len(STUDIES)) for mixer in MIXERS]
    context = multiprocessing.get_context("spawn")
    work, messages = context.Queue(), context.Queue()
    for cell in [*cells, *[None] * workers]:
        work.put(cell)
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")}
    os.environ.update(OMP_NUM_THREADS="1", GOMP_SPINCOUNT="0")  # read when a worker starts
    processes = [context.Process(target=_work, args=(work, messages, str(out), os.getpid())) for _ in range(workers)]
    try:
        for process in processes:
            process.start()
        paths = _follow(processes, messages, cells)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            process.join()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    rows = [row for cell in cells for row in read_rows(paths[cell])]
    write_page(rows, out / "report", "Four mixers on two memory tasks")
    return rows


def _follow(processes: list[Any], messages: Any, cells: list[Cell]) -> dict[Cell, Path]:
    """Show progress until all workers have ended. Returns the results file of each cell."""
    paths: dict[Cell, Path] = {}
    failures: list[str] = []
    counted = dict.fromkeys(cells, 0)
    active: list[str] = []
    with tqdm(total=sum(cell.steps for cell in cells), unit="step", desc="demo", smoothing=0.05) as bar:
        while True:
            alive = any(process.is_alive() for process in processes)
            try:
                kind, *content = messages.get(timeout=1.0 if alive else 0.1)
            except queue.Empty:
                if alive:
                    continue
                break
            if kind == "start":
                active.append(content[0].name)
            elif kind == "steps":
                counted[content[0]] += content[1]
                bar.update(content[1])
            else:
                cell, outcome, text = content
                active.remove(cell.name)
                bar.update(cell.steps - counted[cell])
                bar.write(f"{cell.name}: {text}", file=sys.stderr)
                if kind == "done":
                    paths[cell] = Path(outcome)
                else:
                    failures.append(f"{cell.name}:\n{outcome}")
            bar.set_postfix_str(", ".join(active))
    lost = [cell.name for cell in cells if cell not in paths]
    if failures or lost:
        raise RuntimeError(f"not finished: {', '.join(lost)}\n" + "\n".join(failures))
    return paths


def _work(work: Any, messages: Any, output_dir: str, parent: int) -> None:
    """Run cells until there are no more. The body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    while (cell := work.get()) is not None:
        messages.put(("start", cell))
        started = time.perf_counter()
        try:
            path, repeated = _run_cell(cell, Path(output_dir), _Report(messages, cell, parent))
        except Exception:  # noqa: BLE001 (whatever went wrong, the other cells go on and the parent reports it)
            messages.put(("failed", cell, traceback.format_exc(), "failed"))
        else:
            took = f"{time.perf_counter() - started:.0f} s" if repeated else "finished before"
            messages.put(("done", cell, str(path), f"{_summary(read_rows(path))} ({took})"))


def _run_cell(cell: Cell, out: Path, report: TrainerCallback) -> tuple[Path, bool]:
    """Run a cell unless it is finished; where another process is at it, wait. Returns its file, and whether it ran."""
    experiment = cell.experiment()
    checkpoint = out / "checkpoints" / f"{STUDIES[cell.study].task}-{cell.mixer}"
    path = cell_path(out / "rows", experiment.cell(checkpoint))
    while not path.exists():
        with contextlib.suppress(ClaimLostError), claim(path) as mine:
            if mine:
                experiment.run(out / "rows", checkpoint, [report])
                return path, True
        time.sleep(0.5)
    return path, False


def _summary(rows: list[Row]) -> str:
    """The first and the last test length in a few words."""
    tests = sorted((row for row in rows if row.split == f"test_{row.length}"), key=lambda row: row.length)
    values = [f"{row.value():.3f} at {row.length}" for row in (tests[0], tests[-1])]
    return f"{tests[0].headline.replace('_', ' ')} {', '.join(values)}"
