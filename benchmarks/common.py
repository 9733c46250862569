"""What every measurement needs: where it ran, medians of interleaved runs, and files that are never half written."""

import ctypes
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_memory.storage import write_text

PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "datasets",
    "accelerate",
    "numpy",
    "numba",
    "fla-core",
    "flash-linear-attention",
    "mamba-ssm",
    "causal-conv1d",
    "mambapy",
)


def environment(device: torch.device) -> dict[str, Any]:
    """Names and versions of everything that a number depends on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "card": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "versions": versions,
    }


def processor() -> str:
    """Name of the processor, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def interleaved(
    steps: Mapping[str, Callable[[], Any]],
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    patience: float = 10.0,
) -> dict[str, list[float]]:
    """Seconds of each step, taken in turn so that a machine that drifts treats all alike.

    Args:
        steps: What to time, by name.
        repeats: Timed runs of each step after one warm-up.
        clock: ``time.process_time`` where other work runs on the machine.
        patience: A step that takes more seconds than this is run a second time, as the first one may have compiled, and
            where that is as slow not again: it has that one time.
    """
    seconds: dict[str, list[float]] = {}
    for name, step in steps.items():
        slow = _seconds(step, clock) > patience and (again := _seconds(step, clock)) > patience
        seconds[name] = [again] if slow else []
    quick = [name for name in steps if not seconds[name]]
    for _ in range(repeats):
        for name in quick:
            seconds[name].append(_seconds(steps[name], clock))
    return seconds


def _seconds(step: Callable[[], Any], clock: Callable[[], float]) -> float:
    begin = clock()
    step()
    return clock() - begin


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Median, smallest and largest ratio of runs that were taken in turn; a single run is compared with all."""
    ratios = np.array(over) / np.array(under)
    return {"median": float(np.median(ratios)), "low": float(ratios.min()), "high": float(ratios.max())}


def peak_bytes(step: Callable[[], Any]) -> int | None:
    """Memory that a step holds at its peak above what was held before; None where the system does not tell.

    Linux counts the peak of the whole process and lets it be reset; freed memory is handed back first, so that it is
    not counted as held.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        step()
        return max(0, _resident("VmHWM") - before)
    except (OSError, AttributeError, StopIteration):
        return None


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write a report, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(report, indent=1) + "\n")
