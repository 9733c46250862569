"""The process in which a kernel is tried: it may hang, crash or be killed here, and the run goes on.

It reads one request from its input, and writes one line of JSON for each stage that it has reached:

    {"stage": "ready"}                                  torch does the work here, and how it does is known
    {"stage": "compiled"}                               the kernel has run once in every form that follows
    {"stage": "compared", "reason": ..., "error": ...}  its results, or why it is not used
    {"stage": "timed", "milliseconds": ..., "torch_milliseconds": ...}
    {"stage": "failed", "reason": ..., "for_good": ...} an error; whether it says something of the kernel

The input is held open by the process that waits: where it ends, so does this one.
"""

import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.cases import CASES, Case, Size, Tensors

SMALL = (Size(3, 131, 64), Size(2, 1, 64))
"""Sizes at which results are compared: a length that no chunk divides, and a single step."""

REPEATS = 5

Report = Callable[[dict[str, Any]], None]


def main() -> None:
    """Read a request, try the kernel, report."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print is no report
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # or torch itself would be off by 1e-3

    def report(stage: dict[str, Any]) -> None:
        out.write(json.dumps(stage) + "\n")
        out.flush()

    run_trial(request, report)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def run_trial(request: Mapping[str, Any], report: Report) -> None:
    """Try one kernel.

    Args:
        request: ``operation``, ``kernel`` and its ``module``, ``facts`` with the dtype as text, ``device``, and the
            ``size`` at which the times count.
        report: Is told each stage.
    """
    reached = "started"

    def tell(stage: str, **what: Any) -> None:
        nonlocal reached
        reached = stage
        report({"stage": stage, **what})

    try:
        _try_kernel(request, tell)
    except Exception as error:  # noqa: BLE001 (a kernel may raise anything, which is what is to be found out)
        text = next(iter(str(error).splitlines()), "")[:200]
        for_good = reached != "started" and not isinstance(error, (torch.OutOfMemoryError, MemoryError))
        report({"stage": "failed", "reason": f"it raises {type(error).__name__}: {text}", "for_good": for_good})


def _try_kernel(request: Mapping[str, Any], tell: Callable[..., None]) -> None:
    op, kernel = request["operation"], request["kernel"]
    dispatch.KERNELS[op, kernel] = request["module"]
    facts = {**request["facts"], "dtype": getattr(torch, request["facts"]["dtype"])}
    case, device = CASES[op], torch.device(request["device"])
    torch.manual_seed(0)
    trials = list(_trials(case, facts, device))
    large = _on(device, case.inputs(Size(*request["size"]), facts))
    expected = [passes(case, "torch", facts, wide(tensors), lengths) for tensors, lengths in trials]
    step = training_step(case, "torch", facts, large)
    wait_for(step, device)
    tell("ready")
    with dispatch.hold_to_kernel(kernel):
        for tensors, lengths in trials:
            passes(case, "auto", facts, tensors, lengths)
        own_step = training_step(case, "auto", facts, large)
        wait_for(own_step, device)
        tell("compiled")
        found = [passes(case, "auto", facts, tensors, lengths) for tensors, lengths in trials]
        name, error = worst(found, expected)
        limit = case.tolerance(facts["dtype"])
        reason = None if error <= limit else f"its {name} is off by {error:.1e}, more than {limit:g}"
        tell("compared", reason=reason, error=error)
        if reason is None:
            times = _alternating(own_step, step, device)
            tell("timed", milliseconds=times[0], torch_milliseconds=times[1])


def _trials(case: Case, facts: Mapping[str, Any], device: torch.device) -> Iterator[tuple[Tensors, Tensor | None]]:
    """Inputs and lengths: all rows whole, then rows of all, one and some steps, where the facts do not rule one out."""
    for size in SMALL:
        tensors = _on(device, case.inputs(size, facts))
        ragged = torch.linspace(size.length, 1, size.batch, device=device).long()
        if facts.get("has_lengths") is not True:
            yield tensors, None
        if case.has_lengths and facts.get("has_lengths") is not False:
            yield tensors, ragged


def wide(tensors: Tensors) -> Tensors:
    """The same numbers in at least float32."""
    return {name: tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for name, tensor in tensors.items()}


def passes(
    case: Case, backend: str, facts: Mapping[str, Any], tensors: Tensors, lengths: Tensor | None
) -> dict[str, Tensor]:
    """Results and the gradients of a fixed function of them, and the results without gradients, all by name."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    options = {"lengths": lengths} if case.has_lengths else {}
    wants = {"return_final_state": bool(facts.get("state_needs_grad", True))} if case.optional_state else {}
    results = real_steps(case.run(backend, leaves, facts, **options, **wants), lengths)
    loss = sum(_weighed(result) for result in results.values())
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    with torch.no_grad():
        plain = real_steps(case.run(backend, tensors, facts, **options), lengths)
    return {
        **{name: result.detach() for name, result in results.items()},
        **{f"{name} without gradients": result for name, result in plain.items()},
        **{f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)},
    }


def _weighed(result: Tensor) -> Tensor:
    """A sum in which every number has a weight of its own, of either sign."""
    steps = torch.arange(result.numel(), device=result.device, dtype=torch.float64)
    weights = torch.cos(steps).to(torch.promote_types(result.real.dtype, torch.float32)).view(result.shape)
    parts = [result.real, result.imag] if result.is_complex() else [result]
    return sum((part * weights * (1 + number)).sum() for number, part in enumerate(parts))


def real_steps(results: Tensors, lengths: Tensor | None) -> Tensors:
    """Results whose outputs are zero after each row's length, where they mean nothing."""
    if lengths is None:
        return results
    kept = {}
    for name, result in results.items():
        if name.startswith("output"):
            real = torch.arange(result.shape[1], device=result.device) < lengths[:, None]
            result = torch.where(real.view(*real.shape, *[1] * (result.dim() - 2)), result, 0)
        kept[name] = result
    return kept


def worst(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> tuple[str, float]:
    """The result or gradient that is farthest off, and how far: a share of its largest number."""
    errors = [
        (name, distance(actual[name], wanted[name]))
        for actual, wanted in zip(found, expected, strict=True)
        for name in wanted
    ]
    return max(errors, key=lambda pair: pair[1])


def distance(actual: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest number; infinite for other shapes, and where one is not finite."""
    if actual.shape != expected.shape or not bool(torch.isfinite(actual).all()):
        return math.inf
    kind = torch.complex128 if expected.is_complex() else torch.float64
    actual, expected = actual.to(kind), expected.to(kind)
    scale = float(expected.abs().max())
    return float((actual - expected).abs().max()) / (scale or 1.0)


def training_step(case: Case, backend: str, facts: Mapping[str, Any], tensors: Tensors) -> Callable[[], None]:
    """Forward and backward over the outputs."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    wants = {"return_final_state": bool(facts.get("state_needs_grad", True))} if case.optional_state else {}

    def step() -> None:
        results = case.run(backend, leaves, facts, **wants)
        loss = sum(result.abs().float().sum() for name, result in results.items() if name.startswith("output"))
        torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)

    return step


def _alternating(first: Callable[[], None], second: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Median milliseconds of both, taken in turns, so that what disturbs one disturbs the other."""
    pairs = [(wait_for(first, device), wait_for(second, device)) for _ in range(REPEATS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def wait_for(step: Callable[[], None], device: torch.device) -> float:
    """Milliseconds until the device is done with a step."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    synchronize(device)
    started = time.perf_counter()
    step()
    synchronize(device)
    return 1e3 * (time.perf_counter() - started)


def _on(device: torch.device, tensors: Tensors) -> Tensors:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
