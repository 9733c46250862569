"""The loop over time behind :mod:`hf_memory.ops.nru`, in place, with its backward pass.

Symbols as there, with side = k r. With a_i = max(|p_i|_5 |q|_5, floor) / b and b = max(|q|_5, sqrt(floor)) each vector
is divided by a number of its own size, P_i = p_i / a_i and Q = q / b, before any product, so that nothing leaves the
range of the dtype where the vectors do not. With c_i = +-scale gain_i the memory receives u Q^T, u = sum_i c_i P_i,
once for writing and once for erasing. For D the gradient (r, side) at the memory,

    du = D Q,   dq = D^T u / b - (sum_i e_i) rho(q),   dp_i = c_i du / a_i - e_i rho(p_i),   dgain_i = +-scale dc_i,
    dc_i = du . P_i,   e_i = c_i dc_i where |p_i|_5 |q|_5 is above the floor, else 0,   rho(p) = p^3 |p| / |p|_5^5.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_memory.ops._cells import Folded, fold_replicas, replica_rows, unfold_replicas, weight_gradient
from hf_memory.ops.backends.dispatch import load_kernel

NORM_FLOOR = 1e-6
"""Smallest 5-norm that a direction is divided by: gradients of a vanishing direction stay bounded."""
NORM_FLOOR_ROOT = 1e-3
LAYER_NORM_EPS = 1e-5


class Write(NamedTuple):
    """What a step's gains and directions (..., 2 k + 4 side) mean; the axis of 2 is writing, erasing."""

    p: Tensor  # P_i (..., 2, k, r)
    q: Tensor  # Q (..., 2, side)
    divisor_p: Tensor  # a_i (..., 2, k, 1)
    divisor_q: Tensor  # b (..., 2, 1)
    above_floor: Tensor  # (..., 2, k)
    coefficient: Tensor  # c_i (..., 2, k)
    u: Tensor  # (..., 2, r)


def five_norm(vectors: Tensor) -> Tensor:
    """The 5-norm over the last axis (..., 1), by way of the largest number: fifth powers of float32 end at 5e7^5."""
    largest = vectors.abs().amax(-1, keepdim=True)
    scaled = vectors / largest.clamp_min(torch.finfo(vectors.dtype).tiny)
    return torch.linalg.vector_norm(scaled, 5, dim=-1, keepdim=True) * largest


def read_gates(gates: Tensor, signs: Tensor, num_heads: int, relu_gains: bool) -> Write:
    """Split gates, sign the gains, and divide the directions."""
    gains, p, q = split_gates(gates, num_heads)
    norm_p, norm_q = five_norm(p), five_norm(q)
    divisor_q = norm_q.clamp_min(NORM_FLOOR_ROOT)
    # b a_i = max(|p_i| |q|, floor), and no product of two norms is ever formed.
    product = norm_p * (norm_q / divisor_q).unsqueeze(-2)
    floor = (NORM_FLOOR / divisor_q).clamp_min(torch.finfo(gates.dtype).tiny).unsqueeze(-2)
    divisor_p = torch.maximum(product, floor)
    coefficient = signs * (gains.relu() if relu_gains else gains)
    p, q = p / divisor_p, q / divisor_q
    u = (coefficient.unsqueeze(-1) * p).sum(-2)
    return Write(p, q, divisor_p, divisor_q, (product > floor).squeeze(-1), coefficient, u)


def steepness(directions: Tensor) -> Tensor:
    """rho = p^3 |p| / |p|_5^5 over the last axis, 0 where the norm is 0."""
    norms = five_norm(directions).clamp_min(torch.finfo(directions.dtype).tiny)
    scaled = directions / norms
    return scaled * scaled * scaled * scaled.abs() / norms


