"""The walk of the input-dependent S4 through one chunk of time as a Triton kernel; symbols as in ``_ids4_loop``.

In torch each step is a launch or two, in either direction; here a program walks through all steps of a chunk with one
vector in its registers. The rows of a product P_t = P_{t-1} A_t do not meet, so each is a vector with a program of its
own. Transitions are made in torch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_memory.ops.backends import triton_common
from hf_memory.ops.backends.triton_common import INTERPRETED, current_device

__all__ = ["INTERPRETED", "refusal", "run", "run_back"]

MOST_STATES = 128
"""A program holds one transition in its registers."""


def refusal(*, device: torch.device, dtype: torch.dtype, state_size: int = 1) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    if state_size > MOST_STATES:
        return f"its kernel takes at most {MOST_STATES} states, not {state_size}"
    return triton_common.refusal(device=device, dtype=dtype)


def run(matrices: Tensor, state: Tensor, added: Tensor | None) -> Tensor:
    """States (R, c, B, ...) after each step of a chunk; ``added`` is None in the product form."""
    states, _ = _walk(matrices, state, added, product=added is None, back=False)
    return states


def run_back(matrices: Tensor, arriving: Tensor, carried: Tensor, product: bool) -> tuple[Tensor, Tensor]:
    """All of the gradient at each state of a chunk, and at the state before the chunk."""
    return _walk(matrices, carried, arriving, product, back=True)


def _walk(matrices: Tensor, state: Tensor, added: Tensor | None, product: bool, back: bool) -> tuple[Tensor, Tensor]:
    """Vectors at every step and after the last one. Rows of a product are an axis of their own: (R, B, rows, N)."""
    replicas, steps, batch, size, _ = matrices.shape
    rows = size if product else 1
    every, last = matrices.new_empty(replicas, steps, *state.shape[1:]), torch.empty_like(state).contiguous()
    tensors = [matrices.contiguous(), state.contiguous(), every if added is None else added.contiguous(), every, last]
    options: dict[str, Any] = {
        "HAS_ADDED": added is not None,
        "BACK": back,
        "COLUMN": product == back,  # A v where a state steps forward or a product back, else v A
        "N": triton.next_power_of_2(size),
        "num_warps": 4 if size > 32 else 1,
    }
    with current_device(matrices):
        _kernel[(replicas * batch, rows)](*tensors, steps, batch, size, **options)
    return every, last


@triton.jit
def _kernel(
    matrices,
    state,
    added,
    every,
    last,
    steps,
    batch,
    size,
    HAS_ADDED: tl.constexpr,
    BACK: tl.constexpr,
    COLUMN: tl.constexpr,
    N: tl.constexpr,
):
    pair, row, rows = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = tl.arange(0, N)
    has = i < size
    square = i[:, None] * size + i[None, :]
    has_square = has[:, None] & has[None, :]
    vector = tl.load(state + (pair * rows + row) * size + i, mask=has, other=0)
    first = pair // batch * steps * batch + pair % batch
    for index in range(steps):
        t = steps - 1 - index if BACK else index
        at = first + t * batch
        matrix = tl.load(matrices + at * size * size + square, mask=has_square, other=0)
        at_vector = (at * rows + row) * size + i
        if BACK:
            vector += tl.load(added + at_vector, mask=has, other=0)
            tl.store(every + at_vector, vector, mask=has)
        if COLUMN:
            vector = tl.sum(matrix * vector[None, :], axis=1)
        else:
            vector = tl.sum(vector[:, None] * matrix, axis=0)
        if not BACK:
            if HAS_ADDED:
                vector += tl.load(added + at_vector, mask=has, other=0)
            tl.store(every + at_vector, vector, mask=has)
    tl.store(last + (pair * rows + row) * size + i, vector, mask=has)
