"""Loop of the rotary position embedding, compiled by numba for the CPU; one item is a row of the batch."""

import torch
from torch import Tensor

from hf_memory.ops.backends.numba_common import array, compiled, refusal, run

__all__ = ["refusal", "turn"]


def turn(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + M) of vectors (B, T, H, K) by angles whose cosines and sines are (B, T, M), 2 M <= K."""
    output = torch.empty_like(vectors, memory_format=torch.contiguous_format)
    run(_turn, len(vectors), 2 * vectors.numel(), array(vectors), array(cos), array(sin), output.numpy())
    return output


@compiled
def _turn(start, stop, vectors, cos, sin, output):
    _, steps, heads, size = vectors.shape
    half = cos.shape[2]
    for row in range(start, stop):
        for t in range(steps):
            c, s = cos[row, t], sin[row, t]
            for h in range(heads):
                own, target = vectors[row, t, h], output[row, t, h]
                for i in range(half):
                    target[i] = own[i] * c[i] - own[i + half] * s[i]
                for i in range(half):
                    target[i + half] = own[i + half] * c[i] + own[i] * s[i]
                for i in range(2 * half, size):
                    target[i] = own[i]
