"""Worker processes of a sweep on one machine: one thread each, one cell or one stack of cells at a time.

On a CPU, one process per core with one thread does two to six times the work of one process with all threads. Each
worker has a pipe of its own, so that the parent knows which cell is lost when a worker is killed.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_memory.studies.cells import Cell, Outcome, run_cells, state_of, write_failure

Stack = tuple[Cell, ...]
"""Cells that one process trains as one model; mostly a single one."""

Report = Callable[[Cell, Outcome, str, float], None]
"""Told of each cell that ends: outcome, text of an error, and seconds, those of a stack in equal shares."""

POLL_SECONDS = 1.0


class LocalWorkers:
    """A pool of processes. Use it as a context manager; workers stay between calls of :meth:`run`.

    Args:
        workers: Number of processes; by default one per core that this process may use.
    """

    def __init__(self, workers: int | None = None):
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.size = workers or available_cores()
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []

    def __enter__(self) -> "LocalWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def run(self, stacks: Sequence[Stack], results: Path, report: Report) -> None:
        """Run cells until each is finished or has failed, here or in another sweep on the same folder."""
        waiting, elsewhere = list(stacks), list[Stack]()
        while len(self._workers) < min(self.size, len(waiting)):
            self._workers.append(_Worker(self._context, results))
        while waiting or elsewhere or any(worker.stack for worker in self._workers):
            for index, worker in enumerate(self._workers):
                if waiting and worker.stack is None:
                    if not worker.process.is_alive():
                        worker.end()
                        worker = self._workers[index] = _Worker(self._context, results)
                    worker.start(waiting.pop(0))
            busy = {worker.connection: worker for worker in self._workers if worker.stack}
            for connection in multiprocessing.connection.wait(list(busy)) if busy else []:
                self._collect(busy[connection], results, elsewhere, report)
            # Cells that another sweep has claimed are asked for again once nothing else is left to do.
            if elsewhere and not waiting and not any(worker.stack for worker in self._workers):
                time.sleep(POLL_SECONDS)
                waiting, elsewhere = elsewhere, waiting

    def _collect(self, worker: "_Worker", results: Path, elsewhere: list[Stack], report: Report) -> None:
        """Take the outcomes of a worker; replace the worker where it has died."""
        stack = worker.stack
        if stack is None:
            return
        try:
            outcomes = worker.connection.recv()
        except (EOFError, OSError):
            outcomes = write_failures(results, stack, f"the worker process ended with code {worker.end()}")
            self._workers[self._workers.index(worker)] = _Worker(self._context, results)
        worker.stack = None
        elsewhere += report_stack(stack, outcomes, time.monotonic() - worker.started, report)


class _Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self, context: Any, results: Path):
        before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")}
        self.connection, theirs = context.Pipe()
        self.stack: Stack | None = None
        self.started = 0.0
        self.process = context.Process(target=_work, args=(theirs, str(results)), daemon=True)
        os.environ.update(OMP_NUM_THREADS="1", GOMP_SPINCOUNT="0")  # read when the process starts
        try:
            self.process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        theirs.close()

    def start(self, stack: Stack) -> None:
        """Hand cells to the process; a process that is gone shows when its outcomes are read."""
        self.stack, self.started = stack, time.monotonic()
        with contextlib.suppress(OSError):
            self.connection.send(stack)

    def end(self) -> int | None:
        """End the process and return its exit code."""
        self.connection.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
        return self.process.exitcode


def report_stack(stack: Stack, outcomes: Sequence[tuple[Outcome, str]], seconds: float, report: Report) -> list[Stack]:
    """Report the cells of a stack that have ended; return the others, each alone."""
    waiting: list[Stack] = []
    for cell, (outcome, text) in zip(stack, outcomes, strict=True):
        if outcome == "claimed elsewhere":
            waiting.append((cell,))
        else:
            report(cell, outcome, text, seconds / len(stack))
    return waiting


def write_failures(results: Path, stack: Stack, error: str) -> list[tuple[Outcome, str]]:
    """Record the error of a cell whose process is gone, and return the outcomes of all cells of the stack.

    Where several were trained as one, nobody knows whose error it was: those that have not ended run again, each alone.
    """
    outcomes: list[tuple[Outcome, str]] = []
    for cell in stack:
        state = state_of(results, cell)
        if state != "open":
            outcomes.append(("trained", "") if state == "finished" else ("failed before", error))
        elif len(stack) > 1:
            outcomes.append(("claimed elsewhere", ""))
        else:
            write_failure(results, cell, error)
            outcomes.append(("failed", error))
    return outcomes


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(connection: Any, results: str) -> None:
    """Run cells until the parent closes the pipe. The body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    prepare_process()
    while True:
        try:
            stack = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(run_cells(stack, results, _stop_without_parent))


def prepare_process() -> None:
    """One torch thread, and no progress bars but those of the sweep."""
    import datasets
    import torch
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def _stop_without_parent(steps: int) -> None:
    """End a process whose sweep is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)
