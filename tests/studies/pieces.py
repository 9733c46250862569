"""Pieces of work for a pool, which a worker imports."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hf_memory.storage import claim


def work(piece: tuple[str, Any], beat: Callable[[int], None]) -> Any:
    """Do what the first word of a piece says."""
    kind, value = piece
    return KINDS[kind](value, beat)


def double(value: int, beat: Callable[[int], None]) -> int:
    return 2 * value


def fail(text: str, beat: Callable[[int], None]) -> None:
    raise ValueError(text)


def die(value: None, beat: Callable[[int], None]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def walk(steps: int, beat: Callable[[int], None]) -> int:
    for step in range(1, steps + 1):
        time.sleep(0.02)
        beat(step)
    return steps


def process(value: None, beat: Callable[[int], None]) -> dict[str, Any]:
    return {"pid": os.getpid(), "threads": torch.get_num_threads(), "environment": dict(os.environ)}


def hold(path: str, beat: Callable[[int], None]) -> None:
    """Claim a file for ever, and leave the process id beside it."""
    with claim(path) as mine:
        assert mine
        (Path(path).parent / "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(0.02)
            beat(1)


KINDS = {"double": double, "raise": fail, "die": die, "walk": walk, "process": process, "hold": hold}
