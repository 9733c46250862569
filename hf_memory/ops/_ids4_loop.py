"""The chunked loop behind :mod:`hf_memory.ops.ids4`, with its backward pass.

With g_t the gradient that arrives at a state and G_t all of it,

    state form      G_t = g_t + A_{t+1}^T G_{t+1},   dA_t = G_t h_{t-1}^T,   db_t = G_t
    product form    G_t = g_t + G_{t+1} A_{t+1}^T,   dA_t = P_{t-1}^T G_t

Transitions exist for one chunk of time at a time; the backward pass makes them again from the inputs, and the states
from those at the borders of the chunks.
"""

import math
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import vjp
from torch.nn import functional as F

from hf_memory.ops._cells import Folded, fold_replicas, unfold_replicas
from hf_memory.ops.backends.dispatch import load_kernel

Law = Literal["residual", "gelu"]
Norm = Literal["row", "none"]


def transitions(x: Tensor, weight: Tensor, law: Law = "residual", norm: Norm = "row") -> Tensor:
    """Make transition matrices from inputs.

    ``"gelu"`` is the published code, A = GELU(sum_i x_i A_i); ``"residual"`` is A = I + sum_i x_i A_i, the form near
    the identity that the paper describes. The norm ``"row"`` divides a row by the sum of its absolute values where
    that is above 1: no product of such matrices has an absolute row sum above 1, and permutations stay as they are.

    Args:
        x: Inputs (R, ..., I).
        weight: One matrix per input channel, A_i (R, I, N, N).
        law: ``"residual"`` or ``"gelu"``.
        norm: ``"row"`` or ``"none"``.

    Returns:
        Matrices (R, ..., N, N).
    """
    size = weight.shape[-1]
    matrices = (x.flatten(1, -2) @ weight.flatten(2)).view(*x.shape[:-1], size, size)
    matrices = F.gelu(matrices) if law == "gelu" else matrices + torch.eye(size, dtype=x.dtype, device=x.device)
    if norm == "row":
        matrices = matrices / matrices.abs().sum(-1, keepdim=True).clamp_min(1.0)
    return matrices


