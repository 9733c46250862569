"""What the sections of the GPU benchmark share: sizes, the time that is left, timing, errors."""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes of one run.

    Attributes:
        width: Width of a layer.
        lengths: Tokens of a row, in training steps.
        tokens: Tokens of a training step.
        odd_length: Tokens of a row where results are compared.
        replica_counts: Models side by side.
        repeats: Timed runs of a step.
        patience: Seconds of two runs after which a step is not run again.
        cell_steps: Steps of the run that trains for recall.
        cell_batch: Rows of such a step.
        context: Tokens read before one is decoded.
        streams: Rows that are decoded together.
        reach: The longest row, and the most rows, that are tried.
        data_rows: Rows that a loader gives.
    """

    width: int
    lengths: tuple[int, ...]
    tokens: int
    odd_length: int
    replica_counts: tuple[int, ...]
    repeats: int
    patience: float
    cell_steps: int
    cell_batch: int
    context: int
    streams: int
    reach: tuple[int, int]
    data_rows: int


FULL = Scale(
    width=512,
    lengths=(512, 2048, 8192),
    tokens=16_384,
    odd_length=67,
    replica_counts=(1, 8, 64),
    repeats=10,
    patience=6.0,
    cell_steps=2_000,
    cell_batch=512,
    context=2048,
    streams=64,
    reach=(2**20, 2**14),
    data_rows=20_000,
)
SMOKE = Scale(
    width=16,
    lengths=(16, 32),
    tokens=64,
    odd_length=11,
    replica_counts=(1, 2),
    repeats=1,
    patience=60.0,
    cell_steps=2,
    cell_batch=8,
    context=16,
    streams=2,
    reach=(64, 4),
    data_rows=64,
)


ROOT = Path(__file__).resolve().parents[1]


class Clock:
    """What is left of the time that the whole command, or a section of it, may take."""

    def __init__(self, budget: float):
        self.end = time.monotonic() + budget

    def left(self) -> float:
        """Seconds left."""
        return self.end - time.monotonic()

    def part(self, share: float) -> "Clock":
        """A clock over a share of what is left."""
        return Clock(share * max(0.0, self.left()))


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(step: Callable[[], None], device: torch.device, scale: Scale) -> float:
    """Median milliseconds of a step after warm-up; a slow step is taken once."""
    begin = time.perf_counter()
    step()
    synchronize(device)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    step()
    synchronize(device)
    second = time.perf_counter() - begin
    if first + second > scale.patience:
        return second * 1e3
    times = []
    for _ in range(scale.repeats):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            step()
            times.append((time.perf_counter() - begin) * 1e3)
    return float(np.median(times))


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm; infinite for values that are not finite."""
    wide = torch.complex128 if actual.is_complex() else torch.float64
    actual, expected = (tensor.detach().cpu().to(wide) for tensor in (actual, expected))
    if not bool(torch.isfinite(actual).all()):
        return math.inf
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-12))


def first_line(error: Exception) -> str:
    """Type and first line of an error, for a table."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
