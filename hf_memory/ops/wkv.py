"""The weighted key-value average of RWKV-4 (Peng et al., 2023, equation 16; in recurrent form appendix D).

    y_t = (sum_{s<t} e^{(t-1-s) w + k_s} v_s + e^{u + k_t} v_t) / (sum_{s<t} e^{(t-1-s) w + k_s} + e^{u + k_t})

    w  log decay per channel, at most 0      u  bonus of the current token      k, v  keys and values

Both sums are carried divided by e^m, where m is the largest exponent so far, so that no key is too large:

    m' = max(m + w, k),   a' = e^{m+w-m'} a + e^{k-m'} v,   b' = e^{m+w-m'} b + e^{k-m'}

The state (B, 3, D) is a, b and m. Before the first token a = b = 0 and m = -1e38, finite so that m - m is 0.

The fast form runs the three recurrences as loops in place; everything else in the two passes is one operation over all
of time. On a CPU with numba all of it is one compiled loop. A form of cumulative sums would not be safe: w reaches -20
per step at the initial values of the paper.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hf_memory.ops._graph import graph_node
from hf_memory.ops._replicas import fold_into_batch
from hf_memory.ops._shapes import check_shapes
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend

NO_EXPONENT = -1e38
"""The exponent m of an empty sum."""


@graph_node("key", "value")
def wkv(
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Average values by decaying weights.

    Args:
        key: Keys (B, T, D).
        value: Values (B, T, D).
        log_decay: w (D,), at most 0.
        bonus: u (D,).
        initial_state: Numerator a, denominator b and exponent m (B, 3, D); that of an empty past if None.
        lengths: Real steps in each row (B,), int64; None where all T are real.
        backend: ``"auto"`` or a name of :mod:`hf_memory.ops.backends.dispatch`.

    Returns:
        Averages (B, T, D) in the dtype of ``value``, and the state (B, 3, D) after each row's last real step, in at
        least float32.

    Raises:
        ValueError: Shapes disagree, or the backend is unknown.
    """
    inputs = _prepared(key, value, log_decay, bonus, initial_state)
    facts = {"device": key.device, "dtype": inputs[0].dtype, "has_lengths": lengths is not None}
    backend = resolve_backend("wkv", backend, **facts)
    if backend == "triton":
        key, values, _, _, state = inputs
        y, state = load_kernel("wkv", "triton").wkv(key, values, log_decay, bonus, state)
        return y.to(value.dtype), state
    if lengths is None:
        lengths = torch.full(key.shape[:1], key.shape[1], device=key.device)
    y, state, _ = _WKV.apply(*inputs, lengths, backend)
    return y.to(value.dtype), state


