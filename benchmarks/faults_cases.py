"""Many small cases in a fork that is replaced where it dies or hangs; a case is known by the seed and its number."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.faults_common import Tally, kill, start, timed

PATIENCE = 60.0
"""Seconds without a finished case after which one counts as hung."""


class Nonsense(Exception):
    """What a model made of a case that it should not have."""


def pick(rng: np.random.Generator, values: Any) -> Any:
    """One of some values, as it is; numpy's own choice would turn it into one of numpy."""
    return values[int(rng.integers(len(values)))]


def run_cases(root: Path, what: str, number: int, seed: int, case: Callable[[np.random.Generator], str]) -> Tally:
    """Run cases in a fork, and start another where it dies or hangs."""
    place, done = root / "inputs", 0
    answers = root / f"{what}.jsonl"
    answers.unlink(missing_ok=True)
    with timed(Tally(what)) as tally:
        while done < number:
            first = done
            process = start(place, lambda first=first: _serve(answers, range(first, number), seed, case))
            why = _follow(process, answers)
            lines = answers.read_text().splitlines() if answers.exists() else []
            done = len(lines)
            if done < number:
                with answers.open("a") as file:
                    file.write(json.dumps([why, f"case {done}: {why}"]) + "\n")
                done += 1
        for line in answers.read_text().splitlines():
            outcome, fault = json.loads(line)
            tally.outcomes[outcome] += 1
            tally.faults += [fault] if fault else []
    return tally


def _follow(process: int, answers: Path) -> str:
    """Wait for a process that answers; returns why it ended before its time."""
    size, since = -1, time.monotonic()
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return f"died with {os.waitstatus_to_exitcode(status)}"
        now = answers.stat().st_size if answers.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            kill(process)
            os.waitpid(process, 0)
            return "hung"
        time.sleep(0.02)


def _serve(answers: Path, numbers: range, seed: int, case: Callable[[np.random.Generator], str]) -> None:
    """Do cases one after the other, and write an answer for each."""
    with answers.open("a", buffering=1) as file:
        for number in numbers:
            torch.manual_seed(number)
            try:
                answer = [case(np.random.default_rng([seed, number])), ""]
            except Exception as error:  # noqa: BLE001 (whatever is raised here is what is looked for)
                text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                answer = ["otherwise", f"case {number}: {text}"]
            file.write(json.dumps(answer) + "\n")
