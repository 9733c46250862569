"""What the adapters of flash-linear-attention share: where its kernels can run at all."""

import torch

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
