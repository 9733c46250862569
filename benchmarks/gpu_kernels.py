"""The kernels behind operations: right against the float64 definition, and fast beside the torch form, in one run."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_common import Clock, Scale, first_line, relative, timed
from hf_memory.ops.backends.cases import CASES, HEAD, Case, Size, Tensors
from hf_memory.ops.backends.dispatch import KERNELS, load_kernel

# Name of a row: operation, and facts other than those under which it is usually tried.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "real scan": ("diagonal_scan", {}),
    "complex scan": ("diagonal_scan", {"dtype": torch.complex64}),
    "selective scan": ("selective_scan", {"has_initial_state": True, "state_needs_grad": True}),
    "delta rule": ("delta_rule", {}),
    "linear attention": ("linear_attention", {}),
    "Taylor attention": ("taylor_attention", {}),
    "wkv": ("wkv", {}),
    "short convolution": ("short_convolution", {}),
    "IDS4 walk": ("ids4", {}),
    "NRU step": ("nru", {}),
}


def case_of(name: str) -> tuple[str, Case, dict[str, Any]]:
    """The operation of a row, how it is tried, and under which facts."""
    op, changes = ROWS[name]
    return op, CASES[op], {**CASES[op].facts, **changes}


def kernel_rows(device: torch.device, scale: Scale, clock: Clock) -> list[dict[str, Any]]:
    """One row per case: errors and milliseconds of torch and of the kernel, or why there is none; then the peers."""
    rows = []
    for name in ROWS:
        if clock.left() < 20:
            rows.append({"kernel": name, "skipped": "out of time"})
            continue
        try:
            rows.append({"kernel": name, **measure_case(name, device, scale)})
        except Exception as error:  # noqa: BLE001 - one kernel must not hide the others; the table says what failed
            rows.append({"kernel": name, "skipped": first_line(error)})
    for name, peer in {"real scan": hgrn_scan, "selective scan": mamba_ssm_scan}.items():
        try:
            rows.append({"kernel": name, **peer(device, scale)})
        except Exception as error:  # noqa: BLE001 - a package may be missing or fail in any way of its own
            rows.append({"kernel": name, "peer": peer.__name__, "skipped": first_line(error)})
    return rows


def measure_case(name: str, device: torch.device, scale: Scale) -> dict[str, Any]:
    """Errors of both backends on an odd length with a state, and their times on a long one."""
    op, case, facts = case_of(name)
    row: dict[str, Any] = {"why": why_not(op, device, facts)}
    torch.manual_seed(0)
    small = case.inputs(Size(3, scale.odd_length, HEAD), facts)
    expected = passes(lambda wide: case.define(wide, facts), in_double(small))
    length = scale.lengths[len(scale.lengths) // 2]
    large = on(device, case.inputs(Size(max(1, scale.tokens // length), length, scale.width), facts))
    for backend in ("torch",) if row["why"] else ("torch", "triton"):
        actual = passes(lambda own, backend=backend: case.run(backend, own, facts), on(device, small))
        row[f"{backend} error"] = max(relative(actual[name], expected[name]) for name in expected)
        step = training_step(lambda own, backend=backend: case.run(backend, own, facts), large)
        row[f"{backend} milliseconds"] = timed(step, device, scale)
    return row


def on(device: torch.device, tensors: Tensors) -> Tensors:
    """The same on a device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def in_double(tensors: Tensors) -> Tensors:
    """The same in double precision."""
    kinds = {True: torch.complex128, False: torch.float64}
    return {name: tensor.to(kinds[tensor.is_complex()]) for name, tensor in tensors.items()}


def why_not(op: str, device: torch.device, facts: dict[str, Any]) -> str:
    """Why the kernel of an operation does not run here; nothing where it does."""
    if (op, "triton") not in KERNELS:
        return "there is no kernel"
    try:
        return load_kernel(op, "triton").refusal(device=device, **facts) or ""
    except ImportError as error:
        return first_line(error)


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


def hgrn_scan(device: torch.device, scale: Scale) -> dict[str, Any]:
    """The scan of flash-linear-attention's HGRN, which takes positive decays and no gradient for the state."""
    scan = importlib.import_module(".".join(("fla", "ops", "hgrn"))).chunk_hgrn
    inputs = _peer_inputs("real scan", device, scale)["inputs"]
    step = training_step(lambda own: {"output": scan(own["x"], own["g"])[0]}, {"x": inputs, "g": -inputs.abs()})
    return {"peer": "fla chunk_hgrn", "peer milliseconds": timed(step, device, scale)}


def mamba_ssm_scan(device: torch.device, scale: Scale) -> dict[str, Any]:
    """The scan of mamba-ssm, which starts from zeros and gives its last state no gradient."""
    inputs = _peer_inputs("selective scan", device, scale)
    del inputs["initial_state"]
    scan = load_kernel("selective_scan", "mamba_ssm").selective_scan
    step = training_step(lambda own: {"output": scan(**own)[0]}, inputs)
    return {"peer": "mamba-ssm selective_scan_fn", "peer milliseconds": timed(step, device, scale)}


def _peer_inputs(name: str, device: torch.device, scale: Scale) -> Tensors:
    """Inputs of a row at the size whose time counts."""
    _, case, facts = case_of(name)
    length = scale.lengths[len(scale.lengths) // 2]
    return on(device, case.inputs(Size(max(1, scale.tokens // length), length, scale.width), facts))


def kernel_table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of the table of kernels."""
    lines = ["| operation | torch ms | kernel ms | torch error | kernel error | note |", "|---|---|---|---|---|---|"]
    for row in rows:
        times = [row.get("torch milliseconds"), row.get("triton milliseconds", row.get("peer milliseconds"))]
        errors = [row.get("torch error"), row.get("triton error")]
        cells = ["-" if value is None else f"{value:.3f}" for value in times]
        cells += ["-" if value is None else f"{value:.1e}" for value in errors]
        note = row.get("skipped") or row.get("why") or row.get("peer") or ""
        lines.append(f"| {row['kernel']} | {' | '.join(cells)} | {note} |")
    return lines
