"""One step of the memory of a non-saturating recurrent unit as Triton kernels; symbols as in ``_nru_loop``.

A step writes a sum of two outer products into the memory of each row. In torch that takes a dozen small kernels in each
direction; here it is one, with a row's memory in the registers of a program. Products with weights stay with torch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_memory.ops.backends.triton_common import INTERPRETED, current_device, refusal

TINY = tl.constexpr(1.2e-38)
"""The least normal number of float32."""

__all__ = ["INTERPRETED", "constants", "refusal", "write", "write_gradient"]


def constants(like: Tensor, scale: float, floor: float) -> Tensor:
    """What the kernels read: the signs of writing and erasing, the least norm, and its root.

    A tensor, because Triton takes numbers in float32; filled on the device, not copied to it.
    """
    numbers = (scale, -scale, floor, floor**0.5)
    return torch.cat([like.new_full((1,), number, dtype=torch.float64) for number in numbers])


def write(gates: Tensor, memory: Tensor, constants: Tensor, num_heads: int, relu_gains: bool) -> None:
    """Add what gains and directions (R, B, 2 k + 4 side) write to a memory (R, B, M), in place."""
    _launch(_write, memory, (gates, memory, constants), num_heads, relu_gains)


def write_gradient(
    gates: Tensor, grad_memory: Tensor, grad_gates: Tensor, constants: Tensor, num_heads: int, relu_gains: bool
) -> None:
    """Fill the gradient of the gates from that of the memory after the step; that of the memory before is the same."""
    _launch(_gradient, grad_memory, (gates, grad_memory, grad_gates, constants), num_heads, relu_gains)


def _launch(kernel: Any, memory: Tensor, tensors: tuple[Tensor, ...], heads: int, relu: bool) -> None:
    """One program per row. Gates are contiguous; rows of the memory lie apart by its stride."""
    side = (tensors[0].shape[-1] - 2 * heads) // 4
    rank = side // heads
    sizes = {name: triton.next_power_of_2(size) for name, size in (("K", heads), ("RANK", rank), ("SIDE", side))}
    warps = min(8, max(1, sizes["RANK"] * sizes["SIDE"] // 256))
    grid = (memory.shape[:-1].numel(),)
    with current_device(memory):
        kernel[grid](*tensors, memory.stride(-2), heads, rank, side, RELU=relu, num_warps=warps, **sizes)


@triton.jit
def _fifth(x):
    return x * x * x * x * tl.abs(x)


@triton.jit
def _five_norm(x, axis: tl.constexpr):
    """By way of the largest number: fifth powers of float32 end at 5e7^5."""
    largest = tl.max(tl.abs(x), axis=axis)
    scaled = x / tl.expand_dims(tl.maximum(largest, TINY), axis)
    return tl.exp(tl.log(tl.maximum(tl.sum(_fifth(scaled), axis=axis), TINY)) / 5) * largest


@triton.jit
def _divisors(norm_p, norm_q, constants):
    """The numbers a_i and b of ``_nru_loop``; no product of two norms is ever formed."""
    divisor_q = tl.maximum(norm_q, tl.load(constants + 3).to(norm_q.dtype))
    floor = tl.maximum(tl.load(constants + 2).to(norm_q.dtype) / divisor_q, TINY)
    return tl.maximum(norm_p * (norm_q / divisor_q), floor), divisor_q


@triton.jit
def _steepness(x, norm, axis: tl.constexpr):
    """p^3 |p| / |p|_5^5; a direction of zeros has a norm that does not move."""
    norm = tl.expand_dims(tl.maximum(norm, TINY), axis)
    scaled = x / norm
    return scaled * scaled * scaled * tl.abs(scaled) / norm


@triton.jit
def _write(
    gates,
    memory,
    constants,
    stride,
    heads,
    rank,
    side,
    K: tl.constexpr,
    RANK: tl.constexpr,
    SIDE: tl.constexpr,
    RELU: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i, j, s = tl.arange(0, K), tl.arange(0, RANK), tl.arange(0, SIDE)
    has_p = (i < heads)[:, None] & (j < rank)[None, :]
    has_square = (j < rank)[:, None] & (s < side)[None, :]
    gates += row * (2 * heads + 4 * side)
    memory += row * stride + j[:, None] * side + s[None, :]
    square = tl.load(memory, mask=has_square, other=0)
    for part in tl.static_range(2):
        gain = tl.load(gates + part * heads + i, mask=i < heads, other=0)
        p = tl.load(gates + 2 * heads + part * side + i[:, None] * rank + j[None, :], mask=has_p, other=0)
        q = tl.load(gates + 2 * heads + 2 * side + part * side + s, mask=s < side, other=0)
        norm_p, norm_q = _five_norm(p, 1), _five_norm(q, 0)
        divisor_p, divisor_q = _divisors(norm_p, norm_q, constants)
        if RELU:
            gain = tl.maximum(gain, 0)
        coefficient = tl.load(constants + part).to(gain.dtype) * gain
        u = tl.sum(coefficient[:, None] * (p / divisor_p[:, None]), axis=0)
        square += u[:, None] * (q / divisor_q)[None, :]
    tl.store(memory, square, mask=has_square)


@triton.jit
def _gradient(
    gates,
    grad_memory,
    grad_gates,
    constants,
    stride,
    heads,
    rank,
    side,
    K: tl.constexpr,
    RANK: tl.constexpr,
    SIDE: tl.constexpr,
    RELU: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i, j, s = tl.arange(0, K), tl.arange(0, RANK), tl.arange(0, SIDE)
    has_i, has_s = i < heads, s < side
    has_p = has_i[:, None] & (j < rank)[None, :]
    has_square = (j < rank)[:, None] & has_s[None, :]
    width = 2 * heads + 4 * side
    gates += row * width
    grad_gates += row * width
    square = tl.load(grad_memory + row * stride + j[:, None] * side + s[None, :], mask=has_square, other=0)
    for part in tl.static_range(2):
        at_gain = part * heads + i
        at_p = 2 * heads + part * side + i[:, None] * rank + j[None, :]
        at_q = 2 * heads + 2 * side + part * side + s
        gain = tl.load(gates + at_gain, mask=has_i, other=0)
        p = tl.load(gates + at_p, mask=has_p, other=0)
        q = tl.load(gates + at_q, mask=has_s, other=0)
        norm_p, norm_q = _five_norm(p, 1), _five_norm(q, 0)
        divisor_p, divisor_q = _divisors(norm_p, norm_q, constants)
        above_floor = norm_p * (norm_q / divisor_q) > tl.load(constants + 2).to(norm_q.dtype) / divisor_q
        into_gain = tl.load(constants + part).to(gain.dtype) + tl.zeros_like(gain)
        if RELU:
            into_gain = tl.where(gain > 0, into_gain, 0)
        coefficient = into_gain * gain
        scaled_p, scaled_q = p / divisor_p[:, None], q / divisor_q
        u = tl.sum(coefficient[:, None] * scaled_p, axis=0)
        grad_u = tl.sum(square * scaled_q[None, :], axis=1)
        grad_c = tl.sum(scaled_p * grad_u[None, :], axis=1)
        pulled = tl.where(above_floor, coefficient * grad_c, 0)
        tl.store(grad_gates + at_gain, grad_c * into_gain, mask=has_i)
        into_p = (coefficient / divisor_p)[:, None] * grad_u[None, :] - pulled[:, None] * _steepness(p, norm_p, 1)
        tl.store(grad_gates + at_p, into_p, mask=has_p)
        into_q = tl.sum(u[:, None] * square, axis=0) / divisor_q - tl.sum(pulled, axis=0) * _steepness(q, norm_q, 0)
        tl.store(grad_gates + at_q, into_q, mask=has_s)
