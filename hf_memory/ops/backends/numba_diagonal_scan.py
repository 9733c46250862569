"""Loops over time of the diagonal scan, compiled by numba for the CPU.

Both walk batch first and keep the row of channels innermost, so that nothing is transposed. The first two axes of
``decay`` may have length one: it is then the same for every row or step.
"""

from typing import Any

import numpy as np
import torch

from hf_memory.ops.backends.numba_common import array, compiled, run

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def refusal(*, device: torch.device, dtype: torch.dtype, **_: Any) -> str | None:
    """Say why these loops cannot run on such tensors, or nothing where they can."""
    if device.type != "cpu":
        return f"its loops need tensors on the CPU, not on {device.type}"
    return None if dtype in DTYPES else f"its loops do not take {dtype}"


def scan(decay: torch.Tensor, inputs: torch.Tensor, initial_state: torch.Tensor) -> torch.Tensor:
    """Return h_t = a_t h_{t-1} + b_t for every t; decay (B or 1, T or 1, N), inputs (B, T, N), state (B, N)."""
    states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    arrays = _array(decay), _array(inputs), _array(initial_state), states.numpy()
    run(_scan, len(inputs), 4 * inputs.numel(), *arrays)
    return states


def reverse_scan(decay: torch.Tensor, grads: torch.Tensor) -> torch.Tensor:
    """Return G_t = g_t + conj(a_{t+1}) G_{t+1} for every t; shapes as in ``scan``."""
    totals = torch.empty_like(grads, memory_format=torch.contiguous_format)
    run(_reverse_scan, len(grads), 4 * grads.numel(), _array(decay), _array(grads), totals.numpy())
    return totals


def _array(tensor: torch.Tensor) -> np.ndarray:
    return array(tensor.resolve_conj().resolve_neg())


@compiled
def _scan(
    start: int, stop: int, decay: np.ndarray, inputs: np.ndarray, initial_state: np.ndarray, states: np.ndarray
) -> None:
    _, time, channels = inputs.shape
    for row in range(start, stop):
        decay_row = decay[row if decay.shape[0] > 1 else 0]
        previous = initial_state[row]
        for t in range(time):
            factor = decay_row[t if decay.shape[1] > 1 else 0]
            current = states[row, t]
            for c in range(channels):
                current[c] = factor[c] * previous[c] + inputs[row, t, c]
            previous = current


@compiled
def _reverse_scan(start: int, stop: int, decay: np.ndarray, grads: np.ndarray, totals: np.ndarray) -> None:
    _, time, channels = grads.shape
    for row in range(start, stop):
        decay_row = decay[row if decay.shape[0] > 1 else 0]
        totals[row, time - 1] = grads[row, time - 1]
        for t in range(time - 2, -1, -1):
            factor = decay_row[t + 1 if decay.shape[1] > 1 else 0]
            for c in range(channels):
                totals[row, t, c] = grads[row, t, c] + np.conj(factor[c]) * totals[row, t + 1, c]
