"""Loops over time of the selective scan as Triton kernels.

A program holds one row and a few channels with all of their states in registers and walks over time; exponential, state
and contraction are fused, so that nothing of the size (B, T, N, D) is ever written. The forward pass keeps the state
before every ``BLOCK`` steps. The backward pass rebuilds the states of one block at a time into a scratch that stays in
the cache, and walks back through them.

Shapes: x, dt, y (B, T, D), A and states (B, N, D), B, C (B, T, N), starts (B, blocks, N, D). With ``scale`` and
``offset``, a = scale exp(dt A) + offset.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_memory.ops.backends.triton_common import INTERPRETED, current_device, refusal

__all__ = ["INTERPRETED", "gradient", "refusal", "scan"]

BLOCK = 16
TILE = 256
"""States of one program: 8 in each thread of a warp."""


def scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, negative: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, final state, and the state before each block."""
    rows, steps, width = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    final = torch.empty(initial_state.shape, dtype=x.dtype, device=x.device)
    starts = x.new_empty(rows, triton.cdiv(steps, BLOCK), *A.shape[1:])
    tensors = [tensor.contiguous() for tensor in (x, dt, A, B, C, initial_state)]
    grid, sizes = _sizes(x, A)
    with current_device(x):
        _scan[grid](*tensors, y, final, starts, steps, width, *_affine(negative), BLOCK=BLOCK, num_warps=1, **sizes)
    return y, final, starts


def gradient(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    starts: Tensor,
    grad_y: Tensor,
    grad_state: Tensor,
    negative: bool,
) -> tuple[Tensor, ...]:
    """Gradients of x, dt, A (one per row), B, C and the initial state."""
    grid, sizes = _sizes(x, A)
    steps, width = x.shape[1:]
    grads = [torch.empty(tensor.shape, dtype=x.dtype, device=x.device) for tensor in (x, dt, A)]
    # B and C are shared by all channels: each program has sums of its own, which are added up in a fixed order.
    parts = [tensor.new_empty(grid[1], *tensor.shape) for tensor in (B, C)]
    grad_initial = torch.empty(grad_state.shape, dtype=x.dtype, device=x.device)
    scratch = x.new_empty(grid[0] * grid[1], BLOCK, sizes["CHANNELS"] * sizes["STATES"])
    tensors = [tensor.contiguous() for tensor in (x, dt, A, B, C, starts, grad_y, grad_state)]
    outputs = [*grads, *parts, grad_initial, scratch]
    with current_device(x):
        _gradient[grid](*tensors, *outputs, steps, width, *_affine(negative), BLOCK=BLOCK, num_warps=1, **sizes)
    return *grads, *(part.sum(0) for part in parts), grad_initial


def _affine(negative: bool) -> tuple[float, float]:
    """The numbers scale and offset."""
    return (2.0, -1.0) if negative else (1.0, 0.0)


