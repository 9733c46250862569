"""Causal depthwise convolution over the last few tokens, with an activation.

    y_t[d] = act(b[d] + sum_{i=0}^{W-1} w[d, i] x_{t-W+1+i}[d])

It stands before the mixers of H3 (Fu et al., 2023), Hyena (Poli et al., 2023), Mamba (Gu and Dao, 2023) and DeltaNet
(Yang et al., 2024). Its state is the W - 1 inputs before the first one, which are given with the inputs.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from hf_memory.ops._recorded import must_be_recorded, recorded_gradients
from hf_memory.ops.backends.dispatch import in_function_transform, load_kernel, resolve_backend

ACTIVATIONS = (None, "silu")


def short_convolution_recurrent(
    window: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """The definition: one step after the other. Arguments and result are those of :func:`short_convolution`."""
    steps = []
    for t in range(window.shape[1] - weight.shape[1] + 1):
        y = (window[:, t : t + weight.shape[1]] * weight.T).sum(1)
        y = y if bias is None else y + bias
        steps.append(y * torch.sigmoid(y) if activation == "silu" else y)
    return torch.stack(steps, dim=1)


def short_convolution(
    window: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    backend: str = "auto",
) -> Tensor:
    """Convolve each channel with its filter.

    Args:
        window: The W - 1 inputs before the first step and the inputs x (B, W - 1 + T, D).
        weight: Filters w (D, W), the tap of the current input last, in the dtype of the window.
        bias: b (D,).
        activation: ``"silu"`` or None.
        backend: ``"auto"``, ``"torch"``, ``"numba"`` or ``"triton"``, that is, the CUDA kernel of causal-conv1d.

    Returns:
        Outputs y (B, T, D).

    Raises:
        ValueError: The activation or the backend is unknown.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, got {activation!r}")
    channels, width = weight.shape
    facts = {"device": window.device, "dtype": window.dtype, "width": width, "channels": channels}
    name = resolve_backend("short_convolution", backend, **facts)
    if name == "triton":  # whose package has a backward pass of its own
        return load_kernel("short_convolution", name).convolve(window, weight, bias, activation)
    if name == "torch" or in_function_transform():
        return _in_torch(window, weight, bias, activation)
    return _Convolution.apply(window, weight, bias, activation, name)


def _in_torch(window: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    output = F.conv1d(window.transpose(1, 2), weight.unsqueeze(1), bias, groups=len(weight)).transpose(1, 2)
    return F.silu(output) if activation == "silu" else output


class _Convolution(Function):
    """The convolution as one node of the graph."""

    @staticmethod
    def forward(
        ctx: Any, window: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, backend: str
    ) -> Tensor:
        ctx.activation, ctx.backend = activation, backend
        ctx.save_for_backward(window, weight, bias)
        return load_kernel("short_convolution", backend).convolve(window, weight, bias, activation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if must_be_recorded(grad):
            form = functools.partial(_in_torch, activation=ctx.activation)
            found = recorded_gradients(form, inputs, ctx.needs_input_grad, grad)
        else:
            kernel = load_kernel("short_convolution", ctx.backend)
            found = kernel.convolve_backward(grad, *inputs, ctx.activation)
        return *found, None, None
