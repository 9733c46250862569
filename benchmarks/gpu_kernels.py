"""The proof table: every kernel behind an operation against the float64 definition and the time of torch.

The rows are measured in a process of their own, which prints one line for each. Where a kernel ends that process, or
holds it up, its row says so and the next process goes on after it.
"""

import argparse
import itertools
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu_common import FULL, ROOT, SMOKE, Clock, Scale, first_line, relative, timed
from hf_memory.ops.backends.cases import CASES, HEAD, Case, Size, Tensors
from hf_memory.ops.backends.dispatch import AUTO, KERNELS, hold_to_kernel, refusals

# Name of a row: operation, and facts other than those under which it is usually tried.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "real scan": ("diagonal_scan", {}),
    "positive scan": ("diagonal_scan", {"forget_gate": True}),
    "complex scan": ("diagonal_scan", {"dtype": torch.complex64}),
    "selective scan": ("selective_scan", {"has_initial_state": True, "state_needs_grad": True}),
    "selective scan from zeros": ("selective_scan", {}),
    "delta rule": ("delta_rule", {}),
    "gated delta rule": ("generalized_delta_rule", {}),
    "delta rule, decay of each key": ("generalized_delta_rule", {"decay": "key"}),
    "delta rule, two steps a token": ("generalized_delta_rule", {"steps": 2}),
    "rule of RWKV-7": ("generalized_delta_rule", {"has_beta": False, "decay": "key"}),
    "linear attention": ("linear_attention", {}),
    "gated linear attention": ("gated_linear_attention", {}),
    "gated linear attention, read before": ("gated_linear_attention", {"read": "before"}),
    "Taylor attention": ("taylor_attention", {}),
    "forgetting attention": ("forgetting_attention", {}),
    "wkv": ("wkv", {}),
    "short convolution": ("short_convolution", {}),
    "IDS4 walk": ("ids4", {}),
    "NRU step": ("nru", {}),
}

MODULE = ["-m", "benchmarks.gpu_kernels"]
"""What a process runs."""

SLOWEST = 60.0
"""Seconds after which a kernel holds up the process."""

Row = dict[str, Any]


def case_of(name: str) -> tuple[str, Case, dict[str, Any]]:
    """The operation of a row, how it is tried, and under which facts."""
    op, changes = ROWS[name]
    return op, CASES[op], {**CASES[op].facts, **changes}


def pairs() -> list[tuple[str, str]]:
    """Every row with torch, then with each kernel of its operation."""
    return [
        (name, backend)
        for name, (op, _) in ROWS.items()
        for backend in ("torch", *(kernel for other, kernel in KERNELS if other == op and kernel not in AUTO))
    ]


def kernel_rows(device: torch.device, scale: Scale, clock: Clock, apart: bool = True) -> list[Row]:
    """One row for each operation and kernel: error and milliseconds, or why there are none.

    Args:
        device: Where they run.
        scale: Sizes.
        clock: The time of this section.
        apart: Whether in processes of their own, which a kernel for a GPU needs.
    """
    rows: list[Row] = [] if apart else list(measured(device, scale, 0, clock))
    wanted, end = pairs(), "out of time"
    while len(rows) < len(wanted) and clock.left() > 0:
        end = _measure_apart(len(rows), device, scale, clock, rows)
        if not rows:
            break  # it does not even begin
        if len(rows) < len(wanted) and clock.left() > 0:
            rows.append(_row(*wanted[len(rows)], skipped=end))
    left = end if not rows else "out of time"
    rows += [_row(*pair, skipped=left) for pair in wanted[len(rows) :]]
    return [_with_ratio(row, rows) for row in rows]


def _row(name: str, backend: str, **what: Any) -> Row:
    return {"kernel": name, "backend": backend, **what}


def _with_ratio(row: Row, rows: list[Row]) -> Row:
    """How much faster than torch a kernel is."""
    torch_row = next(other for other in rows if other["kernel"] == row["kernel"])
    if row is torch_row or "milliseconds" not in row or "milliseconds" not in torch_row:
        return row
    return {**row, "speed": torch_row["milliseconds"] / row["milliseconds"]}


def _measure_apart(start: int, device: torch.device, scale: Scale, clock: Clock, rows: list[Row]) -> str:
    """Add the rows from ``start`` on that a process measures; returns how it ended."""
    command = [sys.executable, *MODULE, str(start), device.type, str(clock.left())]
    command += ["--smoke"] * (scale.width == SMOKE.width)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_into, args=(lines, process.stdout), daemon=True)
    reader.start()
    try:
        while True:
            try:
                line = lines.get(timeout=max(0.1, min(SLOWEST, clock.left())))
            except queue.Empty:
                return f"it holds its process up for {SLOWEST:g} s" if clock.left() > 0 else "out of time"
            if line is None:
                return f"its process ended with code {process.wait(10)}"
            rows.append(json.loads(line))
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        if process.stdout is not None and not reader.is_alive():
            process.stdout.close()


