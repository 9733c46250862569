"""Worker processes on one machine: one thread each, one piece of work at a time; and the cells of a sweep on them.

On a CPU, one process per core with one thread does two to six times the work of one process with all threads. Each
worker has a pipe of its own, so that the parent knows which piece is lost when a worker is killed.
"""

import contextlib
import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hf_memory.studies.cells import Cell, Outcome, run_cells, state_of, write_failure
from hf_memory.studies.watched import Beat

Stack = tuple[Cell, ...]
"""Cells that one process trains as one model; mostly a single one."""

Report = Callable[[Cell, Outcome, str, float], None]
"""Told of each cell that ends: outcome, text of an error, and seconds, those of a stack in equal shares."""

POLL_SECONDS = 1.0

BEAT_SECONDS = 0.2
"""How often a worker tells its parent at which step it is."""

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GOMP_SPINCOUNT": "0",
    # The C library of Linux would hand a step's memory back to the system and ask for it again at the next one: at
    # width 64 and 2,048 tokens 1,000 to 2,000 faults of a page, and up to a tenth of the time.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""What a worker starts with."""

Piece = TypeVar("Piece")
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Started(Generic[Piece]):
    """A worker has been given a piece of work."""

    piece: Piece


@dataclasses.dataclass(frozen=True)
class Reached(Generic[Piece]):
    """A piece of work is at a step."""

    piece: Piece
    step: int


@dataclasses.dataclass(frozen=True)
class Ended(Generic[Piece, Value]):
    """A piece of work is over.

    Attributes:
        piece: The piece.
        value: What its function returned; None where it failed.
        error: The traceback of the exception that it raised, or one line on the end of its process; empty for success.
        seconds: How long it took.
    """

    piece: Piece
    value: Value | None
    error: str
    seconds: float


class Pool(Generic[Piece, Value]):
    """Processes that do pieces of work. Use it as a context manager; workers stay between calls of :meth:`run`.

    Args:
        work: A function of a module, called in a worker with a piece and a beat. It calls the beat with the number of
            each step that it has done; where the parent is gone, that ends the process.
        workers: Number of processes; by default one per core that this process may use.
    """

    def __init__(self, work: Callable[[Piece, Beat], Value], workers: int | None = None):
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.size = workers or available_cores()
        self._work = work
        self._workers: list[_Worker] = []

    def __enter__(self) -> "Pool[Piece, Value]":
        return self

    def __exit__(self, *error: object) -> None:
        self._end(self._workers)

    def run(self, pieces: Sequence[Piece]) -> Iterator[Started[Piece] | Reached[Piece] | Ended[Piece, Value]]:
        """Do each piece once, and yield what happens to it. A piece whose worker dies has failed; the others go on."""
        waiting, busy = list(pieces), dict[Any, _Worker]()
        try:
            while waiting or busy:
                while waiting and len(busy) < self.size:
                    worker, piece = self._idle_worker(busy), waiting.pop(0)
                    busy[worker.connection] = worker
                    worker.start(piece)
                    yield Started(piece)
                for connection in multiprocessing.connection.wait(list(busy)):
                    event = busy[connection].hear()
                    if isinstance(event, Ended):
                        del busy[connection]
                    yield event
        finally:
            self._end(list(busy.values()))  # where nobody waits for them any longer

    def _idle_worker(self, busy: dict[Any, "_Worker"]) -> "_Worker":
        """A living worker without work: one that is there, or a new one."""
        idle = [worker for worker in self._workers if worker.connection not in busy]
        self._end([worker for worker in idle if not worker.process.is_alive()])
        for worker in idle:
            if worker in self._workers:
                return worker
        self._workers.append(_Worker(self._work))
        return self._workers[-1]

    def _end(self, workers: Sequence["_Worker"]) -> None:
        """End workers; all are told before the first is waited for."""
        for worker in workers:
            worker.connection.close()
        for worker in list(workers):
            worker.end()
            self._workers.remove(worker)


