"""Loops over time of the selective scan, compiled by numba for the CPU.

One item is a row of the batch and ``LANES`` channels. Exponential, state and contraction are fused, the channels are
the innermost, vectorised axis, and nothing of the size (B, T, N, D) is ever stored: the forward pass keeps the state
before every ``BLOCK`` steps, and the backward pass rebuilds the states of one block at a time in the cache of a core.

Shapes: x, dt, y (B, T, D), A (B or 1, N, D), B, C (B, T, N), states (B, N, D), starts (B, blocks, N, D).

What an inner loop touches lies in few arrays, at fixed distances from each other: the compiler checks every two arrays
of which one is written to for overlap, and gives up on vectors where the checks are many.
"""

import numpy as np
import torch
from torch import Tensor

from hf_memory.ops.backends.numba_common import (
    LANES,
    LN_2,
    LOG2_E,
    array,
    compiled,
    exp2,
    load,
    per_row,
    refusal,
    run,
    store,
)

__all__ = ["gradient", "refusal", "scan"]

BLOCK = 16


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
    work = x.numel() * A.shape[1]
    run(_scan, rows * -(-width // LANES), work, *inputs, per_row(A) * LOG2_E, *_affine(negative), *outputs)
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
    chunks = -(-x.shape[2] // LANES)
    grads = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (x, dt, A)]
    # B and C are shared by all channels: each item has sums of its own, which are added up in a fixed order.
    parts = [tensor.new_empty(chunks, *tensor.shape) for tensor in (B, C)]
    grad_initial = torch.empty_like(grad_state, memory_format=torch.contiguous_format)
    inputs = [array(tensor) for tensor in (x, dt, B, C, starts, grad_y, grad_state)]
    outputs = [tensor.numpy() for tensor in (*grads, *parts, grad_initial)]
    work = 2 * x.numel() * A.shape[1]
    run(_gradient, len(x) * chunks, work, *inputs, per_row(A) * LOG2_E, *_affine(negative), *outputs)
    return *grads, *(part.sum(0) for part in parts), grad_initial


def _affine(negative: bool) -> tuple[float, float]:
    """The numbers p and q of a = p exp(dt A) + q."""
    return (2.0, -1.0) if negative else (1.0, 0.0)


@compiled
def _scan(start, stop, x, dt, B, C, initial_state, A, scale, offset, y, final, starts):
    _, steps, width = x.shape
    size, chunks = A.shape[1], (width + LANES - 1) // LANES
    scale, offset = x.dtype.type(scale), x.dtype.type(offset)
    table, step = np.zeros((size, 2 * LANES), x.dtype), np.zeros((1, 3 * LANES), x.dtype)
    for item in range(start, stop):
        row, low = item // chunks, item % chunks * LANES
        load(A[row if A.shape[0] > 1 else 0], low, table, 0)
        load(initial_state[row], low, table, 1)
        for t in range(steps):
            if t % BLOCK == 0:
                store(table, 1, starts[row, t // BLOCK], low)
            load(x[row, t : t + 1], low, step, 0)
            load(dt[row, t : t + 1], low, step, 1)
            _step(step[0], table, B[row, t], C[row, t], scale, offset)
            store(step, 2, y[row, t : t + 1], low)
        store(table, 1, final[row], low)


@compiled
def _step(step, table, B, C, scale, offset):
    """Move the states by one step. Rows: ``step`` x, dt, y; ``table`` rates and states."""
    for c in range(LANES):
        step[2 * LANES + c] = 0
    for n in range(table.shape[0]):
        row, b, weight = table[n], B[n], C[n]
        for c in range(LANES):
            time = step[LANES + c]
            state = (scale * exp2(time * row[c]) + offset) * row[LANES + c] + time * step[c] * b
            row[LANES + c] = state
            step[2 * LANES + c] += weight * state


@compiled
def _gradient(
    start,
    stop,
    x,
    dt,
    B,
    C,
    starts,
    grad_y,
    grad_state,
    A,
    scale,
    offset,
    grad_x,
    grad_dt,
    grad_A,
    grad_B,
    grad_C,
    grad_initial,
):
    _, steps, width = x.shape
    size, chunks = A.shape[1], (width + LANES - 1) // LANES
    scale, offset = x.dtype.type(scale), x.dtype.type(offset)
    table, block = np.zeros((size, 3 * LANES), x.dtype), np.zeros((BLOCK, 5 * LANES), x.dtype)
    history = np.zeros((BLOCK + 1, size, 2 * LANES), x.dtype)
    for item in range(start, stop):
        row, chunk = item // chunks, item % chunks
        low = chunk * LANES
        load(A[row if A.shape[0] > 1 else 0], low, table, 0)
        load(grad_state[row], low, table, 1)
        table[:, 2 * LANES :] = 0
        for index in range(starts.shape[1] - 1, -1, -1):
            span = slice(index * BLOCK, min(index * BLOCK + BLOCK, steps))
            load(starts[row, index], low, history[0], 0)
            load(x[row, span], low, block, 0)
            load(dt[row, span], low, block, 1)
            load(grad_y[row, span], low, block, 2)
            for i in range(span.stop - span.start):
                _rebuild(block[i], table, B[row, span.start + i], scale, offset, history[i], history[i + 1])
            for i in range(span.stop - span.start - 1, -1, -1):
                t = span.start + i
                sums = grad_B[chunk, row, t], grad_C[chunk, row, t]
                _step_back(block[i], table, B[row, t], C[row, t], scale, offset, history[i], history[i + 1], *sums)
            store(block, 3, grad_x[row, span], low)
            store(block, 4, grad_dt[row, span], low)
        store(table, 2, grad_A[row], low)
        store(table, 1, grad_initial[row], low)


@compiled
def _rebuild(step, table, B, scale, offset, history, after):
    """Write the exponential of a step and the state after it."""
    for n in range(table.shape[0]):
        row, old, new, b = table[n], history[n], after[n], B[n]
        for c in range(LANES):
            time = step[LANES + c]
            decay = exp2(time * row[c])
            old[LANES + c] = decay
            new[c] = (scale * decay + offset) * old[c] + time * step[c] * b


@compiled(sums=True)
def _step_back(step, table, B, C, scale, offset, history, after, into_B, into_C):
    """Write a step's gradients, add to those of the rates, and move those of the states to the step before.

    Rows: ``step`` x, dt, and the gradients of y, x and dt; ``table`` rates, and the gradients of states and rates;
    ``history`` the states before the step and its exponentials; ``after`` the states after it.
    """
    for c in range(LANES):
        step[3 * LANES + c] = 0
        step[4 * LANES + c] = 0
    for n in range(table.shape[0]):
        row, old, new, b, weight = table[n], history[n], after[n], B[n], C[n]
        into_b, into_weight = b * 0, b * 0
        for c in range(LANES):
            time, arriving = step[LANES + c], step[2 * LANES + c]
            total = row[LANES + c] + weight * arriving
            factor = scale * old[LANES + c]
            exponent = factor * old[c] * total
            into_b += total * time * step[c]
            into_weight += new[c] * arriving
            step[3 * LANES + c] += b * total
            step[4 * LANES + c] += exponent * row[c]
            row[LANES + c] = (factor + offset) * total
            row[2 * LANES + c] += exponent * time
        into_B[n], into_C[n] = into_b, into_weight
    ln_2 = step.dtype.type(LN_2)
    for c in range(LANES):
        into_drive = step[3 * LANES + c]
        step[3 * LANES + c] = into_drive * step[LANES + c]
        step[4 * LANES + c] = step[4 * LANES + c] * ln_2 + into_drive * step[c]
