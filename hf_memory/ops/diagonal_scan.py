r"""Diagonal recurrence, real or complex: every channel remembers by a factor of its own.

    h_t = a_t * h_{t-1} + b_t                                                                    (elementwise)

    a_t  decay   (B, T, ...)    any number: zero, negative, complex, above one
    b_t  inputs  (B, T, ...)
    h_t  states  (B, T, ...)    h_0 is the initial state (B, ...)

The backward pass is the same recurrence run from the end: with g_t the gradient that arrives at h_t,

    G_t = g_t + conj(a_{t+1}) G_{t+1},   db_t = G_t,   da_t = G_t conj(h_{t-1}),   dh_0 = conj(a_1) G_1,

so that both passes are one loop in place, linear in T in time and memory, and exact for every decay. (Blelloch, 1990,
"Prefix sums and their applications", gives the scan of logarithmic depth; on a CPU it is bound by memory and loses.)
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hf_memory.ops._graph import graph_node
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend


@graph_node("inputs", "decay")
def diagonal_scan(
    decay: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    forget_gate: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run h_t = a_t * h_{t-1} + b_t over time.

    Args:
        decay: a (B, T, ...); the first two axes may have length 1 where it is the same for every row or step.
        inputs: b (B, T, ...), of the same trailing shape.
        initial_state: h_0 (B, ...), zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        forget_gate: Whether every decay is known to lie between 0 and 1, which some kernels need.
        backend: ``"auto"``, ``"torch"``, ``"numba"`` or ``"triton"``.

    Returns:
        The states (B, T, ...) in the dtype of ``inputs`` (complex where the decay is), and the state (B, ...) at each
        row's own length, in at least float32.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    decay, inputs, initial_state, output_dtype = _prepared(decay, inputs, initial_state)
    facts = {"device": inputs.device, "dtype": inputs.dtype, "forget_gate": forget_gate}
    backend = resolve_backend("diagonal_scan", backend, **facts)
    if backend == "fla":
        states = load_kernel("diagonal_scan", backend).scan(decay, inputs, initial_state)
    else:
        states = _Scan.apply(decay, inputs, initial_state, backend)
    return states.to(output_dtype), _state_at(states, initial_state, lengths)


def diagonal_scan_recurrent(
    decay: Tensor, inputs: Tensor, initial_state: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; the definition that ``diagonal_scan`` matches, same arguments and results."""
    decay, inputs, state, output_dtype = _prepared(decay, inputs, initial_state)
    states = []
    for t, (a, b) in enumerate(zip(decay.expand_as(inputs).unbind(1), inputs.unbind(1), strict=True)):
        candidate = a * state + b
        if lengths is not None:
            running = (lengths > t).view(-1, *[1] * (state.ndim - 1))
            candidate = torch.where(running, candidate, state)
        state = candidate
        states.append(state)
    return torch.stack(states, dim=1).to(output_dtype), state


