r"""sLSTM: a recurrent cell with an exponential input gate, a normaliser, and recurrent weights within each head.

    (i, f, z, o)_t = x_t + R h_{t-1}                                   four blocks, R a matrix of each head
    c_t = sigmoid(f) c_{t-1} + e^i tanh(z),    n_t = sigmoid(f) n_{t-1} + e^i,    h_t = sigmoid(o) c_t / n_t

    x_t  inputs  (B, T, H, 4, P)    blocks i, f, z, o of H heads of P cells
    R    weight  (H, P, 4, P)       from, block, to
    c, n, m, h   (B, H, P)

Source: Beck et al. (2024), "xLSTM: Extended long short-term memory", equations 8 to 18. Held are e^{-m_t} c_t and
e^{-m_t} n_t with m_t = max(log sigmoid(f) + m_{t-1}, i), of which h_t does not depend, so that m takes no gradient.
Before the first token m = -1e38: then the first n is 1, no later one is less, and nothing is divided by zero.

With g, G the gradients that arrive at h_t and at the held (c, n)_t, and e^{i'}, f' the factors in units of e^{m_t},

    G += g (o / n, -h / n),    dz = G_c i' (1 - z^2),    di = i' (G_c z + G_n),    do = g h (1 - o),
    df = f' (G_c c_{t-1} + G_n n_{t-1}) sigmoid(-f),    G_{t-1} = f' G,    g_{t-1} = (di, df, dz, do) R^T.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hf_memory.ops._cells import (
    Folded,
    fold_replicas,
    last_step,
    real_part_range,
    state_dtype,
    unfold_replicas,
    weight_gradient,
    without_autocast,
)
from hf_memory.ops._graph import graph_node
from hf_memory.ops._shapes import check_shapes
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend

NO_EXPONENT = -1e38
"""m before the first token: finite, so that m - m is 0."""

SLSTMState = tuple[Tensor, Tensor, Tensor, Tensor]
"""e^{-m} c, e^{-m} n, m and h, each (B, H, P)."""


def slstm_recurrent(
    inputs: Tensor, weight: Tensor, initial_state: SLSTMState | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, SLSTMState]:
    """The definition: one step after the other. Arguments and results are those of :func:`slstm`."""
    inputs, weight, state = _prepared(inputs, weight, initial_state)
    c, n, m, h = state
    steps = []
    for x in inputs.unbind(1):
        i, f, z, o = (x + torch.einsum("bhq,hqgp->bhgp", h, weight)).unbind(-2)
        kept = F.logsigmoid(f) + m
        m = torch.maximum(kept, i).detach()
        c = torch.exp(kept - m) * c + torch.exp(i - m) * torch.tanh(z)
        n = torch.exp(kept - m) * n + torch.exp(i - m)
        h = torch.sigmoid(o) * c / n
        steps.append((c, n, m, h))
    every = [torch.stack(leaf, dim=1) for leaf in zip(*steps, strict=True)]
    return every[3], tuple(last_step(leaf, first, lengths) for leaf, first in zip(every, state, strict=True))


class _SLSTMLoop(torch.autograd.Function):
    """The loop over time in place: thirteen kernels a step forward, six backward, one product for the weight.

    The heads stand where other cells have replicas, and replicas join them.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, sums: Tensor, most: Tensor, h: Tensor, backend: str) -> tuple[Tensor, ...]:
        """Run the recurrence.

        Args:
            x: Inputs (T, G, B, 4 P) of G = R H heads.
            weight: Recurrent weight (G, P, 4 P).
            sums: Held c and n (G, B, 2, P).
            most: m (G, B, P).
            h: Last outputs (G, B, P).
            backend: ``"torch"`` or ``"numba"``.

        Returns:
            Outputs h (T, G, B, P), sums (T, G, B, 2, P), m, and for the backward pass the factors e^{i'} and f' (T, G,
            B, 2, P), tanh(z) beside a one (T, G, B, 2, P), sigmoid(o) and sigmoid(-f).
        """
        output, maxima, opened, closed = (h.new_empty(len(x), *h.shape) for _ in range(4))
        cells, factors, written = (h.new_empty(len(x), *sums.shape) for _ in range(3))
        filled = output, cells, maxima, factors, written, opened
        if backend == "torch":
            _advance(x, weight, sums, most, h, filled, closed)
        else:
            load_kernel("slstm", backend).advance(x, weight, sums, most, h, filled, closed)
        return *filled, closed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, weight, sums, _, h, ctx.backend = inputs
        ctx.save_for_backward(output[0], output[1], *output[3:], weight, sums, h)
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor | None, grad_cells: Tensor | None, *_: None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint gives each tensor out a single time
        grads = [
            torch.zeros_like(steps) if grad is None else grad
            for grad, steps in zip((grad_output, grad_cells), saved[:2], strict=True)
        ]
        axes = (1,) * 8 + (0,) * 3
        x, weight, sums, h = Folded.apply(_slstm_backward, axes, (1, 0, 0, 0), *grads, *saved, ctx.backend)
        return x, weight, sums, None, h, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        named = zip(inputs[:5], in_dims[:5], (1, 0, 0, 0, 0), strict=True)
        folded = [fold_replicas(tensor, dim, info.batch_size, axis) for tensor, dim, axis in named]
        outputs = _SLSTMLoop.apply(*folded, inputs[5])
        return tuple(unfold_replicas(output, info.batch_size, 1) for output in outputs), (1,) * len(outputs)


