"""Speed on a CPU, in ratios of interleaved runs, with the floors that the package holds itself to.

    python -m benchmarks.cpu --output results/cpu                      # all sections but the last nine
    python -m benchmarks.cpu --output results/cpu --sections modern modern_peers modern_decoding modern_memory
    python -m benchmarks.cpu --output results/cpu --sections sweeps recall
    python -m benchmarks.cpu --output results/cpu --smoke              # the same road in small

Sections:
    kernels    seconds of the first call of each compiled loop in a fresh process, with and without its cache
    data       tokens per second of every task; MQAR against the same law drawn row by row
    heads      a training step with logits at the labels only against one that computes all logits
    trainer    MemoryTrainer against a bare loop over the same batches
    products   cells in the size of a study's against the matrix products of their weights alone
    cells      GRU and RNN against torch.nn at several batches and widths
    operators  the delta rule, linear and Taylor attention against fla's plain torch forms, where fla is installed
    decoding   one token after a long context against one after a short one
    peers      mixers against the models of transformers and torch that a user would take instead
    probes     a probe of a public model at 1,024 tokens against bare passes over its prompts
    yardstick  every mixer against attention with RoPE, at 256 tokens and at 4,096
    growth     time and peak memory of a training step per token, from 256 tokens to 8,192
    modern     the modern mixers against attention in one interleaved run, at 256 tokens and at 4,096
    modern_peers     some of them against the layers of transformers in plain torch
    modern_decoding  one token after a long context against one after a short one
    modern_memory    peak memory for each token of a long row against a shorter one
    threads    two threads against one for single runs, and when two pay
    sweeps     cells per hour with one process, one per core, and runs stacked into one model
    steps      a step of each run of R1, alone and in stacks of runs with rows of their own
    studies    runs per hour of a cell of R7, R12, R14 and R17: by Trainer over torch, as in sweeps, and stacked
    recall     seconds until two layers of attention recall 0.99 on MQAR, 64 tokens and 4 pairs
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import environment, write_json
from benchmarks.cpu_data import data
from benchmarks.cpu_model import decoding, growth, heads, recall, trainer
from benchmarks.cpu_modern import modern, modern_decoding, modern_memory, modern_peers
from benchmarks.cpu_peers import cells, operators, peers, products, yardstick
from benchmarks.cpu_probes import probes
from benchmarks.cpu_sweeps import steps, studies, sweeps
from benchmarks.cpu_threads import threads
from benchmarks.rows import SMOKE, Row, Scale, skipped, table

FIRST_CALL = """
import time, torch
from hf_memory.ops.{module} import {op}
inputs = {inputs}
begin = time.perf_counter()
{op}(*inputs)[0].sum().backward()
print(time.perf_counter() - begin)
"""
KERNEL_INPUTS = {
    "diagonal_scan": "[torch.rand(2, 8, 4, requires_grad=True), torch.rand(2, 8, 4)]",
    "selective_scan": "[torch.rand(2, 8, 4, requires_grad=True), torch.rand(2, 8, 4), -torch.rand(4, 2), "
    "torch.rand(2, 8, 2), torch.rand(2, 8, 2)]",
    "wkv": "[torch.rand(2, 8, 4, requires_grad=True), torch.rand(2, 8, 4), -torch.rand(4), torch.rand(4)]",
}


def kernels(scale: Scale) -> Iterator[Row]:
    """Seconds of the first forward and backward pass in a fresh process: to compile, then to load from the cache."""
    for op, inputs in list(KERNEL_INPUTS.items())[: None if scale.length > 16 else 1]:
        code = FIRST_CALL.format(module=op, op=op, inputs=inputs)
        with tempfile.TemporaryDirectory() as folder:
            command, own = [sys.executable, "-c", code], {**os.environ, "NUMBA_CACHE_DIR": folder}
            runs = [subprocess.run(command, check=True, env=own, capture_output=True, text=True) for _ in range(2)]
        compiling, loading = (float(run.stdout) for run in runs)
        text = f"{compiling:.1f} s to compile, {loading:.2f} s from the cache"
        yield {"what": f"first call of {op}", "value": text, "compile_seconds": compiling, "load_seconds": loading}


SECTIONS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "kernels": kernels,
    "data": data,
    "heads": heads,
    "trainer": trainer,
    "products": products,
    "cells": cells,
    "operators": operators,
    "decoding": decoding,
    "peers": peers,
    "probes": probes,
    "yardstick": yardstick,
    "growth": growth,
    "modern": modern,
    "modern_peers": modern_peers,
    "modern_decoding": modern_decoding,
    "modern_memory": modern_memory,
    "threads": threads,
    "sweeps": sweeps,
    "steps": steps,
    "studies": studies,
    "recall": recall,
}


def run_section(name: str, scale: Scale, end: float) -> list[Row]:
    """The rows of a section, as many as fit before ``end``."""
    torch.manual_seed(0)
    rows: list[Row] = []
    for row in SECTIONS[name](scale):
        rows.append(row)
        if time.monotonic() > end:
            rows.append(skipped(f"the rest of {name}", TimeoutError("out of time")))
            break
    return rows


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the sections that were asked for, writing after each, and return the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for cpu.json and cpu.md")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS)[:-9])
    parser.add_argument("--repeats", type=int, help="interleaved runs of each step")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch threads")
    parser.add_argument("--budget", type=float, default=2400.0, help="seconds for all sections")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, for a test of the road")
    parser.add_argument(
        "--process-time", action="store_true", help="count processor time, on a machine with other work; one thread"
    )
    options = parser.parse_args(arguments)
    scale = SMOKE if options.smoke else Scale()
    if options.repeats:
        scale = dataclasses.replace(scale, repeats=options.repeats)
    if options.process_time:
        scale = dataclasses.replace(scale, clock=time.process_time)
    torch.set_num_threads(1 if options.process_time else options.threads)
    report: dict[str, Any] = {"environment": environment(torch.device("cpu")), "sections": {}}
    end, text = time.monotonic() + options.budget, []
    for name in options.sections:
        report["sections"][name] = run_section(name, scale, end)
        text += [f"## {name}", "", *table(report["sections"][name]), ""]
        print("\n".join(text[-len(report["sections"][name]) - 5 :]), flush=True)
        write_json(report, options.output / "cpu.json")
        (options.output / "cpu.md").write_text("\n".join(text))
    return report


if __name__ == "__main__":
    main()