def _read_into(lines: "queue.SimpleQueue[str | None]", stream: Any) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def measured(device: torch.device, scale: Scale, start: int, clock: Clock) -> Iterator[Row]:
    """The rows from ``start`` on, measured here."""
    for name, backend in pairs()[start:]:
        if clock.left() < 0:
            return
        try:
            yield _row(name, backend, **measure(name, backend, device, scale))
        except Exception as error:  # noqa: BLE001 - one kernel must not hide the others; the table says what failed
            yield _row(name, backend, skipped=first_line(error))


def measure(name: str, backend: str, device: torch.device, scale: Scale) -> Row:
    """Error on an odd length with a state, and the time of a training step on a long one."""
    op, case, facts = case_of(name)
    if backend != "torch":
        reason = refusals(op, device=device, **facts)[backend]
        if reason:
            return {"skipped": reason}
    torch.manual_seed(0)
    small = case.inputs(Size(3, scale.odd_length, HEAD), facts)
    length = scale.lengths[len(scale.lengths) // 2]
    large = on(device, case.inputs(Size(max(1, scale.tokens // length), length, scale.width), facts))
    wants = {"return_final_state": bool(facts.get("state_needs_grad", True))} if case.optional_state else {}

    def run(tensors: Tensors) -> Tensors:
        if backend == "torch":
            return case.run("torch", tensors, facts, **wants)
        with hold_to_kernel(backend):
            return case.run("auto", tensors, facts, **wants)

    actual = passes(run, on(device, small))
    expected = passes(lambda wide: _asked_for(case.define(wide, facts), wants), in_double(small))
    return {
        "error": max(relative(actual[part], expected[part]) for part in expected),
        "milliseconds": timed(training_step(run, large), device, scale),
    }


def _asked_for(results: Tensors, wants: dict[str, bool]) -> Tensors:
    """Results without the final state where nobody asks for it."""
    left_out = {"final state"} if wants.get("return_final_state") is False else set()
    return {name: result for name, result in results.items() if name not in left_out}


def on(device: torch.device, tensors: Tensors) -> Tensors:
    """The same on a device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def in_double(tensors: Tensors) -> Tensors:
    """The same in double precision."""
    kinds = {True: torch.complex128, False: torch.float64}
    return {name: tensor.to(kinds[tensor.is_complex()]) for name, tensor in tensors.items()}


def passes(function: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
    """Results and the gradient of a fixed function of them at every input, by name."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    results = {
        name: result.cdouble() if result.is_complex() else result.double() for name, result in function(leaves).items()
    }
    loss = sum((result.abs() ** 2).sum() / result.numel() for result in results.values())
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {**results, **{f"gradient of {name}": grad for name, grad in zip(leaves, gradients, strict=True)}}


def training_step(function: Callable[[Tensors], Tensors], tensors: Tensors) -> Callable[[], None]:
    """Forward and backward over outputs."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}

    def step() -> None:
        outputs = [result for name, result in function(leaves).items() if name.startswith("output")]
        loss = sum(output.abs().float().square().mean() for output in outputs)
        torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)

    return step


def kernel_table(rows: list[Row]) -> list[str]:
    """Lines of the table of kernels."""
    lines = ["| operation | backend | ms | faster than torch by | error | note |", "|---|---|---|---|---|---|"]
    for name, group in itertools.groupby(rows, lambda row: row["kernel"]):
        for row in group:
            texts = [
                "-" if row.get(key) is None else pattern.format(row[key])
                for key, pattern in (("milliseconds", "{:.3f}"), ("speed", "{:.2f}"), ("error", "{:.1e}"))
            ]
            label = name if row["backend"] == "torch" else ""
            lines.append(f"| {label} | {row['backend']} | {' | '.join(texts)} | {row.get('skipped', '')} |")
    return lines


def main() -> None:
    """Print the rows, one a line."""
    parser = argparse.ArgumentParser(description="Rows of the table of kernels, from one on.")
    parser.add_argument("start", type=int)
    parser.add_argument("device")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # or torch itself would be off by 1e-3
    clock, scale = Clock(arguments.seconds), SMOKE if arguments.smoke else FULL
    for row in measured(torch.device(arguments.device), scale, arguments.start, clock):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