class NRULoop(torch.autograd.Function):
    """All steps forward, then all steps backward, without a graph."""

    @staticmethod
    def forward(
        pre: Tensor,
        weight_hh: Tensor,
        weight_memory: Tensor,
        bias_memory: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        initial: Tensor,
        num_heads: int,
        scale: float,
        relu_gains: bool,
        backend: str,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run the recurrence.

        Args:
            pre: Input part W x + b (T, R, B, D).
            weight_hh: U (R, D, D + M).
            weight_memory: G (R, 2 k + 4 side, D + M).
            bias_memory: b_G (R, 1, 2 k + 4 side).
            norm_weight: Scale of the layer norm (R, 1, D), or None.
            norm_bias: Its shift (R, 1, D), or None.
            initial: h and m (R, B, D + M).
            num_heads: k.
            scale: 1 for a sum over the heads, 1 / k for a mean.
            relu_gains: Whether gains pass through a ReLU.
            backend: ``"torch"``, or that of a kernel which writes to the memory.

        Returns:
            h and m after every step (T, R, B, D + M); gates (T, R, B, 2 k + 4 side); and of the layer norm what it gave
            before scale and shift (T, R, B, D) and the inverse deviations (T, R, B, 1), both empty without one.
        """
        size, signs = pre.shape[-1], _signs(pre, scale)
        kernel = load_kernel("nru", backend) if backend != "torch" else None
        constants = kernel.constants(pre, scale, NORM_FLOOR) if kernel is not None else None
        state = initial.clone(memory_format=torch.contiguous_format)
        h, m = state[..., :size], state[..., size:]
        transposed_hh, transposed_memory = weight_hh.mT.contiguous(), weight_memory.mT.contiguous()
        states = state.new_empty(len(pre), *state.shape)
        gates = state.new_empty(len(pre), *state.shape[:-1], weight_memory.shape[1])
        normed, deviations = [], []
        for t, a in enumerate(pre.unbind(0)):
            a = torch.baddbmm(a, state, transposed_hh)
            if norm_weight is not None:
                scaled, _, deviation = torch.native_layer_norm(a, a.shape[-1:], None, None, LAYER_NORM_EPS)
                normed.append(scaled)
                deviations.append(deviation)
                a = torch.addcmul(norm_bias, scaled, norm_weight)
            torch.clamp_min(a, 0, out=h)
            torch.baddbmm(bias_memory, state, transposed_memory, out=gates[t])
            if kernel is not None:
                kernel.write(gates[t], m, constants, num_heads, relu_gains)
            else:
                write = read_gates(gates[t], signs, num_heads, relu_gains)
                square = m.unflatten(-1, (write.u.shape[-1], -1))
                for u, q in zip(write.u.unbind(-2), write.q.unbind(-2), strict=True):
                    square.addcmul_(u.unsqueeze(-1), q.unsqueeze(-2))
            states[t] = state
        none = state.new_empty(0, len(state), 0, 0)
        return states, gates, torch.stack(normed) if normed else none, torch.stack(deviations) if normed else none

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, weight_hh, weight_memory, _, norm_weight, _, initial, *ctx.options = inputs
        ctx.save_for_backward(*output, weight_hh, weight_memory, norm_weight, initial)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint gives each tensor out a single time
        grad = torch.zeros_like(saved[0]) if grad is None else grad
        in_axes, out_axes = (1, 1, 1, 1, 1, 0, 0, 0, 0), (1, 0, 0, 0, 0, 0, 0)
        grads = list(Folded.apply(_nru_backward, in_axes, out_axes, grad, *saved, *ctx.options))
        if saved[6] is None:  # no norm
            grads[4:6] = None, None
        return *grads, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        axes = (1, 0, 0, 0, 0, 0, 0)
        named = zip(inputs[:7], in_dims[:7], axes, strict=True)
        folded = [fold_replicas(tensor, in_dim, info.batch_size, axis) for tensor, in_dim, axis in named]
        outputs = NRULoop.apply(*folded, *inputs[7:])
        return tuple(unfold_replicas(output, info.batch_size, 1) for output in outputs), (1, 1, 1, 1)


def _nru_backward(
    grad: Tensor,
    states: Tensor,
    gates: Tensor,
    normed: Tensor,
    deviations: Tensor,
    weight_hh: Tensor,
    weight_memory: Tensor,
    norm_weight: Tensor | None,
    initial: Tensor,
    num_heads: int,
    scale: float,
    relu_gains: bool,
    backend: str,
) -> tuple[Tensor, ...]:
    """Gradients of all tensors of the forward pass from that of h and m (T, R, B, D + M); empty ones for no norm."""
    size = weight_hh.shape[1]
    write_backward = _write_gradient(gates, num_heads, scale, relu_gains, backend)
    positive = states[..., :size] > 0
    grad_gates, grad_a = torch.empty_like(gates), torch.empty_like(states[..., :size])
    grad_scaled = torch.empty_like(grad_a) if norm_weight is not None else grad_a
    total = torch.zeros_like(initial)
    for t in range(len(states) - 1, -1, -1):
        total = (total + grad[t]).contiguous()
        write_backward(t, total[..., size:], grad_gates[t])
        total = torch.baddbmm(total, grad_gates[t], weight_memory)
        torch.mul(total[..., :size], positive[t], out=grad_scaled[t])
        if norm_weight is not None:
            grad_a[t] = _norm_backward(grad_scaled[t] * norm_weight, normed[t], deviations[t])
        total[..., :size] = 0
        total = torch.baddbmm(total, grad_a[t], weight_hh)
    grad_memory_h = replica_rows(grad_gates).mT @ replica_rows(states[..., :size])
    grad_memory_m = weight_gradient(grad_gates, states[..., size:], initial[..., size:])
    grad_norm = [weight_hh.new_empty(len(weight_hh), 0)] * 2
    if norm_weight is not None:
        grad_norm = [g.sum((0, 2)).unsqueeze(1) for g in (grad_scaled * normed, grad_scaled)]
    return (
        grad_a,
        weight_gradient(grad_a, states, initial),
        torch.cat([grad_memory_h, grad_memory_m], dim=-1),
        grad_gates.sum((0, 2)).unsqueeze(1),
        *grad_norm,
        total,
    )


def _write_gradient(
    gates: Tensor, num_heads: int, scale: float, relu_gains: bool, backend: str
) -> Callable[[int, Tensor, Tensor], None]:
    """What fills the gradient of a step's gates from that of the memory after it."""
    if backend != "torch":
        kernel, gates = load_kernel("nru", backend), gates.contiguous()  # saved ones may be expanded to replicas
        options = (kernel.constants(gates, scale, NORM_FLOOR), num_heads, relu_gains)
        return lambda t, grad_memory, out: kernel.write_gradient(gates[t], grad_memory, out, *options)
    signs = _signs(gates, scale)
    write, (gains, p, q) = read_gates(gates, signs, num_heads, relu_gains), split_gates(gates, num_heads)
    factor = signs.expand_as(gains) * (gains > 0) if relu_gains else signs.expand_as(gains)
    rising = write.coefficient * write.above_floor
    rho_p, rho_q = steepness(p), steepness(q)

    def step(t: int, grad_memory: Tensor, out: Tensor) -> None:
        parts = split_gates(out, num_heads)
        _write_backward(grad_memory, _at(write, t), factor[t], rising[t], rho_p[t], rho_q[t], parts)

    return step


def _signs(like: Tensor, scale: float) -> Tensor:
    """+scale for writing, -scale for erasing (2, 1); filled on the device, not copied to it."""
    return torch.cat([like.new_full((1, 1), scale), like.new_full((1, 1), -scale)])


def _at(write: Write, t: int) -> Write:
    """One step of what :func:`read_gates` gave for all steps."""
    return Write(*(tensor[t] for tensor in write))


def split_gates(gates: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views on gains (..., 2, k), p (..., 2, k, r) and q (..., 2, side)."""
    gains, directions = gates[..., : 2 * num_heads], gates[..., 2 * num_heads :]
    p, q = directions.chunk(2, dim=-1)
    return gains.unflatten(-1, (2, -1)), p.unflatten(-1, (2, num_heads, -1)), q.unflatten(-1, (2, -1))


def _write_backward(
    grad_memory: Tensor,
    write: Write,
    factor: Tensor,
    rising: Tensor,
    rho_p: Tensor,
    rho_q: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Fill the gradient of one step's gains, p and q from that of the memory (R, B, M)."""
    gains, p, q = out
    square = grad_memory.unflatten(-1, (write.u.shape[-1], -1))
    grad_u = write.q @ square.mT
    grad_c = (grad_u.unsqueeze(-2) * write.p).sum(-1)
    pulled = grad_c * rising
    torch.mul(grad_c, factor, out=gains)
    torch.mul(write.coefficient.unsqueeze(-1) / write.divisor_p, grad_u.unsqueeze(-2), out=p)
    p.addcmul_(pulled.unsqueeze(-1), rho_p, value=-1)
    along_q = write.u @ square / write.divisor_q
    torch.addcmul(along_q, pulled.sum(-1, keepdim=True), rho_q, value=-1, out=q)


def _norm_backward(grad: Tensor, normed: Tensor, deviation: Tensor) -> Tensor:
    """Gradient at the input of a layer norm from that at its output before scale and shift."""
    along = (grad * normed).mean(-1, keepdim=True)
    return deviation * (grad - grad.mean(-1, keepdim=True) - normed * along)
