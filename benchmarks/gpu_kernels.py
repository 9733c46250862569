"""The kernels behind operations: right against the float64 definition, and fast beside the torch form, in one run."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_common import Clock, Scale, first_line, relative, timed
from hf_memory.ops.backends.dispatch import KERNELS, load_kernel
from hf_memory.ops.delta_rule import delta_rule, delta_rule_recurrent
from hf_memory.ops.diagonal_scan import diagonal_scan, diagonal_scan_recurrent
from hf_memory.ops.ids4 import ids4_state, ids4_state_recurrent
from hf_memory.ops.linear_attention import linear_attention, linear_attention_recurrent
from hf_memory.ops.nru import nru, nru_recurrent
from hf_memory.ops.selective_scan import selective_scan, selective_scan_recurrent
from hf_memory.ops.short_convolution import short_convolution, short_convolution_recurrent
from hf_memory.ops.taylor_attention import taylor_attention, taylor_attention_recurrent
from hf_memory.ops.wkv import wkv, wkv_recurrent

Tensors = list[Tensor]
HEAD = 64
"""Numbers per head."""


def scan_inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensors:
    """Decays just below one in size, real of both signs or complex, inputs and a state."""
    decay = torch.randn(batch, length, width, dtype=dtype)
    decay = decay / decay.abs() * (1 - 0.1 * torch.rand(batch, length, width))
    return [decay, torch.randn(batch, length, width, dtype=dtype), torch.randn(batch, width, dtype=dtype)]


def attention_inputs(batch: int, length: int, width: int, dtype: torch.dtype, key_dim: int = HEAD) -> Tensors:
    """Unit queries and keys, and values."""
    heads = max(1, width // HEAD)
    shape = (batch, length, heads)
    query, key = (nn.functional.normalize(torch.randn(*shape, key_dim), dim=-1) for _ in range(2))
    return [tensor.to(dtype) for tensor in (query, key, torch.randn(*shape, HEAD))]


def delta_inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensors:
    """Those of attention, strengths of writes and a state."""
    tensors = attention_inputs(batch, length, width, dtype)
    heads = tensors[0].shape[2]
    return [*tensors, torch.rand(batch, length, heads).to(dtype), torch.randn(batch, heads, HEAD, HEAD)]


def wkv_inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensors:
    """Keys, values, log decays and bonuses."""
    key, value = torch.randn(2, batch, length, width).to(dtype).unbind(0)
    return [key, value, -torch.rand(width), torch.randn(width)]


def selective_inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensors:
    """Inputs, time steps, rates, weights of 16 states and a state."""
    x, B, C = (torch.randn(batch, length, size, dtype=dtype) for size in (width, 16, 16))
    rates = -torch.arange(1, 17, dtype=dtype).repeat(width, 1)
    return [x, 0.1 * torch.rand(batch, length, width, dtype=dtype), rates, B, C, torch.randn(batch, width, 16)]


def nru_inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensors:
    """Inputs and small weights of a net with 64 numbers in its state and 64 in its memory, with 4 heads."""
    shapes = [(batch, length, 64), (64, 64), (64,), (64, 128), (72, 128), (72,)]
    return [torch.randn(*shapes[0], dtype=dtype), *(0.1 * torch.randn(*shape, dtype=dtype) for shape in shapes[1:])]


def ids4_inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensors:
    """Inputs of 16 channels, what is added to a state of 64, small transitions and a state."""
    shapes = [(batch, length, 16), (batch, length, 64), (16, 64, 64)]
    tensors = [torch.randn(*shape, dtype=dtype) for shape in shapes]
    return [*tensors[:2], tensors[2] / 64, torch.randn(batch, 64, dtype=dtype)]


def joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A cell whose state is a pair, as one tensor."""

    def run(*tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        output, state = function(*tensors, **options)
        return output, torch.cat(state, dim=-1)

    return run


def convolution_inputs(batch: int, length: int, width: int, dtype: torch.dtype) -> Tensors:
    """Inputs with the three before them, filters of width 4 and biases."""
    shapes = [(batch, length + 3, width), (width, 4), (width,)]
    return [torch.randn(*shape).to(dtype) for shape in shapes]


def with_last_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A short convolution with SiLU, and the inputs that are its state."""

    def run(window: Tensor, weight: Tensor, bias: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        return function(window, weight, bias, "silu", **options), window[:, -3:]

    return run


def positive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Linear attention over positive features, with the normaliser."""

    def run(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        return function(query.exp(), key.exp(), value, normalize=True, **options)

    return run


# Name of a row: operation, function, definition, inputs, dtype.
CASES: dict[str, tuple[str, Callable[..., Any], Callable[..., Any], Callable[..., Tensors], torch.dtype]] = {
    "real scan": ("diagonal_scan", diagonal_scan, diagonal_scan_recurrent, scan_inputs, torch.float32),
    "complex scan": ("diagonal_scan", diagonal_scan, diagonal_scan_recurrent, scan_inputs, torch.complex64),
    "selective scan": ("selective_scan", selective_scan, selective_scan_recurrent, selective_inputs, torch.float32),
    "delta rule": ("delta_rule", delta_rule, delta_rule_recurrent, delta_inputs, torch.bfloat16),
    "linear attention": (
        "linear_attention",
        positive(linear_attention),
        positive(linear_attention_recurrent),
        attention_inputs,
        torch.bfloat16,
    ),
    "Taylor attention": (
        "taylor_attention",
        taylor_attention,
        taylor_attention_recurrent,
        lambda *sizes: attention_inputs(*sizes, key_dim=16),
        torch.bfloat16,
    ),
    "wkv": ("wkv", wkv, wkv_recurrent, wkv_inputs, torch.float32),
    "short convolution": (
        "short_convolution",
        with_last_inputs(short_convolution),
        with_last_inputs(short_convolution_recurrent),
        convolution_inputs,
        torch.bfloat16,
    ),
    "IDS4 walk": ("ids4", ids4_state, ids4_state_recurrent, ids4_inputs, torch.float32),
    "NRU step": ("nru", joined(nru), joined(nru_recurrent), nru_inputs, torch.float32),
}


def kernel_rows(device: torch.device, scale: Scale, clock: Clock) -> list[dict[str, Any]]:
    """One row per case: errors and milliseconds of torch and of the kernel, or why there is none; then the peers."""
    rows = []
    for name in CASES:
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
    op, function, definition, make, dtype = CASES[name]
    row: dict[str, Any] = {"why": why_not(op, device, dtype)}
    torch.manual_seed(0)
    small = make(3, scale.odd_length, HEAD, dtype)
    wide = [tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) for tensor in small]
    expected = passes(definition, wide)
    length = scale.lengths[len(scale.lengths) // 2]
    large = [tensor.to(device) for tensor in make(max(1, scale.tokens // length), length, scale.width, dtype)]
    backends = ("torch",) if row["why"] else ("torch", "triton")
    for backend in backends:
        actual = passes(lambda *args, backend=backend: function(*args, backend=backend), [t.to(device) for t in small])
        row[f"{backend} error"] = max(relative(*pair) for pair in zip(actual, expected, strict=True))
        step = training_step(lambda *args, backend=backend: function(*args, backend=backend), large)
        row[f"{backend} milliseconds"] = timed(step, device, scale)
    return row


def why_not(op: str, device: torch.device, dtype: torch.dtype) -> str:
    """Why the kernel of an operation does not run here; nothing where it does."""
    if (op, "triton") not in KERNELS:
        return "there is no kernel"
    try:
        return load_kernel(op, "triton").refusal(device=device, dtype=dtype) or ""
    except ImportError as error:
        return first_line(error)


def passes(function: Callable[..., Any], tensors: Tensors) -> Tensors:
    """Outputs, final state and the gradient of a fixed function of both at every input."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    results = [result.cdouble() if result.is_complex() else result.double() for result in function(*leaves)]
    loss = sum((result.abs() ** 2).sum() / result.numel() for result in results)
    return [*results, *torch.autograd.grad(loss, leaves)]


def training_step(function: Callable[..., Any], tensors: Tensors) -> Callable[[], None]:
    """Forward and backward over outputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]

    def step() -> None:
        output, _ = function(*leaves)
        torch.autograd.grad(output.abs().float().square().mean(), leaves, allow_unused=True)

    return step


def hgrn_scan(device: torch.device, scale: Scale) -> dict[str, Any]:
    """The scan of flash-linear-attention's HGRN, which takes positive decays and no gradient for the state."""
    scan = importlib.import_module(".".join(("fla", "ops", "hgrn"))).chunk_hgrn
    length = scale.lengths[len(scale.lengths) // 2]
    _, inputs, _ = scan_inputs(max(1, scale.tokens // length), length, scale.width, torch.float32)
    log_decay = -torch.rand_like(inputs)
    step = training_step(scan, [inputs.to(device), log_decay.to(device)])
    return {"peer": "fla chunk_hgrn", "peer milliseconds": timed(step, device, scale)}


def mamba_ssm_scan(device: torch.device, scale: Scale) -> dict[str, Any]:
    """The scan of mamba-ssm, which starts from zeros and gives its last state no gradient."""
    length = scale.lengths[len(scale.lengths) // 2]
    *inputs, _ = selective_inputs(max(1, scale.tokens // length), length, scale.width, torch.float32)
    scan = load_kernel("selective_scan", "mamba_ssm").selective_scan
    step = training_step(scan, [tensor.to(device) for tensor in inputs])
    return {"peer": "mamba-ssm selective_scan_fn", "peer milliseconds": timed(step, device, scale)}


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
