"""What the package's own Triton kernels share: where they run.

With ``TRITON_INTERPRET=1`` in the environment they run on the CPU, one program after the other.
"""

import contextlib
import os
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Read once, as Triton reads it where a kernel is decorated."""


def refusal(
    *,
    device: torch.device,
    dtype: torch.dtype,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
    **_: Any,
) -> str | None:
    """Say why the kernels cannot run on such tensors, or nothing where they can."""
    wanted = "cpu" if INTERPRETED else "cuda"
    if device.type != wanted:
        return f"its kernels need tensors on {wanted}, not on {device.type}"
    return None if dtype in dtypes else f"its kernels do not take {dtype}"


def current_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Launch on the device of a tensor, which need not be the current one."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else contextlib.nullcontext()
