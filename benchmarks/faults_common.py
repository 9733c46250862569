"""What all attacks share: commands in processes that are forked and not started anew, and what they leave behind.

The parent imports everything once, with one thread, and starts no other: a fork then holds all imports, and a killed
run costs its own seconds alone. A sweep's workers, which it starts anew elsewhere, are forked here too.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import datasets

import hf_memory.studies.workers
from hf_memory.cli.app import main as run_main

DATA = ["--data", "length=8", "test_lengths=[8,12]", "num_train=64", "num_validation=16", "num_test=16"]
RUN = ["--mixer", "lru", "--task", "bit_parity", "--model", "hidden_size=8", "num_hidden_layers=1", *DATA]
QUIET = ["--disable_tqdm", "True", "--use_cpu", "True", "--per_device_train_batch_size", "8"]
TRAIN = ["train", *RUN, *QUIET, "--max_steps", "12", "--save_strategy", "steps", "--save_steps", "2"]
TRAIN += ["--resume_from_checkpoint", "latest", "--output_dir", "run", "--results", "rows"]
RECIPE = {
    "name": "tiny",
    "task": "bit_parity",
    "data": {"length": 8, "test_lengths": [8, 12], "num_validation": 16, "num_test": 16},
    "model": {"num_hidden_layers": 1},
    "sizing": {"by": "hidden", "value": 8},
    "training": {"steps": 4, "batch_size": 8},
    "arms": {"lru": {}},
    "learning_rates": [0.001, 0.01],
    "seeds": {"search": [0], "final": [1]},
    "evaluate": {"points": 2},
    "profiles": {"cpu": {}},
}
LIMIT = 120.0
"""Seconds after which a command counts as hung, where none takes more than a few."""

TIMES = ("train_seconds", "eval_seconds")


@dataclasses.dataclass
class Tally:
    """What came of the cases of one kind.

    Attributes:
        what: The kind.
        outcomes: Number of cases by how they ended.
        faults: One sentence for each case that ended otherwise than it may.
        note: What the figures depend on.
        seconds: How long all took.
    """

    what: str
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: list[str] = dataclasses.field(default_factory=list)
    note: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The tally as JSON values."""
        return {**dataclasses.asdict(self), "cases": self.outcomes.total(), "outcomes": dict(self.outcomes)}


@contextlib.contextmanager
def timed(tally: Tally) -> Iterator[Tally]:
    """Add the seconds of a block to a tally."""
    started = time.monotonic()
    try:
        yield tally
    finally:
        tally.seconds += time.monotonic() - started


def start(place: Path, work: Callable[[], Any] | list[str]) -> int:
    """Start a command of ``hf-memory``, or a function, in a fork that works in a folder; returns its process."""
    place.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        with contextlib.suppress(OSError):
            os.setpgid(process, process)
        return process
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    return _serve(place, work)


