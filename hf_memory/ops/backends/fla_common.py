"""What the adapters of flash-linear-attention share: where its kernels can run at all."""

from typing import Any

import torch
from torch import Tensor

from hf_memory.ops.backends.dispatch import in_function_transform

PACKAGE = "fla-core"
"""The distribution that holds ``fla.ops``."""

DEVICE = "cuda"


def refusal_of_package(device: torch.device, dtype: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> str | None:
    """Say why no kernel of the package can run, or nothing where one may.

    The kernels that multiply blocks round float32 to TF32, three digits, so they are not used for it.
    """
    if device.type != DEVICE:
        return f"its kernels need tensors on {DEVICE}, not on {device.type}"
    if dtype not in dtypes:
        return f"its kernel is used for {' and '.join(str(d).removeprefix('torch.') for d in dtypes)}, not for {dtype}"
    if in_function_transform():
        return "its kernels have no rule for the transforms of torch.func"
    return None


def refusal_of_heads(
    device: torch.device,
    dtype: torch.dtype,
    dtypes: tuple[torch.dtype, ...],
    key_dim: int,
    most_key_dim: int | None = None,
) -> str | None:
    """The same for kernels whose heads have keys of an even number of dimensions, at most so many."""
    reason = refusal_of_package(device, dtype, dtypes)
    if reason is None and (key_dim % 2 or (most_key_dim is not None and key_dim > most_key_dim)):
        most = "" if most_key_dim is None else f"at most {most_key_dim} "
        reason = f"its keys have an even number of {most}dimensions, not {key_dim}"
    return reason


def even_columns(value: Tensor, state: Tensor | None) -> tuple[Tensor, Any]:
    """Values, and the state in float32, with a column of zeros more where their number is odd.

    Of half precision the kernels take an even number of columns.
    """
    odd = (0, value.shape[-1] % 2)
    start = None if state is None else torch.nn.functional.pad(state.float(), odd)
    return torch.nn.functional.pad(value, odd), start
