"""Loops over time of the memories that are matrices, compiled by numba for the CPU.

One item is a head of a row: its state stays in the cache, so that a step costs the products of its own numbers and
nothing besides. What a loop reads and writes lies where the mixer put it, and nothing is cut into chunks. The backward
pass starts from states that the forward pass has kept, one in ``SPAN`` tokens, and computes those between them again.

Shapes, with n steps to a token: query (B, T, H, K), key, erase and probe (B, n T, H, K), value (B, n T, H, V), factors
of the state (B, T, H, F) with F = 0, 1 or K, states (B, H, K, V).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_memory.ops.backends import numba_common
from hf_memory.ops.backends.numba_common import array, compiled, run

__all__ = ["advance", "gradient", "refusal"]

SPAN = 16
_ADDS, _REPLACES, _ERASES = 0, 1, 2  # no probe; what the probe finds is erased along the key; along another vector

_WIDEST = {True: 128, False: 64}
"""Numbers of a key beyond which products of chunks are faster, where something is erased and where nothing is."""


def refusal(
    *,
    device: torch.device,
    dtype: torch.dtype,
    key_dim: int = 1,
    read: str | None = None,
    decay: str = "key",
    **_: Any,
) -> str | None:
    """Say why these loops cannot run on such tensors, or nothing where they can.

    Args:
        device: Of the tensors.
        dtype: Of the values.
        key_dim: Numbers of a key.
        read: How queries read, of a memory that erases nothing; None for one that erases.
        decay: ``"key"``, ``"head"`` or ``"none"``: where each number of a decay counts.
        **_: Further facts, which change nothing.
    """
    reason = numba_common.refusal(device=device, dtype=dtype)
    if reason is not None:
        return reason
    if read is not None and decay != "key":
        return "its loops lose against matrix products where no key has a decay of its own"
    if key_dim > _WIDEST[read is None]:
        return f"its loops lose against matrix products at keys of {key_dim} numbers"
    return None


def advance(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor | None,
    factor: Tensor | None,
    state: Tensor,
    before: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run all steps.

    Args:
        query: What reads after the last step of its token, or before the first.
        key: Where values are written.
        value: What is written.
        erase: Along which the state loses what the probe finds; along the key if None.
        probe: What is looked for; nothing is erased if None.
        factor: Factors of the state before the first step of a token; 1 if None.
        state: The state before the first token.
        before: Whether queries read before their token.

    Returns:
        Outputs (B, T, H, V), the last state, and the states before every ``SPAN``-th token (B, H, spans, K, V).
    """
    arrays, mode = _arrays(query, key, value, erase, probe, factor)
    output, final = (
        value.new_zeros(*query.shape[:3], value.shape[-1]),
        state.clone(memory_format=torch.contiguous_format),
    )
    starts = state.new_empty(*state.shape[:2], -(-query.shape[1] // SPAN), *state.shape[2:])
    changed = (tensor.numpy() for tensor in (output, final, starts))
    run(_advance, state.shape[:2].numel(), _work(key, value), *arrays, mode, before, *changed)
    return output, final, starts


def gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor | None,
    factor: Tensor | None,
    starts: Tensor,
    before: bool,
    grad: Tensor,
    grad_state: Tensor,
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, erase, probe, the logarithms of the factors, and the first state."""
    arrays, mode = _arrays(query, key, value, erase, probe, factor)
    given = query, key, value, erase, probe, factor
    made = [torch.zeros_like if t is value or t is factor else torch.empty_like for t in given]  # added to, or set
    grads = [
        None if t is None else make(t, memory_format=torch.contiguous_format)
        for t, make in zip(given, made, strict=True)
    ]
    first = grad_state.clone(memory_format=torch.contiguous_format)
    none = value.new_zeros(1, 1, 1, 0)
    changed = ((none if tensor is None else tensor).numpy() for tensor in (*grads, first))
    inputs = *arrays, mode, before, array(starts), array(grad)
    run(_gradient, first.shape[:2].numel(), 4 * _work(key, value), *inputs, *changed)
    return *grads, first


def _arrays(
    query: Tensor, key: Tensor, value: Tensor, erase: Tensor | None, probe: Tensor | None, factor: Tensor | None
) -> tuple[list[np.ndarray], int]:
    mode = _ADDS if probe is None else _REPLACES if erase is None else _ERASES
    none = value.new_zeros(1, 1, 1, 0)
    given = query, key, value, *(none if tensor is None else tensor for tensor in (erase, probe, factor))
    return [array(tensor) for tensor in given], mode


def _work(key: Tensor, value: Tensor) -> int:
    return 4 * key.numel() * value.shape[-1]


@compiled
def _factor(factors, index):
    """The factor of a row of the state: its own, the one of all rows, or 1."""
    size = factors.shape[0]
    return factors[index] if size > 1 else factors[0]


@compiled
def _write(state, key, value, erase, probe, factors, decays, mode, found):
    """Make a step, and keep in ``found`` what goes into the state along the key or out of it along the erase."""
    # The state is changed in place: two names for the same numbers would forbid vectors.
    rows, columns = state.shape
    for c in range(columns):
        found[c] = 0 if mode != _ADDS else value[c]
    if decays:
        for i in range(rows):
            own, factor = state[i], _factor(factors, i)
            for c in range(columns):
                own[c] *= factor
    if mode != _ADDS:
        for i in range(rows):
            own, share = state[i], probe[i]
            for c in range(columns):
                found[c] += share * own[c]
    if mode == _REPLACES:
        for c in range(columns):
            found[c] = value[c] - found[c]
    for i in range(rows):
        own, share = state[i], key[i]
        if mode == _ERASES:
            lost = erase[i]
            for c in range(columns):
                own[c] += share * value[c] - lost * found[c]
        else:
            for c in range(columns):
                own[c] += share * found[c]


@compiled
def _read(state, query, output):
    rows, columns = state.shape
    for i in range(rows):
        own, share = state[i], query[i]
        for c in range(columns):
            output[c] += share * own[c]


@compiled
def _advance(start, stop, query, key, value, erase, probe, factor, mode, before, output, state, starts):
    tokens, heads = query.shape[1], query.shape[2]
    steps = key.shape[1] // tokens
    found = np.empty(value.shape[3], value.dtype)
    for item in range(start, stop):
        row, head = item // heads, item % heads
        own = state[row, head]
        for t in range(tokens):
            if t % SPAN == 0:
                starts[row, head, t // SPAN] = own
            if before:
                _read(own, query[row, t, head], output[row, t, head])
            for s in range(t * steps, (t + 1) * steps):
                decays = factor.shape[3] > 0 and s == t * steps
                _write(own, key[row, s, head], value[row, s, head], _at(erase, row, s, head),
                      _at(probe, row, s, head), _at(factor, row, t, head), decays, mode, found)  # fmt: skip
            if not before:
                _read(own, query[row, t, head], output[row, t, head])


@compiled
def _at(tensor, row, step, head):
    """A vector of a tensor; nothing of one that stands for none."""
    return tensor[row, step, head] if tensor.shape[3] > 0 else tensor[0, 0, 0]


@compiled(sums=True)
def _read_back(state, query, grad, into_state, grad_query):
    """Add to the gradients what arrives at a read."""
    rows, columns = state.shape
    for i in range(rows):
        own, into, share, total = state[i], into_state[i], query[i], state.dtype.type(0)
        for c in range(columns):
            into[c] += share * grad[c]
            total += own[c] * grad[c]
        grad_query[i] = total


@compiled(sums=True)
def _write_back(into, key, value, erase, found, mode, grad_key, grad_value, grad_erase, to_found):
    """Gradients of what a step writes, and of what its probe found, from the gradient of the state after it."""
    rows, columns = into.shape
    to_found[:] = 0
    for i in range(rows):
        own, share, total = into[i], key[i], into.dtype.type(0)
        if mode == _ERASES:
            lost, more = erase[i], into.dtype.type(0)
            for c in range(columns):
                total += own[c] * value[c]
                more -= own[c] * found[c]
                grad_value[c] += share * own[c]
                to_found[c] -= lost * own[c]
            grad_erase[i] = more
        else:
            for c in range(columns):
                total += own[c] * found[c]
                grad_value[c] += share * own[c]
        grad_key[i] = total
    if mode == _REPLACES:
        for c in range(columns):
            to_found[c] = -grad_value[c]


@compiled(sums=True)
def _decay_back(state, into, probe, factors, decays, mode, to_found, grad_probe, grad_factors):
    """Turn the gradient of the state after a step, less its write, into that of the state before it."""
    rows, columns = into.shape
    one = into.dtype.type(1)
    for i in range(rows):
        own, back = state[i], into[i]
        factor = _factor(factors, i) if decays else one
        if mode != _ADDS:
            share, total = probe[i], into.dtype.type(0)
            for c in range(columns):
                total += own[c] * to_found[c]
                back[c] += share * to_found[c]
            grad_probe[i] = factor * total
        if decays:
            total = into.dtype.type(0)
            for c in range(columns):
                total += own[c] * back[c]
                back[c] *= factor
            grad_factors[i if grad_factors.shape[0] > 1 else 0] += factor * total


@compiled
def _gradient(
    start, stop, query, key, value, erase, probe, factor, mode, before, starts, grad,
    grad_query, grad_key, grad_value, grad_erase, grad_probe, grad_factor, grad_state,
):  # fmt: skip
    tokens, heads = query.shape[1], query.shape[2]
    steps, size = key.shape[1] // tokens, value.shape[3]
    states = np.empty((SPAN * steps + 1, *grad_state.shape[2:]), value.dtype)
    founds, to_found = np.empty((SPAN * steps, size), value.dtype), np.empty(size, value.dtype)
    for item in range(start, stop):
        row, head = item // heads, item % heads
        into = grad_state[row, head]
        for span in range(starts.shape[2] - 1, -1, -1):
            begin, end = span * SPAN, min((span + 1) * SPAN, tokens)
            states[0] = starts[row, head, span]
            for s in range(begin * steps, end * steps):
                at, t = s - begin * steps, s // steps
                decays = factor.shape[3] > 0 and s == t * steps
                states[at + 1] = states[at]
                _write(states[at + 1], key[row, s, head], value[row, s, head], _at(erase, row, s, head),
                       _at(probe, row, s, head), _at(factor, row, t, head), decays, mode, founds[at])  # fmt: skip
            for t in range(end - 1, begin - 1, -1):
                own, to_query = grad[row, t, head], grad_query[row, t, head]
                first = (t - begin) * steps
                if not before:
                    _read_back(states[first + steps], query[row, t, head], own, into, to_query)
                for s in range((t + 1) * steps - 1, t * steps - 1, -1):
                    at = s - begin * steps
                    decays = factor.shape[3] > 0 and s == t * steps
                    _write_back(
                        into, key[row, s, head], value[row, s, head], _at(erase, row, s, head), founds[at], mode,
                        grad_key[row, s, head], grad_value[row, s, head], _at(grad_erase, row, s, head), to_found,
                    )  # fmt: skip
                    _decay_back(states[at], into, _at(probe, row, s, head), _at(factor, row, t, head), decays, mode,
                                to_found, _at(grad_probe, row, s, head), _at(grad_factor, row, t, head))  # fmt: skip
                if before:
                    _read_back(states[first], query[row, t, head], own, into, to_query)
