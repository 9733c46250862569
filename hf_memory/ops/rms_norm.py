"""Root mean square norm over the last axis, with a gain for each channel.

    y = w x / sqrt(mean(x^2) + eps)                                  (Zhang and Sennrich, 2019, equation 4)

With r = 1 / sqrt(mean(x^2) + eps), g the gradient that arrives, and N channels,

    dx = r w g - r^3 x sum(w g x) / N,   dw = sum over rows of r g x.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from hf_memory.ops._recorded import must_be_recorded, recorded_gradients
from hf_memory.ops.backends.dispatch import in_function_transform, load_kernel, resolve_backend


def rms_norm_recurrent(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """The definition, row by row; arguments and result are those of :func:`rms_norm`."""
    rows = [row / torch.sqrt(row.square().sum() / row.numel() + eps) for row in x.reshape(-1, x.shape[-1])]
    normed = torch.stack(rows).view(x.shape)
    return normed if weight is None else normed * weight


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5, backend: str = "auto") -> Tensor:
    """Normalise the last axis.

    Args:
        x: Inputs (..., N).
        weight: Gains w (N,), in the dtype of the inputs; ones if None.
        eps: Added to the mean square.
        backend: ``"auto"``, ``"torch"`` or ``"numba"``.

    Returns:
        Outputs y (..., N) in the dtype of the inputs, computed in at least float32.

    Raises:
        ValueError: The backend is unknown.
    """
    name = resolve_backend("rms_norm", backend, device=x.device, dtype=x.dtype)
    if name == "torch" or in_function_transform():
        return _in_torch(x, weight, eps)
    return _RMSNorm.apply(x, weight, eps, name)


class _RMSNorm(Function):
    """The norm as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, backend: str) -> Tensor:
        ctx.eps, ctx.backend = eps, backend
        ctx.save_for_backward(x, weight)
        return load_kernel("rms_norm", backend).norm(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if must_be_recorded(grad):
            found = recorded_gradients(lambda *own: _in_torch(*own, ctx.eps), (x, weight), ctx.needs_input_grad, grad)
        else:
            found = load_kernel("rms_norm", ctx.backend).norm_backward(grad, x, weight, ctx.eps)
        return *found, None, None


def _in_torch(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)
