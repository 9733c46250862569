"""The selective scan of mamba-ssm (2.3: ``mamba_ssm.ops.selective_scan_interface.selective_scan_fn``).

It starts from zeros, its last state has no gradient, it knows no decay but exp(dt A), and time is its last axis. Since
2026 the package installs without its compiled extension unless told otherwise, which the import of that finds out.
"""

import importlib

import torch
from torch import Tensor

from hf_memory.ops.backends.dispatch import in_function_transform
from hf_memory.ops.backends.hub_kernels import package_function

PACKAGE = "mamba-ssm"
selective_scan_fn, ORIGIN = package_function("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
if ORIGIN is None:
    importlib.import_module("selective_scan_cuda")

DEVICE = "cuda"
DTYPES = (torch.float32,)
MOST_STATES = 256


def refusal(
    *,
    device: torch.device,
    dtype: torch.dtype,
    state_size: int = 1,
    negative_eigenvalues: bool = False,
    has_initial_state: bool = False,
    state_needs_grad: bool = False,
) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    if device.type != DEVICE:
        return f"its kernel needs tensors on {DEVICE}, not on {device.type}"
    if dtype not in DTYPES:
        return f"its kernel does not take {dtype}"
    if state_size > MOST_STATES:
        return f"its kernel takes at most {MOST_STATES} states, not {state_size}"
    if negative_eigenvalues:
        return "its kernel has no negative eigenvalues"
    if has_initial_state:
        return "its kernel has no initial state"
    if state_needs_grad:
        return "its kernel gives the last state no gradient"
    return "its kernel has no rule for the transforms of torch.func" if in_function_transform() else None


def selective_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Run the kernel from a state of zeros.

    Args:
        x: Inputs (B, T, D).
        dt: Time steps (B, T, D).
        A: Rates (D, N).
        B: Input weights (B, T, N).
        C: Output weights (B, T, N).

    Returns:
        Outputs (B, T, D) and the last state (B, D, N), which has no gradient.
    """
    x, dt, B, C = (tensor.transpose(1, 2).contiguous() for tensor in (x, dt, B, C))
    y, state = selective_scan_fn(x, dt, A.contiguous(), B, C, return_last_state=True)
    return y.transpose(1, 2), state
