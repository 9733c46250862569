"""Full disks and folders that cannot be written: one line that says so, and the command runs once there is space."""

import contextlib
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults_common import DATA, TRAIN, Tally, contents, differences, is_named, run, settle, short, timed
from benchmarks.faults_kills import SWEEP, lay_out
from hf_memory.cli.app import main as run_main

COMMANDS = {
    "train": TRAIN,
    "evaluate": ["evaluate", "given/run", "--task", "bit_parity", "--results", "out", *DATA],
    "sweep": SWEEP,
    "data build": ["data", "build", "bit_parity", *DATA],
    "data export": ["data", "export", "bit_parity", "out", *DATA],
    "report": ["report", "given/rows", "--out", "out"],
    "push": ["push", "given/run", "--repo-id", "me/disk", "--results", "given/rows"],
}
READ_ONLY = "/proc/hf_memory"
"""A place that nobody can write to, the superuser included."""


def attack(root: Path, given: Path, trials: int, seed: int) -> Iterator[Callable[[], Tally]]:
    """Two cases for each command: disks of several sizes, and a folder that cannot be written."""
    for name in COMMANDS:
        rng = random.Random(f"{seed} disk {name}")
        yield lambda name=name, rng=rng: _full(root, given, name, trials, rng)
        yield lambda name=name: _read_only(root, given, name)


def _full(root: Path, given: Path, name: str, trials: int, rng: random.Random) -> Tally:
    """Run a command on a file system of some random size, then with space, and compare with one undisturbed."""
    place, words = root / "trial", COMMANDS[name]
    with timed(Tally(f"{name}, full disk")) as tally:
        lay_out(place, given)
        least = _size(place) + os.sysconf("SC_PAGE_SIZE")
        for _ in range(2):
            code, text = run(place, words)
        expected, size = contents(place), _size(place)
        if code != 0:
            tally.faults.append(f"undisturbed: {short(text)}")
        # What is read has its place, and what is written has from nothing to nearly all.
        for _ in range(trials):
            room = rng.randrange(least, max(size, least + 1) + 4096)
            with _small_disk(place, room) as kind:
                tally.note = kind
                lay_out_within(place, given)
                code, text = run(place, words if kind == "tmpfs" else _limited(words, rng.randrange(100, 200_000)))
                faults = _judge(code, text, tally, "No space left" if name == "sweep" else "")
                # What is whole may stay, such as the checkpoints so far; what is half has a name with a dot.
                left = [path for path in contents(place) if path not in expected]
                faults += [f"{path} is left over" for path in left if path.startswith((".", "tmp/")) or "/." in path]
                if kind == "tmpfs":
                    subprocess.run(["mount", "-o", "remount,size=256m", place], check=False, capture_output=True)
                # Cells that have crashed several times are asked for by name.
                code, text = run(place, [*words, *(["--retry-failed"] if name == "sweep" else [])])
                faults += [f"with space: {short(text)}"] if code != 0 else differences(contents(place), expected)
            tally.faults += [f"{room} bytes: {'; '.join(faults[:4])}"] if faults else []
    return tally


def _judge(code: int | None, text: str, tally: Tally, cause: str = "") -> list[str]:
    """Count how a command ended; a sweep goes on after a cell has crashed, and names the ``cause`` of each."""
    if code == 0:
        tally.outcomes["there was enough space"] += 1
        return []
    named = is_named(code, text) or (code == 1 and cause != "" and cause in text)
    tally.outcomes["one line" if named else "otherwise"] += 1
    return [] if named else [f"ended with {code}: {short(text)}"]


def _read_only(root: Path, given: Path, name: str) -> Tally:
    """Run a command whose output, caches and temporary files have a place that cannot be written."""
    place = root / "trial"
    swaps = {"out": f"{READ_ONLY}/out", "run": f"{READ_ONLY}/run", "rows": f"{READ_ONLY}/rows"}

    def work() -> None:
        import sys
        import tempfile

        import datasets

        tempfile.tempdir, datasets.config.HF_DATASETS_CACHE = READ_ONLY, Path(READ_ONLY) / "cache"
        sys.argv = ["hf-memory", *(swaps.get(word, word) for word in COMMANDS[name])]
        run_main()

    with timed(Tally(f"{name}, read-only")) as tally:
        lay_out(place, given)
        code, text = run(place, work)
        faults = _judge(code, text, tally)
        if not faults and READ_ONLY not in text:
            faults = [f"the folder is not named: {short(text)}"]
        tally.faults += faults
    return tally


@contextlib.contextmanager
def _small_disk(place: Path, room: int) -> Iterator[str]:
    """A file system of some bytes at a path, where this process may mount one; yields what it is."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(options, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield "tmpfs" if mounted else "largest file limited"
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=False, capture_output=True)


def lay_out_within(place: Path, given: Path) -> None:
    """What the commands read, in a folder that is there."""
    import yaml

    from benchmarks.faults_common import RECIPE

    shutil.copytree(given, place / "given", dirs_exist_ok=True)
    (place / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    (place / "tmp").mkdir(exist_ok=True)


def _limited(words: list[str], size: int) -> Callable[[], None]:
    """A command none of whose files may grow beyond some bytes."""

    def work() -> None:
        import sys

        settle(Path.cwd())
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        sys.argv = ["hf-memory", *words]
        run_main()

    return work


def _size(place: Path) -> int:
    """Bytes that the files of a folder take on a file system of pages."""
    sizes = [path.stat().st_size if path.is_file() else 0 for path in place.rglob("*")]
    return sum(-(-size // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE") for size in sizes)
