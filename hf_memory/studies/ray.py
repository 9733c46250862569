"""The cells of a sweep as tasks of Ray, on one machine or a cluster. Needs the extra ``ray``.

The results folder must be one that all nodes see, as for several sweeps on one folder: a cell is claimed there, and
what counts is the file that it leaves. Where a node is lost, Ray starts its cell again on another, which takes the
claim over once its heartbeat is old.

Whoever reaches a port of Ray can run code as its user: Ray asks for no password, and only its later releases for a
token, where that is switched on. A cluster that is started here listens on the loopback address alone; one that is
joined must stand in a network of its own.
"""

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_memory.studies.cells import Outcome, run_cells
from hf_memory.studies.workers import POLL_SECONDS, Report, Stack, prepare_process, report_stack, write_failures

MAX_RETRIES = 3
"""How often a cell is started again after its node or process was lost."""


class RayWorkers:
    """Cells as Ray tasks of one CPU each. Use it as a context manager.

    It joins the cluster of the address in ``RAY_ADDRESS``, else one that is running here, else starts one that no
    other machine can reach; it shuts down only what it started.

    Args:
        workers: Cells at a time; by default as many as the cluster has CPUs.
        gpu_share: GPU of each cell, such as 0.25 for four cells on one.

    Raises:
        ValueError: If Ray is not installed, or the numbers are out of range.
    """

    def __init__(self, workers: int | None = None, gpu_share: float = 0.0):
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if gpu_share < 0:
            raise ValueError(f"gpu_share must be at least 0, got {gpu_share}")
        try:
            self._ray = importlib.import_module("ray")
        except ImportError as error:
            raise ValueError("backend: 'ray' needs the extra: pip install 'hf_memory[ray]'") from error
        self.size, self._wanted, self._gpu_share = workers or 1, workers, gpu_share
        self._is_ours = False

    def __enter__(self) -> "RayWorkers":
        if not self._ray.is_initialized():
            self._join_or_start()
            self._is_ours = True
        self.size = self._wanted or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_ours:
            self._ray.shutdown()

    def _join_or_start(self) -> None:
        """Join the cluster that is named or was started here by hand, else start one on the loopback address."""
        services: Any = importlib.import_module("ray._private.services")
        options = {"ignore_reinit_error": True, "log_to_driver": False}
        if os.environ.get("RAY_ADDRESS") or services.find_bootstrap_address(None):
            self._ray.init(**options)
            return
        with _on_loopback():
            self._ray.init(address="local", include_dashboard=False, **options)

    def run(self, stacks: Sequence[Stack], results: Path, report: Report) -> None:
        """Run cells until each is finished or has failed."""
        options = {"num_cpus": 1, "num_gpus": self._gpu_share, "max_retries": MAX_RETRIES}
        remote = self._ray.remote(**options)(_run_remote)
        waiting, running = list(stacks), dict[Any, tuple[Stack, float]]()
        while waiting or running:
            while waiting and len(running) < self.size:
                stack = waiting.pop(0)
                running[remote.remote(stack, str(results.resolve()))] = stack, time.monotonic()
            ready, _ = self._ray.wait(list(running), timeout=POLL_SECONDS)
            for task in ready:
                stack, started = running.pop(task)
                outcomes = self._outcomes(task, stack, results)
                waiting += report_stack(stack, outcomes, time.monotonic() - started, report)

    def _outcomes(self, task: Any, stack: Stack, results: Path) -> list[tuple[Outcome, str]]:
        """The outcomes of a task; cells that Ray gave up are recorded as failed."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error  # the error itself, where Ray wrapped it
            lines = str(cause).splitlines() or [""]
            return write_failures(results, stack, f"{type(cause).__name__}: {lines[0]}")


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray take the loopback address for that of this machine.

    Asked for 127.0.0.1, it takes the address of the network and listens on all; where its clusters of several machines
    are switched off, as it does on some systems, it takes what it is asked for.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _run_remote(stack: Stack, results: str) -> list[tuple[Outcome, str]]:
    """Run cells on a node. One that is claimed is asked for again a little later, and keeps no CPU busy meanwhile."""
    prepare_process()
    outcomes = run_cells(stack, results)
    if all(outcome == "claimed elsewhere" for outcome, _ in outcomes):
        time.sleep(POLL_SECONDS)
    return outcomes