def _advance(
    x: Tensor, weight: Tensor, sums: Tensor, most: Tensor, h: Tensor, filled: tuple[Tensor, ...], closed: Tensor
) -> None:
    """Run the steps in torch, and fill what :class:`_SLSTMLoop` returns."""
    output, cells, maxima, factors, written, opened = filled
    raw = torch.empty_like(x, memory_format=torch.contiguous_format)
    written[..., 1, :] = 1
    # Every view is made once, before the loop.
    i, f, z, o = (block.unbind(0) for block in raw.unflatten(-1, (4, -1)).unbind(-2))
    add, keep, squashed, cell, normalizer = (
        block.unbind(0) for pair in (factors, written[..., :1, :], cells) for block in pair.unbind(-2)
    )
    wide_add, wide_keep = (block.unbind(0) for block in factors.split(1, dim=-2))
    steps = zip(x.unbind(0), raw.unbind(0), factors.unbind(0), written.unbind(0), cells.unbind(0), strict=True)
    for t, (own, gates, both, pair, now) in enumerate(steps):
        torch.baddbmm(own, h, weight, out=gates)
        kept = F.logsigmoid(f[t]).add_(most)
        most = torch.maximum(kept, i[t], out=maxima[t])
        torch.sub(i[t], most, out=add[t])
        torch.sub(kept, most, out=keep[t])
        both.exp_()
        torch.tanh(z[t], out=squashed[t])
        torch.mul(sums, wide_keep[t], out=now)
        sums = now.addcmul_(pair, wide_add[t])
        torch.sigmoid(o[t], out=opened[t])
        h = torch.div(cell[t], normalizer[t], out=output[t]).mul_(opened[t])
    torch.sigmoid(-raw.unflatten(-1, (4, -1))[..., 1, :], out=closed)


