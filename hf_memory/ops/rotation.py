"""Rotation of pairs of numbers by angles that the input sets."""

import math

import torch
from torch import Tensor


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
