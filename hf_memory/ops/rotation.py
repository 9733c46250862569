"""Rotation of pairs of numbers, by angles that positions set or the input."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hf_memory.ops._recorded import must_be_recorded
from hf_memory.ops.backends.dispatch import in_function_transform, load_kernel, resolve_backend


def rotate(vectors: Tensor, positions: Tensor, theta: float, backend: str = "auto") -> Tensor:
    """Rotary position embedding in the half-split layout (Su et al., 2021, equation 34).

    Args:
        vectors: (B, T, H, K). The first 2 * floor(K / 2) channels are rotated.
        positions: (B, T).
        theta: Base of the frequencies.
        backend: ``"auto"``, ``"torch"`` or ``"numba"``.

    Returns:
        (B, T, H, K), computed in at least float32 and returned in the dtype of the input.

    Raises:
        ValueError: The backend is unknown.
    """
    size = vectors.shape[-1] // 2 * 2
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    exponent = torch.arange(0, size, 2, device=positions.device, dtype=torch.int64).to(torch.float32) / max(size, 1)
    angle = positions.unsqueeze(-1).float() * (1.0 / theta**exponent)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    name = resolve_backend("rotation", backend, device=vectors.device, dtype=vectors.dtype)
    if name == "torch" or in_function_transform():
        return _turned_halves(vectors.to(dtype), cos, sin).to(vectors.dtype)
    return _Rotation.apply(vectors, cos, sin, name)


def _turned_halves(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + M) of vectors (B, T, H, K) by angles whose cosines and sines are (B, T, M)."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    first, second, rest = vectors.split((half, half, vectors.shape[-1] - 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class _Rotation(Function):
    """Turns as one node of the graph; the way back is to turn the gradient by the negative angles."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, cos: Tensor, sin: Tensor, backend: str) -> Tensor:
        ctx.backend = backend
        ctx.save_for_backward(cos, sin)
        return load_kernel("rotation", backend).turn(vectors, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        turn = _turned_halves if must_be_recorded(grad) else load_kernel("rotation", ctx.backend).turn
        return turn(grad, cos, -sin), None, None, None


def running_angles(turns: Tensor) -> Tensor:
    """Sums of angles (B, T, ...) up to each step, less whole turns, which would cost digits."""
    exact = torch.float32 if turns.device.type == "mps" else torch.float64  # in which sums keep their digits
    return torch.remainder(turns.to(exact).cumsum(1), 2 * math.pi).to(turns.dtype)


def turn_pairs(vectors: Tensor, angles: Tensor) -> Tensor:
    """Turn the first pairs (2i, 2i + 1) of vectors (..., N) by angles (..., M), M <= N / 2; the other numbers stay."""
    size = 2 * angles.shape[-1]
    first, second = vectors[..., :size].unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    return torch.cat((turned, vectors[..., size:]), dim=-1)