def _slstm_backward(
    grad_output: Tensor,
    grad_cells: Tensor,
    output: Tensor,
    cells: Tensor,
    factors: Tensor,
    written: Tensor,
    opened: Tensor,
    closed: Tensor,
    weight: Tensor,
    sums: Tensor,
    h: Tensor,
    backend: str,
) -> tuple[Tensor, ...]:
    """Gradients of inputs, weight, first sums and first output from those of the outputs and of the sums."""
    before = torch.cat((sums.unsqueeze(0), cells[:-1]))
    add, keep = factors[..., 0, :], factors[..., 1, :]
    squashed, normalizer = written[..., 0, :], cells[..., 1, :]
    # A step's derivatives with respect to its pre-activations are diagonal and known for all steps at once.
    forgetting = before * (keep * closed).unsqueeze(-2)
    grad_x = torch.stack((add * squashed, forgetting[..., 0, :], add * (1 - squashed.square()), output), dim=-2)
    grad_x[..., 3, :].mul_(1 - opened)
    by_normalizer = torch.stack((add, forgetting[..., 1, :]), dim=-2)
    read = torch.stack((opened, -output), dim=-2) / normalizer.unsqueeze(-2)
    grad_h, grad_sums = (grad.clone(memory_format=torch.contiguous_format) for grad in (grad_output, grad_cells))
    first_h, first_sums = torch.zeros_like(h), torch.zeros_like(sums)
    slopes = grad_x.flatten(-2)
    arrays = slopes, weight, by_normalizer, read, factors, grad_h, grad_sums, first_h, first_sums
    if backend == "torch":
        _accumulate(*arrays)
    else:
        load_kernel("slstm", backend).accumulate(*arrays)
    return slopes, weight_gradient(slopes, output, h).mT, first_sums, first_h


