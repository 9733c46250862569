"""Loops of the root mean square norm, compiled by numba for the CPU: one pass over a row that stays in the cache.

One item is a block of rows, whose sum over rows of a gain's gradient is its own: sums do not depend on threads.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.numba_common import array, compiled, refusal, run

__all__ = ["norm", "norm_backward", "refusal"]

_BLOCK = 64


def norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Outputs for inputs (..., N) and gains (N,)."""
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = _rows(x)
    run(_norm, _blocks(rows), 2 * x.numel(), array(rows), array(_gains(x, weight)), eps, _rows(output).numpy())
    return output


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor | None]:
    """Gradients of inputs and gains."""
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows, own = _rows(x), _rows(output).numpy()
    sums = x.new_zeros(_blocks(rows), x.shape[-1])
    inputs = array(_rows(grad)), array(rows), array(_gains(x, weight))
    run(_norm_backward, len(sums), 4 * x.numel(), *inputs, eps, own, sums.numpy())
    return output, None if weight is None else sums.sum(0)


def _rows(x: Tensor) -> Tensor:
    return x.detach().reshape(-1, x.shape[-1])


def _blocks(rows: Tensor) -> int:
    return -(-len(rows) // _BLOCK)


def _gains(x: Tensor, weight: Tensor | None) -> Tensor:
    return x.new_ones(x.shape[-1]) if weight is None else weight


@compiled(sums=True)
def _norm(start, stop, x, weight, eps, output):
    rows, size = x.shape
    for r in range(start * _BLOCK, min(stop * _BLOCK, rows)):
        own, target, total = x[r], output[r], x.dtype.type(0)
        for c in range(size):
            total += own[c] * own[c]
        inverse = x.dtype.type(1 / (total / size + eps) ** 0.5)
        for c in range(size):
            target[c] = own[c] * inverse * weight[c]


@compiled(sums=True)
def _norm_backward(start, stop, grad, x, weight, eps, output, sums):
    rows, size = x.shape
    for block in range(start, stop):
        added = sums[block]
        for r in range(block * _BLOCK, min((block + 1) * _BLOCK, rows)):
            own, given, target = x[r], grad[r], output[r]
            total, shared = x.dtype.type(0), x.dtype.type(0)
            for c in range(size):
                total += own[c] * own[c]
                shared += own[c] * given[c] * weight[c]
            inverse = x.dtype.type(1 / (total / size + eps) ** 0.5)
            back = x.dtype.type(shared * inverse * inverse / size)
            for c in range(size):
                scaled = given[c] * inverse
                added[c] += scaled * own[c]
                target[c] = scaled * weight[c] - inverse * back * own[c]
