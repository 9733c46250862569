"""Loops of the short convolution, compiled by numba for the CPU.

One item is a row of the batch. Channels are innermost, so that nothing is transposed; the backward pass computes what
went into the activation again, which costs less than to keep it.
"""

import numpy as np
import torch
from torch import Tensor

from hf_memory.ops.backends.numba_common import LOG2_E, array, compiled, exp2, refusal, run

__all__ = ["convolve", "convolve_backward", "refusal"]


def convolve(window: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Outputs (B, T, D) for a window (B, W - 1 + T, D), filters (D, W) and a bias (D,)."""
    rows, length, channels = window.shape
    output = window.new_empty(rows, length - weight.shape[1] + 1, channels)
    inputs = array(window), array(weight.T), array(_biases(weight, bias)), activation == "silu"
    run(_convolve, rows, output.numel() * (weight.shape[1] + 1), *inputs, output.numpy())
    return output


def convolve_backward(
    grad: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of window, filters and bias."""
    rows, width = len(window), weight.shape[1]
    to_window = torch.zeros_like(window, memory_format=torch.contiguous_format)
    to_taps, to_bias = window.new_zeros(rows, width, weight.shape[0]), window.new_zeros(rows, weight.shape[0])
    inputs = array(grad), array(window), array(weight.T), array(_biases(weight, bias)), activation == "silu"
    outputs = (tensor.numpy() for tensor in (to_window, to_taps, to_bias))
    run(_convolve_backward, rows, 2 * grad.numel() * (width + 1), *inputs, *outputs)
    return to_window, to_taps.sum(0).T, None if bias is None else to_bias.sum(0)


def _biases(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.new_zeros(weight.shape[0]) if bias is None else bias


@compiled
def _sum_of_taps(window, t, taps, bias, result):
    channels = result.shape[0]
    for c in range(channels):
        result[c] = bias[c]
    for i in range(taps.shape[0]):
        tap, column = taps[i], window[t + i]
        for c in range(channels):
            result[c] += tap[c] * column[c]


@compiled
def _convolve(start, stop, window, taps, bias, is_silu, output):
    _, steps, channels = output.shape
    one, log2_e = window.dtype.type(1), window.dtype.type(LOG2_E)
    for row in range(start, stop):
        own = window[row]
        for t in range(steps):
            result = output[row, t]
            _sum_of_taps(own, t, taps, bias, result)
            if is_silu:
                for c in range(channels):
                    result[c] = result[c] / (one + exp2(-result[c] * log2_e))


@compiled
def _convolve_backward(start, stop, grad, window, taps, bias, is_silu, to_window, to_taps, to_bias):
    _, steps, channels = grad.shape
    one, log2_e = window.dtype.type(1), window.dtype.type(LOG2_E)
    slope = np.empty(channels, window.dtype)
    for row in range(start, stop):
        own, target, added, constant = window[row], to_window[row], to_taps[row], to_bias[row]
        for t in range(steps):
            given = grad[row, t]
            if is_silu:
                _sum_of_taps(own, t, taps, bias, slope)
                for c in range(channels):
                    opened = one / (one + exp2(-slope[c] * log2_e))
                    slope[c] = given[c] * opened * (one + slope[c] * (one - opened))
            else:
                slope[:] = given
            for c in range(channels):
                constant[c] += slope[c]
            for i in range(taps.shape[0]):
                tap, column, back, sums = taps[i], own[t + i], target[t + i], added[i]
                for c in range(channels):
                    back[c] += tap[c] * slope[c]
                    sums[c] += column[c] * slope[c]