def _accumulate(
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
    """Run the steps from the end in torch: slopes become gradients, and gradients all that arrives, in place."""
    grad_x, back = slopes.unflatten(-1, (4, -1)), weight.mT.contiguous()
    earlier_h, earlier_sums = (first_h, *grad_h.unbind(0)), (first_sums, *grad_sums.unbind(0))
    by_sums, by_both, by_h, from_c, from_n, kept = (
        part.unbind(0)
        for part in (
            grad_x[..., :3, :],
            grad_x[..., :2, :],
            grad_x[..., 3:, :],
            *grad_sums.split(1, dim=-2),
            factors[..., 1:, :],
        )
    )
    reads, at_h, by_normalizer, at_all = (
        read.unbind(0),
        grad_h.unsqueeze(-2).unbind(0),
        by_normalizer.unbind(0),
        slopes.unbind(0),
    )
    for t in range(len(slopes) - 1, -1, -1):
        at_sums = earlier_sums[t + 1].addcmul_(reads[t], at_h[t])
        by_sums[t].mul_(from_c[t])
        by_h[t].mul_(at_h[t])
        by_both[t].addcmul_(by_normalizer[t], from_n[t])
        earlier_sums[t].addcmul_(at_sums, kept[t])
        earlier_h[t].baddbmm_(at_all[t], back)


@graph_node("inputs")
def slstm(
    inputs: Tensor,
    weight: Tensor,
    initial_state: SLSTMState | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, SLSTMState]:
    """Run an sLSTM over a sequence.

    Args:
        inputs: Pre-activations x (B, T, H, 4, P) without the recurrent part, biases included: blocks i, f, z, o.
        weight: Recurrent weight R (H, P, 4, P): from a cell of the head, to a block of another.
        initial_state: e^{-m} c, e^{-m} n, m and h before the first step, each (B, H, P); empty if None.
        lengths: Steps that count in each row (B,), int64.
        backend: ``"auto"``, ``"torch"`` or ``"numba"``.

    Returns:
        Outputs h (B, T, H, P) in the dtype of the inputs, and the four tensors of the state at each row's own length.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    backend = resolve_backend("slstm", backend, device=inputs.device, dtype=state_dtype(inputs))
    with without_autocast(inputs):
        x, weight, state = _prepared(inputs, weight, initial_state)
        c, n, most, h = (leaf.transpose(0, 1) for leaf in state)
        loop = _SLSTMLoop.apply(
            x.flatten(-2).permute(1, 2, 0, 3), weight.flatten(-2), torch.stack((c, n), dim=-2), most, h, backend
        )
        output, cells, maxima = (steps.movedim(2, 0) for steps in loop[:3])
        every = (*cells.unbind(-2), maxima, output)
        final = tuple(last_step(steps, first, lengths) for steps, first in zip(every, state, strict=True))
        return output.to(inputs.dtype), final


def slstm_spectrum(inputs: Tensor, weight: Tensor) -> Tensor:
    """Smallest and largest real part (B, T, 2) of the eigenvalues of d(c, n, h)_t / d(c, n, h)_{t-1} along a run.

    A Jacobian is that of one head, with c and n in units of e^{m_t} before and after the step.
    """
    x, weight, state = _prepared(inputs, weight, None)
    c, n, m, h = (leaf.transpose(0, 1) for leaf in state)
    run = _SLSTMLoop.apply(
        x.flatten(-2).permute(1, 2, 0, 3), weight.flatten(-2), torch.stack((c, n), dim=-2), m, h, "torch"
    )
    output, cells, _, factors, written, opened, closed = run
    before = torch.cat((torch.stack((c, n), dim=-2).unsqueeze(0), cells[:-1])) * factors[..., 1:, :]
    add, z, forget = factors[..., 0, :], written[..., 0, :], 1 - closed
    zero = torch.zeros_like(add)
    to_c = torch.stack((add * z, before[..., 0, :] * closed, add * (1 - z.square()), zero), dim=-1)
    to_n = torch.stack((add, before[..., 1, :] * closed, zero, zero), dim=-1)
    to_h = torch.stack((zero, zero, zero, output * (1 - opened)), dim=-1)
    read_c, read_n = opened / cells[..., 1, :], -output / cells[..., 1, :]
    heads = torch.arange(len(h), device=x.device).repeat_interleave(len(x)).repeat(x.shape[1])
    to_c, to_n, to_h, read_c, read_n, forget = (
        part.transpose(1, 2).flatten(0, 2) for part in (to_c, to_n, to_h, read_c, read_n, forget)
    )
    size = h.shape[-1]

    def jacobian(rows: slice) -> Tensor:
        blocks = weight.permute(0, 3, 1, 2)[heads[rows]]  # (tokens, to, from, block)
        c_h, n_h, h_h = ((blocks * part[rows].unsqueeze(-2)).sum(-1) for part in (to_c, to_n, to_h))
        kept, none = torch.diag_embed(forget[rows]), torch.zeros_like(c_h)
        h_c, h_n = (torch.diag_embed(part[rows] * forget[rows]) for part in (read_c, read_n))
        h_h = h_h + read_c[rows].unsqueeze(-1) * c_h + read_n[rows].unsqueeze(-1) * n_h
        rows_of = (kept, none, c_h), (none, kept, n_h), (h_c, h_n, h_h)
        return torch.cat([torch.cat(row, dim=-1) for row in rows_of], dim=-2)

    ranges = real_part_range(jacobian, len(heads), 3 * size).unflatten(0, (x.shape[1], len(x), len(h)))
    return torch.stack((ranges[..., 0].amin(-1), ranges[..., 1].amax(-1)), dim=-1).transpose(0, 1)


def _prepared(
    inputs: Tensor, weight: Tensor, initial_state: SLSTMState | None
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Check the shapes, and bring everything to the dtype of the state."""
    batch, _, heads, _, size = inputs.shape
    leaves = initial_state or (None,) * 4
    state = {name: (leaf, (batch, heads, size)) for name, leaf in zip("cnmh", leaves, strict=True)}
    check_shapes(
        {"inputs": (inputs, (*inputs.shape[:3], 4, size)), "weight": (weight, (heads, size, 4, size)), **state}
    )
    dtype = state_dtype(inputs)
    if initial_state is None:
        empty = inputs.new_zeros(batch, heads, size, dtype=dtype)
        leaves = empty, empty, torch.full_like(empty, NO_EXPONENT), empty
    c, n, m, h = (leaf.to(dtype) for leaf in leaves)
    return inputs.to(dtype), weight.to(dtype), (c, n, m.detach(), h)
