"""What every measurement needs: where it ran, medians of interleaved runs, and files that are never half written."""

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


def interleaved(steps: Mapping[str, Callable[[], Any]], repeats: int = 5) -> dict[str, list[float]]:
    """Seconds of each step, taken in turn so that a machine that drifts treats all alike; one warm-up each."""
    for step in steps.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Median, smallest and largest ratio of runs that were taken in turn."""
    ratios = np.array(over) / np.array(under)
    return {"median": float(np.median(ratios)), "low": float(ratios.min()), "high": float(ratios.max())}


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write a report, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(report, indent=1) + "\n")
