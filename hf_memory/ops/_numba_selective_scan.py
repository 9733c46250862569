"""Loops over time of the selective scan, compiled by numba for the CPU.

One item is a row of the batch and ``LANES`` channels. Exponential, state and contraction are fused, the channels are
the innermost, vectorised axis, and nothing of the size (B, T, N, D) is ever stored: the forward pass keeps the state
before every ``BLOCK`` steps, and the backward pass rebuilds the states of one block at a time in the cache of a core.

Shapes: x, dt, y (B, T, D), A (B or 1, N, D), B, C (B, T, N), states (B, N, D), starts (B, blocks, N, D).
"""

import numpy as np
import torch
from torch import Tensor

from hf_memory.ops._numba_common import LOG2_E, array, compiled, exp2, per_row, refusal, run

__all__ = ["gradient", "refusal", "scan"]

LANES, BLOCK = 64, 16


def scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, negative: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, final state, and the state before each block."""
    rows, steps, width = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    final = torch.empty_like(initial_state, memory_format=torch.contiguous_format)
    starts = x.new_empty(rows, -(-steps // BLOCK), *A.shape[1:])
    inputs = [array(tensor) for tensor in (x, dt, B, C, initial_state)]
    outputs = [tensor.numpy() for tensor in (y, final, starts)]
    run(_scan, rows * -(-width // LANES), x.numel() * A.shape[1], *inputs, per_row(A) * LOG2_E, negative, *outputs)
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
    width, chunks = x.shape[2], -(-x.shape[2] // LANES)
    grads = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (x, dt, A)]
    # B and C are shared by all channels: each item has sums of its own, which are added up in a fixed order.
    parts = [tensor.new_empty(chunks, *tensor.shape) for tensor in (B, C)]
    grad_initial = torch.empty_like(grad_state, memory_format=torch.contiguous_format)
    inputs = [array(tensor) for tensor in (x, dt, B, C, starts, grad_y, grad_state)]
    outputs = [tensor.numpy() for tensor in (*grads, *parts, grad_initial)]
    work = 2 * x.numel() * A.shape[1]
    run(_gradient, len(x) * -(-width // LANES), work, *inputs, per_row(A) * LOG2_E, negative, *outputs)
    grads[2] *= 1.0
    return *grads, *(part.sum(0) for part in parts), grad_initial


@compiled
def _scan(start, stop, x, dt, B, C, initial_state, A, negative, y, final, starts):
    _, steps, width = x.shape
    size, chunks = A.shape[1], (width + LANES - 1) // LANES
    number = x.dtype.type
    scale, offset = number(2 if negative else 1), number(-1 if negative else 0)
    rates, state = np.zeros((size, LANES), x.dtype), np.zeros((size, LANES), x.dtype)
    time, drive, total = np.zeros(LANES, x.dtype), np.zeros(LANES, x.dtype), np.zeros(LANES, x.dtype)
    for item in range(start, stop):
        row, low = item // chunks, item % chunks * LANES
        lanes = min(LANES, width - low)
        rates[:, :lanes] = A[row if A.shape[0] > 1 else 0, :, low : low + lanes]
        state[:, :lanes] = initial_state[row, :, low : low + lanes]
        for t in range(steps):
            if t % BLOCK == 0:
                starts[row, t // BLOCK, :, low : low + lanes] = state[:, :lanes]
            for c in range(lanes):
                time[c] = dt[row, t, low + c]
                drive[c] = time[c] * x[row, t, low + c]
            total[:] = 0
            for n in range(size):
                b, c_n = B[row, t, n], C[row, t, n]
                rate, h = rates[n], state[n]
                for c in range(LANES):
                    factor = scale * exp2(time[c] * rate[c]) + offset
                    h[c] = factor * h[c] + drive[c] * b
                    total[c] += c_n * h[c]
            for c in range(lanes):
                y[row, t, low + c] = total[c]
        final[row, :, low : low + lanes] = state[:, :lanes]
