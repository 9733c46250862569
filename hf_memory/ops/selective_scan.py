"""The selective scan of Mamba (Gu and Dao, 2023, equation 2 with the discretisation of section 3.2).

    h_t[d, n] = a_t[d, n] h_{t-1}[d, n] + dt_t[d] x_t[d] B_t[n]        a_t = exp(dt_t[d] A[d, n])
    y_t[d]    = sum_n C_t[n] h_t[d, n]

With ``negative_eigenvalues``, a_t = 2 exp(dt_t A) - 1 in (-1, 1) (Grazzi et al., 2025): the state can change
sign, which is what parity needs. The input term stays as it is.

A step with dt = 0 is the identity in both cases, which is how padding leaves the state alone.

The fast form never holds (B, T, D, N) for the whole sequence: it walks through blocks of time, keeps the state at their
boundaries only, and its backward pass rebuilds the states of one block at a time. On a CPU with numba the walk is a
compiled loop.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._graph import graph_node
from hf_memory.ops._replicas import fold_into_batch
from hf_memory.ops._shapes import check_shapes
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend

# Numbers of one block's (time, B, N, D) table: small enough for the cache of a core, large enough that a block's
# elementwise kernels outweigh their launch. Blocks are never shorter than _BLOCK_STEPS, as one state is kept for each.
_BLOCK_NUMEL, _BLOCK_STEPS = 1 << 18, 16


@graph_node("x", "dt", "B", "C")
def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    negative_eigenvalues: bool = False,
    return_final_state: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Run the recurrence over time.

    Args:
        x: Inputs (B, T, D).
        dt: Time steps (B, T, D), at least 0.
        A: Rates of the state (D, N), below 0.
        B: Input weights (B, T, N).
        C: Output weights (B, T, N).
        initial_state: State before the first step (B, D, N); zeros if None.
        lengths: Real steps in each row (B,), int64; None where all T are real.
        negative_eigenvalues: Take a = 2 exp(dt A) - 1 in place of exp(dt A).
        return_final_state: Whether the state is wanted.
        backend: ``"auto"`` or a name of :mod:`hf_memory.ops.backends.dispatch`.

    Returns:
        Outputs (B, T, D) in the dtype of ``x``, and the state after each row's last real step (B, D, N), in at least
        float32, or None.

    Raises:
        ValueError: Shapes disagree, or the backend is unknown.
    """
    _check(x, dt, A, B, C, initial_state)
    dtype = torch.promote_types(x.dtype, torch.float32)
    inputs = [tensor.to(dtype) for tensor in (x, dt, A, B, C)]
    if lengths is not None:
        inputs[1] = inputs[1].masked_fill(_padding(lengths, x.shape[1]).unsqueeze(-1), 0)
    facts = {
        "device": x.device,
        "dtype": dtype,
        "state_size": A.shape[1],
        "negative_eigenvalues": negative_eigenvalues,
        "has_initial_state": initial_state is not None,
        "state_needs_grad": return_final_state and torch.is_grad_enabled(),
    }
    backend = resolve_backend("selective_scan", backend, **facts)
    if backend == "mamba_ssm":
        y, state = load_kernel("selective_scan", backend).selective_scan(*inputs)
        return y.to(x.dtype), state if return_final_state else None
    # Inside, D is the last axis, as rows of N = 16 numbers are too short for vectorised kernels, and A is one per row,
    # so that replicas fold into the batch.
    inputs[2] = inputs[2].t().expand(len(x), -1, -1)
    state = _initial(initial_state, x, A, dtype).transpose(1, 2)
    y, state, _ = _SelectiveScan.apply(*inputs, state, negative_eigenvalues, backend)
    return y.to(x.dtype), state.transpose(1, 2) if return_final_state else None


def selective_scan_recurrent(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    negative_eigenvalues: bool = False,
) -> tuple[Tensor, Tensor]:
    """The definition, one step at a time. Arguments and results are those of :func:`selective_scan`."""
    _check(x, dt, A, B, C, initial_state)
    dtype = torch.promote_types(x.dtype, torch.float32)
    state, A = _initial(initial_state, x, A, dtype), A.to(dtype)
    outputs = []
    for t, step in enumerate(zip(*(tensor.to(dtype).unbind(1) for tensor in (x, dt, B, C)), strict=True)):
        x_t, dt_t, B_t, C_t = step
        a_t = torch.exp(dt_t.unsqueeze(-1) * A)
        if negative_eigenvalues:
            a_t = 2 * a_t - 1
        new = a_t * state + (dt_t * x_t).unsqueeze(-1) * B_t.unsqueeze(1)
        outputs.append((new * C_t.unsqueeze(1)).sum(-1))
        state = new if lengths is None else torch.where((lengths > t).view(-1, 1, 1), new, state)
    return torch.stack(outputs, dim=1).to(x.dtype), state


