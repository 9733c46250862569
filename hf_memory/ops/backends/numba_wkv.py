"""Loops over time of the weighted average of RWKV-4, compiled by numba for the CPU.

One item is a row of the batch and ``LANES`` channels, which are the innermost, vectorised axis. The forward pass keeps
the state before every ``BLOCK`` steps, and the backward pass rebuilds those between. Of two weights that are divided by
the larger one, one is 1, so that each step takes two exponentials instead of four.

Shapes: key, value, y (B, T, D), w, u (B or 1, D), states (B, 3, D), starts (B, blocks, 3, D), lengths (B,).
"""

import numpy as np
import torch
from torch import Tensor

from hf_memory.ops.backends.numba_common import LANES, LOG2_E, array, compiled, exp2, load, per_row, refusal, run, store

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
    fixed, block = np.zeros((1, 2 * LANES), key.dtype), np.zeros((BLOCK, 3 * LANES), key.dtype)
    history, state = np.zeros((BLOCK, 3 * LANES), key.dtype), np.zeros((1, 3 * LANES), key.dtype)
    for item in range(start, stop):
        row, low = item // chunks, item % chunks * LANES
        _load_fixed(w, u, row, low, fixed)
        _load_state(initial_state[row], low, state)
        for index in range(starts.shape[1]):
            first = index * BLOCK
            count = min(BLOCK, steps - first)
            _store_state(state, starts[row, index], low)
            load(key[row, first : first + count], low, block, 0)
            load(value[row, first : first + count], low, block, 1)
            _advance(block[:count], fixed[0], history, state[0])
            _output(block[:count], fixed[0], history)
            store(block, 2, y[row, first : first + count], low)
            real = lengths[row] - first
            if 0 <= real < count:
                _store_state(history[real : real + 1], final[row], low)
        if lengths[row] >= steps:
            _store_state(state, final[row], low)


@compiled
def _gradient(
    start,
    stop,
    key,
    value,
    w,
    u,
    lengths,
    starts,
    grad_y,
    grad_state,
    grad_key,
    grad_value,
    grad_w,
    grad_u,
    grad_initial,
):
    _, steps, width = key.shape
    chunks = (width + LANES - 1) // LANES
    fixed, block = np.zeros((1, 4 * LANES), key.dtype), np.zeros((BLOCK, 5 * LANES), key.dtype)
    history, state = np.zeros((BLOCK, 3 * LANES), key.dtype), np.zeros((1, 3 * LANES), key.dtype)
    backwards = np.arange(BLOCK)[::-1].copy()
    carry, arriving = np.zeros((1, 3 * LANES), key.dtype), np.zeros((1, 3 * LANES), key.dtype)
    for item in range(start, stop):
        row, low = item // chunks, item % chunks * LANES
        _load_fixed(w, u, row, low, fixed)
        _clear(fixed[0, 2 * LANES :])
        _load_state(grad_state[row], low, arriving)
        _clear(carry[0])
        if lengths[row] >= steps:
            _copy(arriving[0], carry[0])
        for index in range(starts.shape[1] - 1, -1, -1):
            first = index * BLOCK
            count = min(BLOCK, steps - first)
            _load_state(starts[row, index], low, state)
            load(key[row, first : first + count], low, block, 0)
            load(value[row, first : first + count], low, block, 1)
            load(grad_y[row, first : first + count], low, block, 2)
            _advance(block[:count], fixed[0], history, state[0])
            _back(block[:count], fixed[0], history, carry[0], arriving[0], lengths[row] - first, backwards)
            store(block, 3, grad_key[row, first : first + count], low)
            store(block, 4, grad_value[row, first : first + count], low)
        store(fixed, 2, grad_w[row : row + 1], low)
        store(fixed, 3, grad_u[row : row + 1], low)
        _store_state(carry, grad_initial[row], low)


@compiled
def _load_fixed(w, u, row, low, fixed):
    own = row if w.shape[0] > 1 else 0
    load(w[own : own + 1], low, fixed, 0)
    own = row if u.shape[0] > 1 else 0
    load(u[own : own + 1], low, fixed, 1)


@compiled
def _load_state(state, low, target):
    for part in range(3):
        load(state[part : part + 1], low, target, part)


@compiled
def _store_state(source, state, low):
    for part in range(3):
        store(source, part, state[part : part + 1], low)


