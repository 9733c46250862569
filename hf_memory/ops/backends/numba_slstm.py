"""Loops over time of the sLSTM, compiled by numba for the CPU.

One item is a head of a row: its outputs are multiplied with the weight of the head in vectors over the four gates, and
what a step computes is written to the tensors that the loop in torch fills, so that the rest of the backward pass is
the same.

Shapes: inputs, slopes (T, G, B, 4 P), weight (G, P, 4 P), sums and whatever belongs to c and n (T, G, B, 2, P), others
(T, G, B, P), with the first ones (G, B, ...).
"""

import math

import numpy as np
from torch import Tensor

from hf_memory.ops.backends.numba_common import LOG2_E, array, compiled, exp2, refusal, run

__all__ = ["accumulate", "advance", "refusal"]


def advance(
    x: Tensor, weight: Tensor, sums: Tensor, most: Tensor, h: Tensor, outputs: tuple[Tensor, ...], closed: Tensor
) -> None:
    """Fill outputs, sums, maxima, factors, written values, open output gates, and how far forget gates are closed."""
    inputs = [array(tensor) for tensor in (x, weight, sums, most, h)]
    work = x.numel() * weight.shape[1]
    run(_advance, h.shape[0] * h.shape[1], work, *inputs, *(tensor.numpy() for tensor in (*outputs, closed)))


def accumulate(
    slopes: Tensor,
    weight: Tensor,
    by_normalizer: Tensor,
    read: Tensor,
    factors: Tensor,
    grad_h: Tensor,
    grad_sums: Tensor,
    first_h: Tensor,
    first_sums: Tensor,
) -> None:
    """Turn slopes into gradients, and gradients of outputs and sums into all that arrives there, from the end."""
    inputs = [array(tensor) for tensor in (weight, by_normalizer, read, factors)]
    changed = [tensor.numpy() for tensor in (slopes, grad_h, grad_sums, first_h, first_sums)]
    items = grad_h.shape[1] * grad_h.shape[2]
    run(_accumulate, items, slopes.numel() * weight.shape[1], *inputs, *changed)


@compiled
def _advance(start, stop, x, weight, sums, most, h, output, cells, maxima, factors, written, opened, closed):
    steps, _, rows, width = x.shape
    size = width // 4
    raw = np.zeros(width, x.dtype)
    one, zero, log2_e = x.dtype.type(1), x.dtype.type(0), x.dtype.type(LOG2_E)
    for item in range(start, stop):
        head, row = item // rows, item % rows
        before, both, peak = h[head, row], sums[head, row], most[head, row]
        for t in range(steps):
            raw[:] = x[t, head, row]
            for q in range(size):
                scale, column = before[q], weight[head, q]
                for j in range(width):
                    raw[j] += scale * column[j]
            now, factor, pair = cells[t, head, row], factors[t, head, row], written[t, head, row]
            for p in range(size):
                i, f, z, o = raw[p], raw[size + p], raw[2 * size + p], raw[3 * size + p]
                shut = exp2(-abs(f) * log2_e)  # of a forget gate, e^-|f|
                kept = (f if f < zero else zero) - math.log1p(shut) + peak[p]
                top = i if i > kept else kept
                add, keep = exp2((i - top) * log2_e), exp2((kept - top) * log2_e)
                opened_now, squashed = one / (one + exp2(-o * log2_e)), math.tanh(z)
                cell, count = both[0, p] * keep + squashed * add, both[1, p] * keep + add
                now[0, p], now[1, p], factor[0, p], factor[1, p] = cell, count, add, keep
                pair[0, p], pair[1, p] = squashed, one
                closed[t, head, row, p] = (shut if f > zero else one) / (one + shut)
                maxima[t, head, row, p], opened[t, head, row, p] = top, opened_now
                output[t, head, row, p] = opened_now * cell / count
            before, both, peak = output[t, head, row], now, maxima[t, head, row]


@compiled(sums=True)
def _accumulate(start, stop, weight, by_normalizer, read, factors, slopes, grad_h, grad_sums, first_h, first_sums):
    steps, _, rows, size = grad_h.shape
    for item in range(start, stop):
        head, row = item // rows, item % rows
        for back in range(steps):
            t = steps - 1 - back
            own, to_h, to_sums = slopes[t, head, row], grad_h[t, head, row], grad_sums[t, head, row]
            through, normalizer, keep = read[t, head, row], by_normalizer[t, head, row], factors[t, head, row, 1]
            earlier_h = grad_h[t - 1, head, row] if t else first_h[head, row]
            earlier_sums = grad_sums[t - 1, head, row] if t else first_sums[head, row]
            for p in range(size):
                cell = to_sums[0, p] + through[0, p] * to_h[p]
                count = to_sums[1, p] + through[1, p] * to_h[p]
                own[p] = own[p] * cell + normalizer[0, p] * count
                own[size + p] = own[size + p] * cell + normalizer[1, p] * count
                own[2 * size + p] *= cell
                own[3 * size + p] *= to_h[p]
                earlier_sums[0, p] += keep[p] * cell
                earlier_sums[1, p] += keep[p] * count
            for q in range(size):
                total, column = earlier_h[q], weight[head, q]
                for j in range(4 * size):
                    total += own[j] * column[j]
                earlier_h[q] = total