def _prepared(
    decay: Tensor, inputs: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """Check shapes and bring everything to the dtype of the state."""
    batch, time, *channels = inputs.shape
    if decay.shape[2:] != inputs.shape[2:] or decay.shape[0] not in (1, batch) or decay.shape[1] not in (1, time):
        raise ValueError(
            f"decay must have shape {(batch, time, *channels)}, or 1 in its first two axes; got {tuple(decay.shape)}"
        )
    output_dtype = torch.promote_types(inputs.dtype, decay.dtype) if decay.is_complex() else inputs.dtype
    dtype = torch.promote_types(torch.promote_types(inputs.dtype, decay.dtype), torch.float32)
    if initial_state is None:
        initial_state = inputs.new_zeros(batch, *channels, dtype=dtype)
    elif initial_state.shape != (batch, *channels):
        raise ValueError(f"initial_state must have shape {(batch, *channels)}; got {tuple(initial_state.shape)}")
    return decay.to(dtype), inputs.to(dtype), initial_state.to(dtype), output_dtype


def _state_at(states: Tensor, initial_state: Tensor, lengths: Tensor | None) -> Tensor:
    """Pick from states (B, T, ...) the one after ``lengths`` steps; no step leaves the initial state."""
    if lengths is None:
        return states[:, -1].clone()  # a view would keep every step alive in the cache
    rows = torch.arange(states.shape[0], device=states.device)
    last = states[rows, (lengths - 1).clamp(min=0)]
    return torch.where((lengths > 0).view(-1, *[1] * (last.ndim - 1)), last, initial_state)


class _Scan(Function):
    """h_t = a_t h_{t-1} + b_t for all t at once, as one node of the graph."""

    @staticmethod
    def forward(decay: Tensor, inputs: Tensor, initial_state: Tensor, backend: str) -> Tensor:
        if backend != "torch":
            kernel = load_kernel("diagonal_scan", backend)
            rows = (_as_rows(decay, 2), _as_rows(inputs, 2), _as_rows(initial_state, 1))
            return kernel.scan(*rows).view(inputs.shape)
        return _scan_in_place(decay, inputs, initial_state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        decay, _, initial_state, ctx.backend = inputs
        ctx.save_for_backward(decay, initial_state, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        decay, initial_state, states = ctx.saved_tensors
        total = _ReverseScan.apply(decay, grad, ctx.backend)
        grad_decay = grad_initial = None
        if ctx.needs_input_grad[0]:
            previous = torch.cat((initial_state.unsqueeze(1), states[:, :-1]), dim=1)
            grad_decay = (total * previous.conj()).sum_to_size(decay.shape)
        if ctx.needs_input_grad[2]:
            grad_initial = decay[:, 0].conj() * total[:, 0]
        return grad_decay, total, grad_initial, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, decay: Tensor, inputs: Tensor, initial_state: Tensor, backend: str
    ) -> tuple[Tensor, int]:
        decay = _replicas_to(2, decay, in_dims[0], info.batch_size)
        inputs = _replicas_to(2, inputs, in_dims[1], info.batch_size)
        initial_state = _replicas_to(1, initial_state, in_dims[2], info.batch_size)
        return _Scan.apply(decay, inputs, initial_state, backend), 2


class _ReverseScan(Function):
    """G_t = g_t + conj(a_{t+1}) G_{t+1} for all t at once: the adjoint of the scan, whose own adjoint is the scan."""

    @staticmethod
    def forward(decay: Tensor, grads: Tensor, backend: str) -> Tensor:
        if backend != "torch":
            kernel = load_kernel("diagonal_scan", backend)
            return kernel.reverse_scan(_as_rows(decay, 2), _as_rows(grads, 2)).view(grads.shape)
        return _reverse_scan_in_place(decay, grads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        decay, _, ctx.backend = inputs
        ctx.save_for_backward(decay, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        decay, total = ctx.saved_tensors
        start = torch.zeros_like(grad[:, 0])
        adjoint = _Scan.apply(decay, grad, start, ctx.backend)
        grad_decay = None
        if ctx.needs_input_grad[0]:
            previous = torch.cat((start.unsqueeze(1), adjoint[:, :-1]), dim=1)
            grad_decay = (total * previous.conj()).sum_to_size(decay.shape)
        return grad_decay, adjoint, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, decay: Tensor, grads: Tensor, backend: str) -> tuple[Tensor, int]:
        decay = _replicas_to(2, decay, in_dims[0], info.batch_size)
        grads = _replicas_to(2, grads, in_dims[1], info.batch_size)
        return _ReverseScan.apply(decay, grads, backend), 2


def _replicas_to(axis: int, tensor: Tensor, replica_axis: int | None, replicas: int) -> Tensor:
    """Fold the replica axis into the channels, which the recurrence treats one by one."""
    if replica_axis is not None:
        return tensor.movedim(replica_axis, axis)
    shape = tensor.shape
    return tensor.unsqueeze(axis).expand(*shape[:axis], replicas, *shape[axis:])


def _as_rows(tensor: Tensor, axis: int) -> Tensor:
    """Flatten the channels, the axes from ``axis`` on, into one."""
    return tensor.reshape(*tensor.shape[:axis], -1)


def _scan_in_place(decay: Tensor, inputs: Tensor, initial_state: Tensor) -> Tensor:
    states = inputs.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # time major: each step is one block
    factors = decay.transpose(0, 1).contiguous().expand(states.shape[0], *[-1] * (decay.ndim - 1))
    previous = initial_state
    for factor, current in zip(factors.unbind(0), states.unbind(0), strict=True):
        previous = current.addcmul_(factor, previous)
    return states.transpose(0, 1)


def _reverse_scan_in_place(decay: Tensor, grads: Tensor) -> Tensor:
    totals = grads.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    factors = decay.transpose(0, 1).conj().resolve_conj().contiguous()
    factors = factors.expand(totals.shape[0], *[-1] * (decay.ndim - 1))
    steps = totals.unbind(0)
    for t in range(len(steps) - 2, -1, -1):
        steps[t].addcmul_(factors[t + 1], steps[t + 1])
    return totals.transpose(0, 1)