@compiled
def _clear(target):
    for c in range(len(target)):
        target[c] = 0


@compiled
def _copy(source, target):
    for c in range(len(target)):
        target[c] = source[c]


@compiled
def _add(source, target):
    for c in range(len(target)):
        target[c] += source[c]


# Rows of what follows: `block` key, value, then y or the gradients of y, key and value; `fixed` w, u and the gradients
# of both; `history` a, b and m before each step; `carry` the gradients of a, b and m.


@compiled
def _output(block, fixed, history):
    """Write the averages of a block."""
    one, log2_e = fixed.dtype.type(1), fixed.dtype.type(LOG2_E)
    for i in range(len(block)):
        step, state = block[i], history[i]
        for c in range(LANES):
            gap = state[2 * LANES + c] - (step[c] + fixed[LANES + c])
            small = exp2(-abs(gap) * log2_e)
            old, new = one if gap >= 0 else small, small if gap >= 0 else one
            numerator = old * state[c] + new * step[LANES + c]
            step[2 * LANES + c] = numerator / (old * state[LANES + c] + new)


@compiled
def _advance(block, fixed, history, state):
    """Move the state through a block, and write down what it was before each step."""
    one, log2_e = fixed.dtype.type(1), fixed.dtype.type(LOG2_E)
    for i in range(len(block)):
        step, before = block[i], history[i]
        for c in range(3 * LANES):
            before[c] = state[c]
        # In place, as a loop that reads one row of `history` and writes the next is not vectorised.
        for c in range(LANES):
            decayed = state[2 * LANES + c] + fixed[c]
            gap = decayed - step[c]
            small = exp2(-abs(gap) * log2_e)
            old, new = one if gap >= 0 else small, small if gap >= 0 else one
            state[c] = old * state[c] + new * step[LANES + c]
            state[LANES + c] = old * state[LANES + c] + new
            state[2 * LANES + c] = decayed if gap >= 0 else step[c]


@compiled
def _back(block, fixed, history, carry, arriving, real, backwards):
    """Write a block's gradients of key and value, add to those of w and u, and carry those of the state to its start.

    Before step ``real`` the gradient ``arriving`` at the final state is added. ``backwards`` counts from the last step
    of a full block to 0: over rows that the compiler sees to descend it would run its inner loops without vectors.
    """
    one, zero, log2_e = fixed.dtype.type(1), fixed.dtype.type(0), fixed.dtype.type(LOG2_E)
    for i in backwards[len(backwards) - len(block) :]:
        step, state = block[i], history[i]
        for c in range(LANES):
            gap = state[2 * LANES + c] + fixed[c] - step[c]
            small = exp2(-abs(gap) * log2_e)
            old, new = one if gap >= 0 else small, small if gap >= 0 else one
            into_a, into_b = carry[c], carry[LANES + c]
            through_old = old * (state[c] * into_a + state[LANES + c] * into_b)
            through_new = new * (step[LANES + c] * into_a + into_b)
            # The exponent of the new state divides both weights, and is one of the two that the step compares.
            top = carry[2 * LANES + c] - (through_old + through_new)
            kept = top if gap >= 0 else zero
            step[3 * LANES + c] = through_new + (zero if gap >= 0 else top)
            step[4 * LANES + c] = new * into_a
            fixed[2 * LANES + c] += through_old + kept
            carry[c] = old * into_a
            carry[LANES + c] = old * into_b
            carry[2 * LANES + c] = through_old + kept
        for c in range(LANES):
            gap = state[2 * LANES + c] - (step[c] + fixed[LANES + c])
            small = exp2(-abs(gap) * log2_e)
            old, new = one if gap >= 0 else small, small if gap >= 0 else one
            inverse = one / (old * state[LANES + c] + new)
            into_numerator = step[2 * LANES + c] * inverse
            into_denominator = -into_numerator * ((old * state[c] + new * step[LANES + c]) * inverse)
            into_current = new * (step[LANES + c] * into_numerator + into_denominator)
            step[3 * LANES + c] += into_current
            step[4 * LANES + c] += new * into_numerator
            fixed[3 * LANES + c] += into_current
            into_a, into_b = old * into_numerator, old * into_denominator
            carry[c] += into_a
            carry[LANES + c] += into_b
            carry[2 * LANES + c] += into_a * state[c] + into_b * state[LANES + c]
        if i == real:
            _add(arriving, carry)