class _SelectiveScan(Function):
    """The recurrence in blocks of time. Shapes: A and states (B, N, D), the others (B, T, ...), all in one dtype.

    The third output is the state before each block (B, blocks, N, D), for the backward pass.
    """

    @staticmethod
    def forward(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, negative: bool, backend: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        if backend != "torch":
            return load_kernel("selective_scan", backend).scan(x, dt, A, B, C, initial_state, negative)
        x, dt, B, C = (tensor.transpose(0, 1).contiguous() for tensor in (x, dt, B, C))
        y, states, blocks = torch.empty_like(x), initial_state.unsqueeze(0), _blocks(x, A)
        starts = torch.empty(len(blocks), *A.shape, dtype=x.dtype, device=x.device)
        with without_autocast(x):
            for block, start in zip(blocks, starts.unbind(0), strict=True):
                start.copy_(states[-1])
                states, _, _ = _block_states(x[block], dt[block], A, B[block], start, negative)
                y[block] = torch.matmul(C[block].unsqueeze(-2), states).squeeze(-2)
        return y.transpose(0, 1), states[-1].clone(), starts.transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, dt, A, B, C, _, ctx.negative, ctx.backend = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(x, dt, A, B, C, output[2])

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_state: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grads = _SelectiveScanGradient.apply(*ctx.saved_tensors, grad_y, grad_state, ctx.negative, ctx.backend)
        return *grads, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return fold_into_batch(_SelectiveScan, info.batch_size, in_dims, inputs)


class _SelectiveScanGradient(Function):
    """Gradients of :class:`_SelectiveScan`: a Function of its own, so that it can be folded under ``vmap`` as well."""

    @staticmethod
    def forward(
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        starts: Tensor,
        grad_y: Tensor,
        grad_state: Tensor,
        negative: bool,
        backend: str,
    ) -> tuple[Tensor, ...]:
        if backend != "torch":
            kernel = load_kernel("selective_scan", backend)
            return kernel.gradient(x, dt, A, B, C, starts, grad_y, grad_state, negative)
        x, dt, B, C, grad_y = (tensor.transpose(0, 1).contiguous() for tensor in (x, dt, B, C, grad_y))
        grads = [torch.empty_like(tensor) for tensor in (x, dt, B, C)]
        grad_A, carry = torch.zeros_like(A, memory_format=torch.contiguous_format), grad_state
        with without_autocast(x):
            for block, start in reversed(list(zip(_blocks(x, A), starts.unbind(1), strict=True))):
                inputs = [tensor[block] for tensor in (x, dt, B, C, grad_y)]
                outs = [grad[block] for grad in grads]
                carry = _block_gradient(inputs, A, start, carry, negative, outs, grad_A)
        grad_x, grad_dt, grad_B, grad_C = (tensor.transpose(0, 1) for tensor in grads)
        return grad_x, grad_dt, grad_A, grad_B, grad_C, carry

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("selective_scan has no second derivative; selective_scan_recurrent has one")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return fold_into_batch(_SelectiveScanGradient, info.batch_size, in_dims, inputs)


def _block_states(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, state: Tensor, negative: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """States after each step of a block (time, B, N, D), with exp(dt A) and a."""
    decay = torch.exp(dt.unsqueeze(-2) * A)
    a = 2 * decay - 1 if negative else decay
    states = (dt * x).unsqueeze(-2) * B.unsqueeze(-1)
    for a_t, h_t in zip(a.unbind(0), states.unbind(0), strict=True):
        state = h_t.addcmul_(a_t, state)
    return states, decay, a


def _block_gradient(
    inputs: list[Tensor],
    A: Tensor,
    start: Tensor,
    carry: Tensor,
    negative: bool,
    outs: list[Tensor],
    grad_A: Tensor,
) -> Tensor:
    """Write a block's gradients into ``outs`` (of x, dt, B, C), add to ``grad_A``, return that of the state before.

    ``inputs`` are x, dt, B, C and the gradient of y.
    """
    x, dt, B, C, grad_y = inputs
    states, decay, a = _block_states(x, dt, A, B, start, negative)
    grad_x, grad_dt, grad_B, grad_C = outs
    grad_C.copy_(torch.matmul(states, grad_y.unsqueeze(-1)).squeeze(-1))
    # grad[t] becomes all that arrives at h_t: G_t = C_t dy_t + a_{t+1} G_{t+1}; `carry` is the last term.
    grad = C.unsqueeze(-1) * grad_y.unsqueeze(-2)
    grad[-1] += carry
    factors, steps = a.unbind(0), grad.unbind(0)
    for t in range(len(steps) - 2, -1, -1):
        steps[t].addcmul_(factors[t + 1], steps[t + 1])
    carry = factors[0] * steps[0]
    u = dt * x
    grad_u = torch.matmul(B.unsqueeze(-2), grad).squeeze(-2)
    grad_B.copy_(torch.matmul(grad, u.unsqueeze(-1)).squeeze(-1))
    torch.mul(grad_u, dt, out=grad_x)
    # From here on `grad` is the gradient of the exponent dt A: da/d(exponent) is exp(dt A), or twice that.
    grad.mul_(decay)
    grad[0].mul_(start)
    grad[1:].mul_(states[:-1])
    if negative:
        grad.mul_(2)
    torch.addcmul((grad * A).sum(-2), grad_u, x, out=grad_dt)
    grad_A.add_(grad.mul_(dt.unsqueeze(-2)).sum(0))
    return carry


def _blocks(x: Tensor, A: Tensor) -> list[slice]:
    """Slices of time whose (time, B, N, D) tables hold about ``_BLOCK_NUMEL`` numbers."""
    size = max(_BLOCK_STEPS, _BLOCK_NUMEL // A.numel())
    return [slice(start, start + size) for start in range(0, x.shape[0], size)]


def _initial(state: Tensor | None, x: Tensor, A: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_zeros(x.shape[0], *A.shape, dtype=dtype) if state is None else state.to(dtype)


def _padding(lengths: Tensor, num_steps: int) -> Tensor:
    """True at and after each row's length: (B, T)."""
    return torch.arange(num_steps, device=lengths.device) >= lengths.unsqueeze(1)


def _check(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor | None) -> None:
    batch, num_steps, width = x.shape
    if A.dim() != 2 or A.shape[0] != width:
        raise ValueError(f"A must have the shape (D, N) with D = {width}, got {tuple(A.shape)}")
    small, state = (batch, num_steps, A.shape[1]), (batch, *A.shape)
    check_shapes({"dt": (dt, x.shape), "B": (B, small), "C": (C, small), "initial_state": (initial_state, state)})