class IDS4Loop(torch.autograd.Function):
    """Both forms, chunk by chunk. The replica axis R comes first in every tensor."""

    @staticmethod
    def forward(
        x: Tensor,
        added: Tensor,
        weight: Tensor,
        initial: Tensor,
        padding: Tensor | None,
        law: Law,
        norm: Norm,
        product: bool,
        backend: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the recurrence.

        Args:
            x: Inputs (R, T, B, I).
            added: b (R, T, B, N) of the state form, or the readout p (R, N) of the product form.
            weight: A_i (R, I, N, N).
            initial: State (R, B, N) or (R, B, N, N).
            padding: Steps (R, T, B) that leave the state, or None.
            law: See :func:`transitions`.
            norm: See :func:`transitions`.
            product: Whether this is the product form.
            backend: Name of the backend that walks through a chunk.

        Returns:
            Outputs (R, T, B, N), the final state, and the states (R, chunks, B, ...) before each chunk.
        """
        outputs = x.new_empty(*x.shape[:-1], weight.shape[-1])
        state, borders = initial, []
        for chunk in _chunks(x, weight.shape[-1]):
            borders.append(state)
            matrices = _made(x[:, chunk], weight, law, norm, padding, chunk)
            states = _run(matrices, state, None if product else _padded(added[:, chunk], padding, chunk), backend)
            outputs[:, chunk] = _read(states, added) if product else states
            state = states[:, -1].clone()  # a view would keep the states of the whole chunk
        return outputs, state, torch.stack(borders, dim=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        x, added, weight, _, padding, *ctx.options = inputs
        ctx.save_for_backward(x, added, weight, padding, output[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_final: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        axes = (0, 0, 0, 0, 0, 0, 0)
        grads = Folded.apply(_ids4_backward, axes, axes[:4], grad, grad_final, *ctx.saved_tensors, *ctx.options)
        return *grads, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        named = zip(inputs[:5], in_dims[:5], strict=True)
        folded = [fold_replicas(tensor, in_dim, info.batch_size, 0) for tensor, in_dim in named]
        outputs = IDS4Loop.apply(*folded, *inputs[5:])
        return tuple(unfold_replicas(output, info.batch_size, 0) for output in outputs), (0, 0, 0)


def _ids4_backward(
    grad: Tensor,
    grad_final: Tensor,
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    padding: Tensor | None,
    borders: Tensor,
    law: Law,
    norm: Norm,
    product: bool,
    backend: str,
) -> tuple[Tensor, ...]:
    """Gradients of x, b or p, the weight and the first state from those of the outputs and the last state."""
    grad_x, grad_added, grad_weight = torch.empty_like(x), torch.zeros_like(added), torch.zeros_like(weight)
    carried = grad_final
    for index, chunk in reversed(list(enumerate(_chunks(x, weight.shape[-1])))):
        make = partial(_made, law=law, norm=norm, padding=padding, chunk=chunk)
        matrices, pull_back = vjp(make, x[:, chunk], weight)
        first = borders[:, index]
        states = _run(matrices, first, None if product else _padded(added[:, chunk], padding, chunk), backend)
        previous = torch.cat([first.unsqueeze(1), states[:, :-1]], dim=1)
        if product:
            grad_added += torch.einsum("rtbij,rtbi->rj", states, grad[:, chunk])
            arriving = grad[:, chunk].unsqueeze(-1) * added[:, None, None, None, :]
            total, carried = _run_back(matrices, arriving, carried, product, backend)
            grad_matrices = previous.mT @ total
        else:
            total, carried = _run_back(matrices, grad[:, chunk], carried, product, backend)
            grad_added[:, chunk] = _padded(total, padding, chunk)
            grad_matrices = total.unsqueeze(-1) * previous.unsqueeze(-2)
        grad_x[:, chunk], chunk_weight = pull_back(grad_matrices)
        grad_weight += chunk_weight
    return grad_x, grad_added, grad_weight, carried


def _chunks(x: Tensor, size: int) -> list[slice]:
    """Pieces of time whose transitions hold about a million numbers, and not more pieces than steps in one."""
    replicas, time, batch, _ = x.shape
    step = max(math.ceil(math.sqrt(time)), 2**20 // (replicas * batch * size**2))
    return [slice(start, min(start + step, time)) for start in range(0, time, step)]


def _made(x: Tensor, weight: Tensor, law: Law, norm: Norm, padding: Tensor | None, chunk: slice) -> Tensor:
    """Transitions (R, c, B, N, N) of a chunk."""
    return _padded(transitions(x, weight, law, norm), padding, chunk)


def _padded(values: Tensor, padding: Tensor | None, chunk: slice) -> Tensor:
    """The values with those of padded steps replaced: matrices (R, c, B, N, N) by the identity, vectors by zero."""
    if padding is None:
        return values
    if values.dim() == 4:
        return values.masked_fill(padding[:, chunk].unsqueeze(-1), 0.0)
    identity = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    return torch.where(padding[:, chunk, :, None, None], identity, values)


def _run(matrices: Tensor, state: Tensor, added: Tensor | None, backend: str) -> Tensor:
    """States (R, c, B, ...) after each step of a chunk; ``added`` is None in the product form."""
    if backend != "torch":
        return load_kernel("ids4", backend).run(matrices, state, added)
    states = []
    for t, matrix in enumerate(matrices.unbind(1)):
        if added is None:
            state = state @ matrix
        else:
            state = (matrix @ state.unsqueeze(-1)).squeeze(-1) + added[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


def _run_back(
    matrices: Tensor, arriving: Tensor, carried: Tensor, product: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """All of the gradient at each state of a chunk, and at the state before the chunk."""
    if backend != "torch":
        return load_kernel("ids4", backend).run_back(matrices, arriving, carried, product)
    totals = []
    for matrix, grad in zip(reversed(matrices.unbind(1)), reversed(arriving.unbind(1)), strict=True):
        total = grad + carried
        carried = total @ matrix.mT if product else (matrix.mT @ total.unsqueeze(-1)).squeeze(-1)
        totals.append(total)
    return torch.stack(totals[::-1], dim=1), carried


def _read(products: Tensor, readout: Tensor) -> Tensor:
    """P_t p: (R, c, B, N, N) and (R, N) to (R, c, B, N)."""
    return (products @ readout[:, None, None, :, None]).squeeze(-1)
