"""Loops over time of the weighted average of RWKV-4, compiled by numba for the CPU.

One item is a row of the batch and ``LANES`` channels, which are the innermost, vectorised axis. The forward pass keeps
the state before every ``BLOCK`` steps, and the backward pass rebuilds those between. Of two weights that are divided by
the larger one, one is 1, so that each step takes two exponentials instead of four.

Shapes: key, value, y (B, T, D), w, u (B or 1, D), states (B, 3, D), starts (B, blocks, 3, D), lengths (B,).
"""

import numpy as np
import torch
from torch import Tensor

from hf_memory.ops._numba_common import LANES, LOG2_E, array, compiled, exp2, load, per_row, refusal, run, store

__all__ = ["average", "gradient", "refusal"]

BLOCK = 16


def average(
    key: Tensor, value: Tensor, w: Tensor, u: Tensor, initial_state: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Averages, the state after each row's length, and the state before each block."""
    rows, steps, width = key.shape
    y = torch.empty_like(key, memory_format=torch.contiguous_format)
    final = torch.empty_like(initial_state, memory_format=torch.contiguous_format)
    starts = key.new_empty(rows, -(-steps // BLOCK), 3, width)
    inputs = [array(key), array(value), per_row(w), per_row(u), array(initial_state), array(lengths)]
    outputs = [tensor.numpy() for tensor in (y, final, starts)]
    run(_average, rows * -(-width // LANES), 16 * key.numel(), *inputs, *outputs)
    return y, final, starts


def gradient(
    key: Tensor,
    value: Tensor,
    w: Tensor,
    u: Tensor,
    lengths: Tensor,
    starts: Tensor,
    grad_y: Tensor,
    grad_state: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of key, value, w and u (one per row), and the initial state."""
    grads = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (key, value, w, u, grad_state)]
    inputs = [array(key), array(value), per_row(w), per_row(u), *(array(t) for t in (lengths, starts, grad_y))]
    outputs = [tensor.numpy() for tensor in grads]
    items = len(key) * -(-key.shape[2] // LANES)
    run(_gradient, items, 32 * key.numel(), *inputs, array(grad_state), *outputs)
    return tuple(grads)


@compiled
def _average(start, stop, key, value, w, u, initial_state, lengths, y, final, starts):
    _, steps, width = key.shape
    chunks = (width + LANES - 1) // LANES
    # Rows: `state` a, b and m; `step` key, value, y, w, u.
    state, step = np.zeros((3, LANES), key.dtype), np.zeros((1, 5 * LANES), key.dtype)
    for item in range(start, stop):
        row, low = item // chunks, item % chunks * LANES
        own = row if w.shape[0] > 1 else 0
        load(w[own : own + 1], low, step, 3)
        own = row if u.shape[0] > 1 else 0
        load(u[own : own + 1], low, step, 4)
        load(initial_state[row], low, state, 0)
        for t in range(steps):
            if t == lengths[row]:
                store(state, 0, final[row], low)
            if t % BLOCK == 0:
                store(state, 0, starts[row, t // BLOCK], low)
            load(key[row, t : t + 1], low, step, 0)
            load(value[row, t : t + 1], low, step, 1)
            _output(step[0], state.ravel())
            _advance(step[0], 3, state.ravel(), state.ravel())
            store(step, 2, y[row, t : t + 1], low)
        if lengths[row] >= steps:
            store(state, 0, final[row], low)


@compiled
def _output(step, state):
    """Write the average of a step."""
    log2_e = step.dtype.type(LOG2_E)
    for c in range(LANES):
        gap = state[2 * LANES + c] - (step[4 * LANES + c] + step[c])
        small = exp2(-abs(gap) * log2_e)
        old, new = (step.dtype.type(1), small) if gap >= 0 else (small, step.dtype.type(1))
        numerator = old * state[c] + new * step[LANES + c]
        step[2 * LANES + c] = numerator / (old * state[LANES + c] + new)
