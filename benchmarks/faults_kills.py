"""Commands that are killed at random moments and run again: nothing lost, doubled, torn, left over or hung."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults_common import (
    DATA,
    RECIPE,
    TRAIN,
    Tally,
    contents,
    differences,
    gone,
    kill,
    run,
    short,
    start,
    timed,
    wait,
)

MANY = [word.replace("num_train=64", "num_train=20000") for word in DATA]
SWEEP = ["sweep", "tiny.yaml", "--results", "rows", "--workers", "1"]


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that is killed.

    Attributes:
        words: Its words; ``NUMBER`` stands for the number of the trial.
        has_workers: Whether it has processes of its own, which may outlive it.
        tolerance: As for :func:`benchmarks.faults_common.differences`.
        shared: What its outcome is read from, by the number of the trial, where it is no folder.
    """

    words: list[str]
    has_workers: bool = False
    tolerance: float = 0.0
    shared: Callable[[str], dict[str, Any]] | None = None


def repository(number: str) -> dict[str, Any]:
    """The files of the repository of a trial on the Hub, without its name in them."""
    root = os.environ["HF_ENDPOINT"]
    with urllib.request.urlopen(f"{root}/api/models/me/t{number}") as answer:
        names = [item["rfilename"] for item in json.loads(answer.read())["siblings"]]
    found = {}
    for name in names:
        with urllib.request.urlopen(f"{root}/me/t{number}/resolve/main/{name}") as answer:
            content = answer.read().replace(f"t{number}".encode(), b"REPO")
        values = {} if name != "hf_memory_run.json" else json.loads(content)
        found[name] = hashlib.sha256(content).hexdigest() if not values else values["weights_sha256"]
    return found


COMMANDS = {
    "train": Command(TRAIN),
    "sweep": Command(SWEEP, has_workers=True),
    "stacked sweep": Command([*SWEEP, "--stack", "4"], has_workers=True, tolerance=1e-3),
    "data build": Command(["data", "build", "bit_parity", *MANY]),
    "data export": Command(["data", "export", "bit_parity", "out", *MANY]),
    "report": Command(["report", "given/rows", "--out", "out"]),
    "push": Command(["push", "given/run", "--repo-id", "me/tNUMBER", "--results", "given/rows"], shared=repository),
}


def lay_out(place: Path, given: Path) -> None:
    """A fresh folder with what the commands read."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copytree(given, place / "given")
    (place / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))


def prepare(root: Path) -> Path:
    """A checkpoint and its rows, made by the command itself."""
    given = root / "given"
    code, text = run(given, TRAIN)
    if code != 0:
        raise RuntimeError(f"the first run failed: {short(text)}")
    for name in ("cache", "tmp", *(path.name for path in (given / "run").glob("checkpoint-*"))):
        shutil.rmtree(given / name, ignore_errors=True)
        shutil.rmtree(given / "run" / name, ignore_errors=True)
    return given


def attack(root: Path, given: Path, name: str, moments: int, rng: random.Random) -> Tally:
    """Kill a command at random moments, uniformly over the time that it takes undisturbed."""
    command, place = COMMANDS[name], root / "trial"
    with timed(Tally(name)) as tally:
        expected, seconds = _undisturbed(place, given, command)
        for number in range(1, moments + 1):
            lay_out(place, given)
            words = [word.replace("NUMBER", f"{number:06d}") for word in command.words]
            moment, alone = rng.uniform(0.0, seconds), command.has_workers and rng.random() < 0.5
            process = start(place, words)
            time.sleep(moment)
            kill(process, group=not alone)
            ended = wait(process) == 0
            tally.outcomes["ended before it was killed" if ended else "killed, and ended when run again"] += 1
            found = _again(place, words, process, command, number)
            faults = [found] if isinstance(found, str) else differences(found, expected, command.tolerance)
            if faults:
                tally.faults.append(f"killed after {moment:.2f} of {seconds:.2f} s: {'; '.join(faults[:4])}")
        tally.note = f"undisturbed: {seconds:.1f} s"
    return tally


def _undisturbed(place: Path, given: Path, command: Command) -> tuple[dict[str, Any], float]:
    """What a command leaves that nobody disturbs, and the seconds it takes."""
    lay_out(place, given)
    words, started = [word.replace("NUMBER", "000000") for word in command.words], time.monotonic()
    code, text = run(place, words)
    seconds = time.monotonic() - started
    if code != 0:
        raise RuntimeError(f"{' '.join(words)}: {short(text)}")
    # What ended is run once more, as after a kill, so that a cache that the second run fills is expected.
    code, text = run(place, words)
    if code != 0:
        raise RuntimeError(f"{' '.join(words)}, again: {short(text)}")
    return _outcome(place, command, 0), seconds


def _again(place: Path, words: list[str], process: int, command: Command, number: int) -> dict[str, Any] | str:
    """Run a command again, and return what it leaves, or what went wrong."""
    code, text = run(place, words)
    if code != 0:
        return "the second run hung" if code is None else f"the second run ended with {code}: {short(text)}"
    if not gone(process):
        kill(process)
        return "a process outlived the one that was killed"
    return _outcome(place, command, number)


def _outcome(place: Path, command: Command, number: int) -> dict[str, Any]:
    shared = {} if command.shared is None else command.shared(f"{number:06d}")
    return {**contents(place), **{f"Hub: {name}": content for name, content in shared.items()}}
