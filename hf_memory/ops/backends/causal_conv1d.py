"""The kernel of causal-conv1d (1.7: ``causal_conv1d.causal_conv1d_fn``).

It takes widths 2 to 4, applies the activation itself, and starts from zeros. Our tensors have their channels last, and
for that layout it wants a multiple of 8 channels. The inputs before the first step are convolved with the rest, and the
outputs there dropped, so that they have a gradient as well.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.dispatch import in_function_transform
from hf_memory.ops.backends.hub_kernels import package_function

PACKAGE = "causal-conv1d"
causal_conv1d_fn, ORIGIN = package_function("causal_conv1d", "causal_conv1d_fn")

DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS = (2, 3, 4)
MULTIPLE = 8


def refusal(*, device: torch.device, dtype: torch.dtype, width: int, channels: int) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    if device.type != DEVICE:
        return f"its kernel needs tensors on {DEVICE}, not on {device.type}"
    if dtype not in DTYPES:
        return f"its kernel does not take {dtype}"
    if width not in WIDTHS:
        return f"its kernel takes widths {WIDTHS[0]} to {WIDTHS[-1]}, not {width}"
    if channels % MULTIPLE:
        return f"its kernel takes a multiple of {MULTIPLE} channels, not {channels}"
    return "its kernel has no rule for the transforms of torch.func" if in_function_transform() else None


def convolve(window: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Run the kernel; arguments and result are those of :func:`hf_memory.ops.short_convolution.short_convolution`."""
    output = causal_conv1d_fn(window.contiguous().transpose(1, 2), weight, bias, activation=activation)
    return output.transpose(1, 2)[:, weight.shape[1] - 1 :]