class _Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self, work: Callable[[Any, Beat], Any]):
        context = multiprocessing.get_context("spawn")
        before = {name: os.environ.get(name) for name in _ENVIRONMENT}
        self.connection, theirs = context.Pipe()
        self.piece: Any = None
        self.started = 0.0
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        os.environ.update(_ENVIRONMENT)  # read when the process starts
        try:
            self.process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        theirs.close()

    def start(self, piece: Any) -> None:
        """Hand a piece of work to the process; a process that is gone shows when its answer is read."""
        self.piece, self.started = piece, time.monotonic()
        with contextlib.suppress(OSError):
            self.connection.send(piece)

    def hear(self) -> Reached[Any] | Ended[Any, Any]:
        """Wait for what the process has to say."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            self.connection.close()
            kind, content = "error", f"the worker process ended with code {self.end()}"
        if kind == "step":
            return Reached(self.piece, content)
        value, error = (None, content) if kind == "error" else (content, "")
        return Ended(self.piece, value, error, time.monotonic() - self.started)

    def end(self) -> int | None:
        """Wait for a process whose pipe is closed, make it end where it does not, and return its exit code."""
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
        return self.process.exitcode


class Workers(Protocol):
    """What runs cells: a context manager with ``size``, the number of cells at a time, and ``run``."""

    size: int

    def __enter__(self) -> "Workers": ...

    def __exit__(self, *error: object) -> None: ...

    def run(self, stacks: Sequence[Stack], results: Path, report: Report) -> None:
        """Run the cells of all stacks until each is finished or has failed, and report each."""


class LocalWorkers:
    """The cells of a sweep on the processes of this machine. Use it as a context manager.

    Args:
        workers: Number of processes; by default one per core that this process may use.
    """

    def __init__(self, workers: int | None = None):
        self._pool = Pool(_run_stack, workers)
        self.size = self._pool.size

    def __enter__(self) -> "LocalWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.__exit__(*error)

    def run(self, stacks: Sequence[Stack], results: Path, report: Report) -> None:
        """Run cells until each is finished or has failed, here or in another sweep on the same folder."""
        waiting = list(stacks)
        while waiting:
            elsewhere: list[Stack] = []
            for event in self._pool.run([(stack, str(results)) for stack in waiting]):
                if isinstance(event, Ended):
                    stack, outcomes = event.piece[0], event.value
                    if outcomes is None:
                        outcomes = write_failures(results, stack, event.error.strip().splitlines()[-1])
                    elsewhere += report_stack(stack, outcomes, event.seconds, report)
            # Cells that another sweep has claimed are asked for again once nothing else is left to do.
            if elsewhere:
                time.sleep(POLL_SECONDS)
            waiting = elsewhere


def _run_stack(piece: tuple[Stack, str], beat: Beat) -> list[tuple[Outcome, str]]:
    """Run the cells of a stack. Called in a worker."""
    stack, results = piece
    return run_cells(stack, results, beat)


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
            outcomes.append((write_failure(results, cell, error, crashed=True), error))
    return outcomes


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _serve(connection: Any, work: Callable[[Any, Beat], Any]) -> None:
    """Do pieces of work until the parent closes the pipe. The body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    prepare_process()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone, or has closed the pipe
        while True:
            piece = connection.recv()
            try:
                answer = ("value", work(piece, _Pulse(connection)))
            except Exception:  # noqa: BLE001 (whatever went wrong belongs to this piece alone, and the parent reports it)
                answer = ("error", traceback.format_exc())
            connection.send(answer)


class _Pulse:
    """The beat of a piece of work: tells the parent now and then, and ends a process that has none."""

    def __init__(self, connection: Any):
        self.connection, self.told = connection, time.monotonic()

    def __call__(self, step: int) -> None:
        _stop_without_parent()
        if time.monotonic() - self.told < BEAT_SECONDS:
            return
        self.told = time.monotonic()
        try:
            self.connection.send(("step", step))
        except OSError:
            sys.exit(1)


def prepare_process() -> None:
    """One torch thread, no progress bars but those of the parent, and no search for garbage among what stays.

    Trainer collects garbage in each run, which takes half a second among the objects of all imported packages.
    """
    import datasets
    import torch
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    gc.freeze()


def _stop_without_parent() -> None:
    """End a process whose parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)
