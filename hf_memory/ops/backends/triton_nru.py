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

__all__ = ["INTERPRETED", "constants", "refusal", "write", "write_gradient"]


def constants(like: Tensor, scale: float, floor: float) -> Tensor:
    """What the kernels read: the signs of writing and erasing, and the least fifth power of a norm.

    A tensor, because Triton takes numbers in float32.
    """
    return torch.tensor([scale, -scale, floor**5], dtype=torch.float64, device=like.device)


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
    floor5 = tl.load(constants + 2)
    for part in tl.static_range(2):
        gain = tl.load(gates + part * heads + i, mask=i < heads, other=0)
        p = tl.load(gates + 2 * heads + part * side + i[:, None] * rank + j[None, :], mask=has_p, other=0)
        q = tl.load(gates + 2 * heads + 2 * side + part * side + s, mask=s < side, other=0)
        # Fifth powers in float64: those of float32 end at 5e7^5.
        product = tl.sum(_fifth(p.to(tl.float64)), axis=1) * tl.sum(_fifth(q.to(tl.float64)), axis=0)
        norm = tl.exp(tl.log(tl.maximum(product, floor5)) / 5)
        if RELU:
            gain = tl.maximum(gain, 0)
        coefficient = (tl.load(constants + part) / norm).to(gain.dtype) * gain
        u = tl.sum(coefficient[:, None] * p, axis=0)
        square += u[:, None] * q[None, :]
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
    floor5 = tl.load(constants + 2)
    for part in tl.static_range(2):
        at_gain = part * heads + i
        at_p = 2 * heads + part * side + i[:, None] * rank + j[None, :]
        at_q = 2 * heads + 2 * side + part * side + s
        gain = tl.load(gates + at_gain, mask=has_i, other=0)
        p = tl.load(gates + at_p, mask=has_p, other=0)
        q = tl.load(gates + at_q, mask=has_s, other=0)
        wide_p, wide_q = p.to(tl.float64), q.to(tl.float64)
        fifth_p, fifth_q = tl.sum(_fifth(wide_p), axis=1), tl.sum(_fifth(wide_q), axis=0)
        norm = tl.exp(tl.log(tl.maximum(fifth_p * fifth_q, floor5)) / 5)
        factor = (tl.load(constants + part) / norm).to(gain.dtype)
        into_gain = factor
        if RELU:
            into_gain = tl.where(gain > 0, factor, 0)
            gain = tl.maximum(gain, 0)
        coefficient = factor * gain
        u = tl.sum(coefficient[:, None] * p, axis=0)
        grad_u = tl.sum(square * q[None, :], axis=1)
        grad_c = tl.sum(p * grad_u[None, :], axis=1)
        pulled = tl.where(fifth_p * fifth_q > floor5, coefficient * grad_c, 0)
        # A direction of zeros has a norm that does not move.
        rho_p = wide_p * wide_p * wide_p * tl.abs(wide_p) / tl.where(fifth_p > 0, fifth_p, 1)[:, None]
        rho_q = wide_q * wide_q * wide_q * tl.abs(wide_q) / tl.where(fifth_q > 0, fifth_q, 1)
        tl.store(grad_gates + at_gain, grad_c * into_gain, mask=has_i)
        into_p = coefficient[:, None] * grad_u[None, :] - pulled[:, None] * rho_p.to(p.dtype)
        tl.store(grad_gates + at_p, into_p, mask=has_p)
        into_q = tl.sum(u[:, None] * square, axis=0) - tl.sum(pulled, axis=0) * rho_q.to(q.dtype)
        tl.store(grad_gates + at_q, into_q, mask=has_s)