def _serve(place: Path, work: Callable[[], Any] | list[str]) -> NoReturn:
    """The body of a fork. It leaves without the parent's clean-up."""
    code = 70
    try:
        os.chdir(place)
        log = os.open(place.with_name(f"{place.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        settle(place)
        if callable(work):
            work()
        else:
            sys.argv = ["hf-memory", *work]
            run_main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:  # noqa: BLE001 (a fork must not go on in the code of its parent)
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def settle(place: Path) -> None:
    """Let caches and temporary files lie in a folder, and let workers be forked."""
    (place / "tmp").mkdir(exist_ok=True)
    tempfile.tempdir = str(place / "tmp")
    datasets.config.HF_DATASETS_CACHE = place / "cache"
    datasets.disable_progress_bars()
    hf_memory.studies.workers.multiprocessing = _Forking()  # type: ignore[assignment]


class _Forking:
    """``multiprocessing``, whose processes are forks that hold no end of a pipe but their own."""

    connection = multiprocessing.connection
    parent_process = staticmethod(multiprocessing.parent_process)

    def __init__(self) -> None:
        self._context, self._held = multiprocessing.get_context("fork"), list[Any]()

    def get_context(self, kind: str) -> "_Forking":
        """The context of forks, whatever was asked for."""
        return self

    def Pipe(self) -> tuple[Any, Any]:
        """A pipe; forks close this end of it, so that a worker sees when its parent is gone."""
        ours, theirs = self._context.Pipe()
        self._held.append(ours)
        return ours, theirs

    def Process(self, target: Callable[..., Any], args: tuple[Any, ...], daemon: bool) -> Any:
        """A process that is a fork."""

        def body() -> None:
            for ours in self._held:
                ours.close()
            target(*args)

        return self._context.Process(target=body, daemon=daemon)


def wait(process: int, limit: float = LIMIT) -> int | None:
    """The exit code of a process, negative for a signal; None where it was hung and is killed."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    kill(process)
    os.waitpid(process, 0)
    return None


def kill(process: int, group: bool = True) -> None:
    """Send a process, and all that it started, the signal that none of them can catch."""
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process, signal.SIGKILL)
        else:
            os.kill(process, signal.SIGKILL)


def run(place: Path, work: Callable[[], Any] | list[str], limit: float = LIMIT) -> tuple[int | None, str]:
    """Run a command to its end; returns its exit code, None where it hung, and what it printed."""
    code = wait(start(place, work), limit)
    return code, said(place)


def said(place: Path) -> str:
    """What the last command in a folder printed."""
    log = place.with_name(f"{place.name}.log")
    return log.read_text(errors="replace") if log.exists() else ""


def gone(process: int, limit: float = 30.0) -> bool:
    """Whether a process and all that it started have ended, within some seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        table = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
        if not any(words[0] == str(process) and words[1][0] != "Z" for words in map(str.split, table.splitlines())):
            return True
        time.sleep(0.1)
    return False


def is_named(code: int | None, text: str) -> bool:
    """Whether a command ended with one line that says what is wrong."""
    return code in (1, 2) and "Traceback (most recent call last)" not in text and "Error: " in text


def contents(place: Path) -> dict[str, Any]:
    """Every file below a folder by its path, with what of it must be the same in every run; times are left out."""
    files = [path for path in sorted(place.rglob("*")) if not path.is_dir() or not any(path.iterdir())]
    # ``datasets`` leaves a lock beside whatever is loaded a second time.
    files = [path for path in files if path.suffix != ".lock" or "cache" not in path.parts]
    return {str(path.relative_to(place)): _content(path) for path in files}


def _content(path: Path) -> Any:
    if path.suffix in (".safetensors", ".parquet", ".arrow", ".png", ".svg", ".csv", ".html", ".md"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.name.endswith((".sweep.json", ".history.json")) or path.name == "hf_memory_run.json":
        return _timeless(json.loads(path.read_text()))
    return None


def _timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in (*TIMES, "sha256")}


def differences(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 0.0) -> list[str]:
    """What was lost, what is left over, and what differs between two folders, a sentence each.

    Args:
        found: What :func:`contents` says of the one.
        expected: What it says of the other.
        tolerance: How far numbers may differ; other than 0 where runs were stacked otherwise, whose sums have another
            order, so that their weights differ in the last digits and their backend says so.
    """
    lost = [f"{path} is lost" for path in expected if path not in found]
    left = [f"{path} is left over" for path in found if path not in expected]
    other = [
        f"{path} differs" for path in expected if path in found and not _same(found[path], expected[path], tolerance)
    ]
    return lost + left + other


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if not tolerance:
        return one == other
    if isinstance(one, dict) and isinstance(other, dict):
        keys = one.keys() - {"backend", "weights_sha256"}
        return one.keys() == other.keys() and all(_same(one[key], other[key], tolerance) for key in keys)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return one == other


def short(text: str) -> str:
    """The last line of what a command printed, for a table."""
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
