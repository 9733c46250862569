"""Loops over time of the selective scan, compiled by numba for the CPU.

One item is a row of the batch and ``LANES`` channels. Exponential, state and contraction are fused, the channels are
the innermost, vectorised axis, and nothing of the size (B, T, N, D) is ever stored: the forward pass keeps the state
before every ``BLOCK`` steps, and the backward pass rebuilds the states of one block at a time in the cache of a core.

Shapes: x, dt, y (B, T, D), A (B or 1, N, D), B, C (B, T, N), states (B, N, D), starts (B, blocks, N, D).

The inner loops are short on purpose: one that writes to many arrays is not vectorised, as too many of them would have
to be checked for overlap.
"""

import torch
from torch import Tensor

from hf_memory.ops._numba_common import LANES, LN_2, LOG2_E, array, compiled, exp2, load, per_row, refusal, run, store
from hf_memory.ops._numba_common import zeros_like as zeros

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
    rates, state = zeros(x, size), zeros(x, size)
    time, drive, total = zeros(x, 3)
    for item in range(start, stop):
        row, low = item // chunks, item % chunks * LANES
        load(A[row if A.shape[0] > 1 else 0], low, rates)
        load(initial_state[row], low, state)
        for t in range(steps):
            if t % BLOCK == 0:
                store(state, starts[row, t // BLOCK], low)
            for c in range(min(LANES, width - low)):
                time[c] = dt[row, t, low + c]
                drive[c] = time[c] * x[row, t, low + c]
            total[:] = 0
            for n in range(size):
                b, weight = B[row, t, n], C[row, t, n]
                rate, h = rates[n], state[n]
                for c in range(LANES):
                    h[c] = (scale * exp2(time[c] * rate[c]) + offset) * h[c] + drive[c] * b
                    total[c] += weight * h[c]
            for c in range(min(LANES, width - low)):
                y[row, t, low + c] = total[c]
        store(state, final[row], low)


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
    scale, offset, ln_2 = x.dtype.type(scale), x.dtype.type(offset), x.dtype.type(LN_2)
    rates, into_state, into_rates = zeros(x, size), zeros(x, size), zeros(x, size)
    into_drive, into_time = zeros(x, 2)
    time, drive, arriving = zeros(x, BLOCK), zeros(x, BLOCK), zeros(x, BLOCK)
    # Of step i in its block: the state before it, states[i], and the exponential, decays[i].
    states = zeros(x, (BLOCK + 1) * (size + 1)).reshape(BLOCK + 1, size + 1, LANES)
    decays = zeros(x, BLOCK * (size + 1)).reshape(BLOCK, size + 1, LANES)
    for item in range(start, stop):
        row, low = item // chunks, item % chunks * LANES
        load(A[row if A.shape[0] > 1 else 0], low, rates)
        load(grad_state[row], low, into_state)
        into_rates[:] = 0
        for block in range(starts.shape[1] - 1, -1, -1):
            first = block * BLOCK
            count = min(BLOCK, steps - first)
            load(starts[row, block], low, states[0])
            load(dt[row, first : first + count], low, time)
            load(x[row, first : first + count], low, drive)
            load(grad_y[row, first : first + count], low, arriving)
            for i in range(count):
                for c in range(LANES):
                    drive[i, c] *= time[i, c]
                _rebuild(time[i], drive[i], rates, B[row, first + i], scale, offset, states[i], decays[i], states[i + 1])
            for i in range(count - 1, -1, -1):
                t = first + i
                into_drive[:] = 0
                into_time[:] = 0
                _step_back(
                    time[i],
                    drive[i],
                    arriving[i],
                    rates,
                    B[row, t],
                    C[row, t],
                    scale,
                    offset,
                    states[i],
                    decays[i],
                    states[i + 1],
                    into_state,
                    into_drive,
                    into_time,
                    into_rates,
                    grad_B[item % chunks, row, t],
                    grad_C[item % chunks, row, t],
                )
                for c in range(min(LANES, width - low)):
                    grad_x[row, t, low + c] = into_drive[c] * time[i, c]
                    grad_dt[row, t, low + c] = into_time[c] * ln_2 + into_drive[c] * x[row, t, low + c]
        store(into_rates, grad_A[row], low)
        store(into_state, grad_initial[row], low)


@compiled
def _rebuild(time, drive, rates, b, scale, offset, before, decay, after):
    for n in range(rates.shape[0]):
        rate, h, a, new, weight = rates[n], before[n], decay[n], after[n], b[n]
        for c in range(LANES):
            a[c] = exp2(time[c] * rate[c])
        for c in range(LANES):
            new[c] = (scale * a[c] + offset) * h[c] + drive[c] * weight


@compiled(sums=True)
def _step_back(
    time,
    drive,
    arriving,
    rates,
    B,
    C,
    scale,
    offset,
    states,
    decays,
    new_states,
    into_state,
    into_drive,
    into_time,
    into_rates,
    into_B,
    into_C,
):
    """Write gradients of B and C, add to those of the others, and move that of the state to the step before.

    In the end ``new_states`` holds the gradient of the exponent dt A, as the states are not needed again.
    """
    for n in range(rates.shape[0]):
        rate, before, decay, total = rates[n], states[n], decays[n], new_states[n]
        above, into_rate = into_state[n], into_rates[n]
        b, weight = B[n], C[n]
        into_b, into_weight = b * 0, b * 0
        for c in range(LANES):
            into_weight += total[c] * arriving[c]
        for c in range(LANES):
            total[c] = above[c] + weight * arriving[c]
            into_drive[c] += b * total[c]
        for c in range(LANES):
            into_b += total[c] * drive[c]
        into_B[n], into_C[n] = into_b, into_weight
        for c in range(LANES):
            above[c] = (scale * decay[c] + offset) * total[c]
            total[c] *= scale * decay[c] * before[c]
        for c in range(LANES):
            into_time[c] += total[c] * rate[c]
            into_rate[c] += total[c] * time[c]
