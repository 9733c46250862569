"""A kernel is tried in a process of its own, under limits of time: how that process is run, and what came of it."""

import contextlib
import dataclasses
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hf_memory.ops.backends.dispatch import hub_kernels_wanted

START_SECONDS = 300.0
"""Until torch has done the work that the kernel is to do, with the imports before it."""

COMPILE_SECONDS = 240.0
"""For the first run of a kernel, in which it is compiled and tuned."""

TRIAL_SECONDS = 60.0
"""For the runs that are compared, and again for those that are timed."""

LONGEST = START_SECONDS + COMPILE_SECONDS + 2 * TRIAL_SECONDS
"""Seconds that a trial takes at most."""

# The package itself is not imported, only its operations: to register its models takes longer than most trials.
_START = """
import importlib, sys, types
sys.modules["hf_memory"] = package = types.ModuleType("hf_memory")
package.__path__ = [sys.argv[1]]
importlib.import_module("hf_memory.ops.backends.trial_process").main()
"""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of a trial.

    Attributes:
        reason: Why the kernel is not used; None where it is right and faster than torch.
        milliseconds: A training step of the kernel; None where it did not come so far.
        torch_milliseconds: The same step in torch.
        error: Largest difference from torch, as a share of the largest number.
        for_good: Whether this says something of the kernel, and so is kept; a GPU without free memory does not.
        faulty: Whether the kernel is refused for more than its speed.
    """

    reason: str | None
    milliseconds: float | None = None
    torch_milliseconds: float | None = None
    error: float | None = None
    for_good: bool = True
    faulty: bool = False

    @property
    def text(self) -> str:
        """The verdict in words."""
        return self.reason or f"{self._times}, off by {self.error:.1e} at most"

    @property
    def _times(self) -> str:
        return f"{self.milliseconds:.3g} ms, torch {self.torch_milliseconds:.3g} ms"


def try_kernel(request: Mapping[str, Any]) -> Verdict:
    """Run a trial; arguments as for :func:`hf_memory.ops.backends.trial_process.run_trial`."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            process = _start(request, said)
        except OSError as error:
            return _unused(f"no process can be started ({error})", for_good=False)
        try:
            return _follow(process, said)
        finally:
            _end(process)


def _start(request: Mapping[str, Any], said: IO[str]) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HF_MEMORY_BACKEND"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if hub_kernels_wanted():
        environment["HF_MEMORY_HUB_KERNELS"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(Path(__file__).parents[2])],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        start_new_session=True,  # with all that it starts, such as compilers, it can be ended as a group
    )
    with contextlib.suppress(BrokenPipeError):  # it has died, which is found out below
        print(json.dumps(request), file=process.stdin, flush=True)
    return process


def _follow(process: subprocess.Popen[str], said: IO[str]) -> Verdict:
    """Wait for each stage in turn."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_into, args=(lines, process.stdout), daemon=True).start()
    limits = {"ready": START_SECONDS, "compiled": COMPILE_SECONDS, "compared": TRIAL_SECONDS, "timed": TRIAL_SECONDS}
    known: dict[str, Any] = {}
    for stage, limit in limits.items():
        has_begun = stage != "ready"
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            return _unused(f"it hangs: it was not {stage} within {limit:g} s", has_begun)
        if line is None:
            return _unused(f"its process {_end_of(process)}{_last_line(said)}", has_begun)
        known |= json.loads(line)
        if known["stage"] == "failed":
            return _unused(known["reason"], known["for_good"])
        if known.get("reason"):
            return Verdict(known["reason"], error=_finite(known["error"]), faulty=True)
    own, others = known["milliseconds"], known["torch_milliseconds"]
    reason = None if own < others else f"it is not faster: {own:.3g} ms, torch {others:.3g} ms"
    return Verdict(reason, own, others, known["error"])


def _read_into(lines: "queue.SimpleQueue[str | None]", stream: IO[str] | None) -> None:
    """Hand on each line, and None at the end, so that a wait for it can have a limit."""
    for line in stream or ():
        lines.put(line)
    lines.put(None)


def _unused(reason: str, for_good: bool) -> Verdict:
    """A verdict on a kernel that has failed, or on a trial that did not come as far as the kernel."""
    return Verdict(reason if for_good else f"it could not be tried: {reason}", for_good=for_good, faulty=for_good)


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def _end_of(process: subprocess.Popen[str]) -> str:
    """How a process has ended that is about to."""
    try:
        code = process.wait(10)
    except subprocess.TimeoutExpired:
        return "closed its output"
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _last_line(said: IO[str]) -> str:
    """The last line that the process wrote beside its reports."""
    said.seek(0)
    lines = said.read().split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" ({last[:200]})" if last else ""


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with all that it started; one that waits for its driver without end is left to itself."""
    with contextlib.suppress(OSError):
        if process.poll() is None and hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            stream.close()
