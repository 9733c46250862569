"""What the sections of the GPU benchmark share: sizes, the time that is left, timing, errors."""

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes of one run."""

    width: int
    lengths: tuple[int, ...]
    tokens: int
    odd_length: int
    replica_counts: tuple[int, ...]
    repeats: int
    patience: float
    cell_steps: int
    cell_batch: int


FULL = Scale(512, (512, 2048, 8192), 16_384, 67, (1, 8, 64), 10, 6.0, 2_000, 512)
SMOKE = Scale(16, (16, 32), 64, 11, (1, 2), 1, 1.0, 2, 8)


class Clock:
    """What is left of the time that the whole command may take."""

    def __init__(self, budget: float):
        self.end = time.monotonic() + budget

    def left(self) -> float:
        """Seconds left."""
        return self.end - time.monotonic()


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