def _sizes(x: Tensor, A: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs by rows and channels, and the sizes of one program's tile."""
    states = triton.next_power_of_2(A.shape[1])
    channels = min(max(1, TILE // states), triton.next_power_of_2(x.shape[2]))
    grid = (x.shape[0], triton.cdiv(x.shape[2], channels))
    return grid, {"size": A.shape[1], "STATES": states, "CHANNELS": channels}


@triton.jit
def _scan(
    x, dt, A, B, C, initial, y, final, starts, steps, width, scale, offset, size,
    BLOCK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    has_d, has_n = d < width, n < size
    tile = n[None, :] * width + d[:, None]
    has_tile = has_d[:, None] & has_n[None, :]
    x += row * steps * width + d
    dt += row * steps * width + d
    y += row * steps * width + d
    B += row * steps * size + n
    C += row * steps * size + n
    starts += row * tl.cdiv(steps, BLOCK) * size * width + tile
    rates = tl.load(A + row * size * width + tile, mask=has_tile, other=0)
    state = tl.load(initial + row * size * width + tile, mask=has_tile, other=0)
    x_t = tl.load(x, mask=has_d, other=0)
    dt_t = tl.load(dt, mask=has_d, other=0)
    B_t = tl.load(B, mask=has_n, other=0)
    C_t = tl.load(C, mask=has_n, other=0)
    for t in range(steps):
        if t % BLOCK == 0:
            tl.store(starts, state, mask=has_tile)
            starts += size * width
        more = t + 1 < steps
        x += width
        dt += width
        B += size
        C += size
        next_x = tl.load(x, mask=has_d & more, other=0)
        next_dt = tl.load(dt, mask=has_d & more, other=0)
        next_B = tl.load(B, mask=has_n & more, other=0)
        next_C = tl.load(C, mask=has_n & more, other=0)
        decay = tl.exp(dt_t[:, None] * rates)
        state = (scale * decay + offset) * state + (dt_t * x_t)[:, None] * B_t[None, :]
        tl.store(y, tl.sum(state * C_t[None, :], axis=1), mask=has_d)
        y += width
        x_t = next_x
        dt_t = next_dt
        B_t = next_B
        C_t = next_C
    tl.store(final + row * size * width + tile, state, mask=has_tile)


@triton.jit
def _gradient(
    x, dt, A, B, C, starts, grad_y, grad_state, grad_x, grad_dt, grad_A, grad_B, grad_C, grad_initial, scratch,
    steps, width, scale, offset, size, BLOCK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    has_d, has_n = d < width, n < size
    tile = n[None, :] * width + d[:, None]
    has_tile = has_d[:, None] & has_n[None, :]
    wide = row * steps * width + d
    narrow = row * steps * size + n
    own = chunk * tl.num_programs(0) * steps * size + narrow
    blocks = tl.cdiv(steps, BLOCK)
    starts += row * blocks * size * width + tile
    kept = tl.arange(0, CHANNELS)[:, None] * STATES + n[None, :]
    scratch += (row * tl.num_programs(1) + chunk) * BLOCK * CHANNELS * STATES + kept
    rates = tl.load(A + row * size * width + tile, mask=has_tile, other=0)
    arriving = tl.load(grad_state + row * size * width + tile, mask=has_tile, other=0)
    into_rates = tl.zeros_like(rates)
    for done in range(blocks):
        block = blocks - 1 - done
        first = block * BLOCK
        count = tl.minimum(steps - first, BLOCK)
        state = tl.load(starts + block * size * width, mask=has_tile, other=0)
        for i in range(count):
            tl.store(scratch + i * CHANNELS * STATES, state)  # before step i
            x_t = tl.load(x + wide + (first + i) * width, mask=has_d, other=0)
            dt_t = tl.load(dt + wide + (first + i) * width, mask=has_d, other=0)
            B_t = tl.load(B + narrow + (first + i) * size, mask=has_n, other=0)
            state = (scale * tl.exp(dt_t[:, None] * rates) + offset) * state + (dt_t * x_t)[:, None] * B_t[None, :]
        tl.debug_barrier()  # the threads that read the scratch need not be those that wrote it
        for back in range(count):
            i = count - 1 - back
            t = first + i
            x_t = tl.load(x + wide + t * width, mask=has_d, other=0)
            dt_t = tl.load(dt + wide + t * width, mask=has_d, other=0)
            dy_t = tl.load(grad_y + wide + t * width, mask=has_d, other=0)
            B_t = tl.load(B + narrow + t * size, mask=has_n, other=0)
            C_t = tl.load(C + narrow + t * size, mask=has_n, other=0)
            before = tl.load(scratch + i * CHANNELS * STATES)
            total = arriving + dy_t[:, None] * C_t[None, :]
            factor = scale * tl.exp(dt_t[:, None] * rates)
            exponent = factor * before * total
            into_drive = tl.sum(total * B_t[None, :], axis=1)
            tl.store(grad_x + wide + t * width, into_drive * dt_t, mask=has_d)
            into_dt = tl.sum(exponent * rates, axis=1) + into_drive * x_t
            tl.store(grad_dt + wide + t * width, into_dt, mask=has_d)
            tl.store(grad_B + own + t * size, tl.sum(total * (dt_t * x_t)[:, None], axis=0), mask=has_n)
            tl.store(grad_C + own + t * size, tl.sum(state * dy_t[:, None], axis=0), mask=has_n)
            into_rates += exponent * dt_t[:, None]
            arriving = (factor + offset) * total
            state = before
        tl.debug_barrier()  # the next block writes where this one still reads
    tl.store(grad_A + row * size * width + tile, into_rates, mask=has_tile)
    tl.store(grad_initial + row * size * width + tile, arriving, mask=has_tile)