def wkv_recurrent(
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, one step at a time. Arguments and results are those of :func:`wkv`."""
    key, values, w, u, state = _prepared(key, value, log_decay, bonus, initial_state)
    outputs = []
    for t, (k, v) in enumerate(zip(key.unbind(1), values.unbind(1), strict=True)):
        a, b, m = state.unbind(1)
        top = torch.maximum(m, u + k)
        old, new = torch.exp(m - top), torch.exp(u + k - top)
        outputs.append((old * a + new * v) / (old * b + new))
        top = torch.maximum(m + w, k)
        old, new = torch.exp(m + w - top), torch.exp(k - top)
        after = torch.stack([old * a + new * v, old * b + new, top], dim=1)
        state = after if lengths is None else torch.where((lengths > t).view(-1, 1, 1), after, state)
    return torch.stack(outputs, dim=1).to(value.dtype), state


class _WKV(Function):
    """All of time as one node. Shapes: key and value (B, T, D), w and u (B, D), state (B, 3, D), all in one dtype.

    The third output is what a kernel keeps for its backward pass; there is nothing in it without one.
    """

    @staticmethod
    def forward(
        key: Tensor, value: Tensor, w: Tensor, u: Tensor, initial_state: Tensor, lengths: Tensor, backend: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        if backend != "torch":
            return load_kernel("wkv", backend).average(key, value, w, u, initial_state, lengths)
        key, value = (tensor.transpose(0, 1).contiguous() for tensor in (key, value))
        sums, exponents = _states(key, value, w, initial_state)
        numerator, denominator, _, _ = _fractions(key, value, u, sums, exponents)
        rows = torch.arange(key.shape[1], device=key.device)
        final = torch.cat([sums[lengths, rows], exponents[lengths, rows].unsqueeze(1)], dim=1)
        return (numerator / denominator).transpose(0, 1), final, final.new_empty(len(final), 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, ctx.backend = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, output[2])

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_state: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (*_WKVGradient.apply(*ctx.saved_tensors, grad_y, grad_state, ctx.backend), None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return fold_into_batch(_WKV, info.batch_size, in_dims, inputs)


class _WKVGradient(Function):
    """Gradients of :class:`_WKV`: a Function of its own, so that it can be folded under ``vmap`` as well."""

    @staticmethod
    def forward(
        key: Tensor,
        value: Tensor,
        w: Tensor,
        u: Tensor,
        initial_state: Tensor,
        lengths: Tensor,
        starts: Tensor,
        grad_y: Tensor,
        grad_state: Tensor,
        backend: str,
    ) -> tuple[Tensor, ...]:
        if backend != "torch":
            return load_kernel("wkv", backend).gradient(key, value, w, u, lengths, starts, grad_y, grad_state)
        key, value, grad_y = (tensor.transpose(0, 1).contiguous() for tensor in (key, value, grad_y))
        sums, exponents = _states(key, value, w, initial_state)
        into_sums, into_exponents, grad_key, grad_value = _output_gradient(key, value, u, sums, exponents, grad_y)
        grad_u = grad_key.sum(0)
        rows = torch.arange(key.shape[1], device=key.device)
        into_sums[lengths, rows] += grad_state[:, :2]
        into_exponents[lengths, rows] += grad_state[:, 2]
        old, new, kept = _weights(key, w, exponents)
        # into_sums[t] becomes all that arrives at the sums after t steps.
        _accumulate_backwards(old.unsqueeze(2), into_sums)
        after = into_sums[1:]
        into_a, into_b = after.unbind(2)
        grad_value.addcmul_(new, into_a)
        through_old = old * (sums[:-1] * after).sum(2)
        through_new = new * (value * into_a + into_b)
        # The exponent of the step, m', enters both weights with a minus sign, and comes from one of its two sources.
        shift = through_old + through_new
        into_exponents[:-1] += torch.where(kept, through_old - shift, through_old)
        _accumulate_backwards(kept.to(key.dtype), into_exponents)
        top = into_exponents[1:] - shift
        grad_key += through_new + torch.where(kept, 0, top)
        grad_w = (through_old + torch.where(kept, top, 0)).sum(0)
        grad_initial = torch.cat([into_sums[0], into_exponents[0].unsqueeze(1)], dim=1)
        return grad_key.transpose(0, 1), grad_value.transpose(0, 1), grad_w, grad_u, grad_initial

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("wkv has no second derivative; wkv_recurrent has one")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return fold_into_batch(_WKVGradient, info.batch_size, in_dims, inputs)


def _states(key: Tensor, value: Tensor, w: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (T + 1, B, 2, D) and exponents (T + 1, B, D) before the first step and after each one."""
    exponents = torch.cat([initial_state[:, 2].unsqueeze(0), key])
    steps = exponents.unbind(0)
    for t in range(1, len(steps)):
        torch.maximum(steps[t - 1] + w, steps[t], out=steps[t])
    old, new, _ = _weights(key, w, exponents)
    sums = torch.cat([initial_state[:, :2].unsqueeze(0), torch.stack([new * value, new], dim=2)])
    steps, factors = sums.unbind(0), old.unsqueeze(2).unbind(0)
    for t, factor in enumerate(factors):
        steps[t + 1].addcmul_(factor, steps[t])
    return sums, exponents


def _weights(key: Tensor, w: Tensor, exponents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors of the sums and of the new pair in each step, and whether the exponent was kept: (T, B, D) each."""
    decayed = exponents[:-1] + w
    return torch.exp(decayed - exponents[1:]), torch.exp(key - exponents[1:]), decayed >= key


def _fractions(key: Tensor, value: Tensor, u: Tensor, sums: Tensor, exponents: Tensor) -> tuple[Tensor, ...]:
    """Numerators and denominators of the outputs, and the weights of the past and of the current token."""
    before, current = exponents[:-1], key + u
    top = torch.maximum(before, current)
    old, new = torch.exp(before - top), torch.exp(current - top)
    a, b = sums[:-1].unbind(2)
    return old * a + new * value, old * b + new, old, new


def _output_gradient(
    key: Tensor, value: Tensor, u: Tensor, sums: Tensor, exponents: Tensor, grad_y: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of the outputs for the states (T + 1 of them; zero for the last), keys and values."""
    numerator, denominator, old, new = _fractions(key, value, u, sums, exponents)
    into_numerator = grad_y / denominator
    into_denominator = -into_numerator * (numerator / denominator)
    pair = torch.stack([into_numerator, into_denominator], dim=2)
    into_sums, into_exponents = torch.zeros_like(sums), torch.zeros_like(exponents)
    torch.mul(pair, old.unsqueeze(2), out=into_sums[:-1])
    torch.sum(into_sums[:-1] * sums[:-1], 2, out=into_exponents[:-1])
    return into_sums, into_exponents, new * (value * into_numerator + into_denominator), new * into_numerator


def _accumulate_backwards(factors: Tensor, totals: Tensor) -> None:
    """G_t += f_{t+1} G_{t+1} from the last step to the first, in place: factors (T, ...), totals (T + 1, ...)."""
    steps = totals.unbind(0)
    for t, factor in reversed(list(enumerate(factors.unbind(0)))):
        steps[t].addcmul_(factor, steps[t + 1])


def _prepared(
    key: Tensor, value: Tensor, log_decay: Tensor, bonus: Tensor, initial_state: Tensor | None
) -> list[Tensor]:
    """Check shapes, bring everything to the dtype of the state, and give each row its w and u."""
    batch, _, width = key.shape
    check_shapes(
        {
            "value": (value, key.shape),
            "log_decay": (log_decay, (width,)),
            "bonus": (bonus, (width,)),
            "initial_state": (initial_state, (batch, 3, width)),
        }
    )
    dtype = torch.promote_types(torch.promote_types(key.dtype, value.dtype), torch.float32)
    if initial_state is None:
        initial_state = key.new_zeros(batch, 3, width, dtype=dtype)
        initial_state[:, 2] = NO_EXPONENT
    rows = [tensor.to(dtype).expand(batch, -1) for tensor in (log_decay, bonus)]
    return [key.to(dtype), value.to(dtype), *rows, initial_state.to(dtype)]
