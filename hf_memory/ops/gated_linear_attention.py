r"""Gated linear attention: a matrix state that adds up keys and values, and forgets by decays that the input may set.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t
    or, read before the step,               o_t = (S_{t-1} + diag(u) k_t v_t^T)^T q_t

    q_t, k_t  query, key  (B, T, H, K)    a_t  decay  (B, T, H) or (B, T, H, K), given as its logarithm; 1 by default
    v_t       value       (B, T, H, V)    u    bonus  (H, K), of the current step where it is read before; 0 by default
    S_t       state       (B, H, K, V)

Sources: Katharopoulos et al. (2020), "Transformers are RNNs", equations 16-20, without decay; Dao and Gu (2024),
"Transformers are SSMs", equation 16, with one number for each head; Yang et al. (2024), "Gated linear attention
transformers", equation 3, with one for each key; Peng et al. (2024), "Eagle and Finch", equation 19, read before the
step. Inside a chunk of c steps, with the state S before it and the sums L of log decays,

    O = (Q * e^L) S + M V,              M_ij = sum_k q_ik k_jk e^{L_ik - L_jk} for j <= i, else 0,
    S' = e^{L_c} S + (K * e^{L_c - L})^T V,

where no exponent is above zero and each keeps its digits (``_decays.py``).

A decay of any sign is its size and its sign: with the running product P_t of the signs, the state P_t S_t decays by the
size alone, with q, k P_t in the place of q, k. So ``sign`` costs no second recurrence.
"""

import functools
from typing import Literal

import torch
from torch import Tensor

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._chunks import (
    chain_chunks,
    check_shapes,
    join_chunks,
    keep_padding,
    padding_mask,
    power_of_two,
    split_chunks,
    split_decay,
)
from hf_memory.ops._decays import DecayedScores, decayed_scores
from hf_memory.ops._graph import graph_node
from hf_memory.ops._matrix_memory import matrix_memory
from hf_memory.ops._signs import Signs
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend

Read = Literal["after", "before"]

_CHUNK, _CPU_CHUNK_WITH_DECAY = 64, 32


@graph_node("query", "key", "value", "log_decay", "sign")
def gated_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    bonus: Tensor | None = None,
    read: Read = "after",
    sign: Tensor | None = None,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Sum values under their keys, forget, and read with every query.

    Args:
        query: q (B, T, H, K), not scaled here.
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        log_decay: log a (B, T, H) or (B, T, H, K), finite and at most 0; None for a = 1.
        bonus: u (H, K), with ``read="before"`` only; the current step is not read if None.
        read: Whether a query reads after the write of its own step, or before.
        sign: Signs of the decays, 1 or -1, in the shape of ``log_decay``; all 1 if None.
        initial_state: S_0 (B, H, K, V), zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        backend: ``"auto"``, ``"torch"``, ``"numba"`` or ``"triton"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state at each row's own length, in at least float32.

    Raises:
        ValueError: Shapes do not fit, a bonus is given with ``read="after"``, or the name of the read or of the backend
            is unknown.
    """
    facts = {"device": value.device, "dtype": value.dtype, "key_dim": key.shape[-1]}
    per_key = log_decay is not None and log_decay.dim() == 4
    op = "linear_attention" if read == "after" and not per_key else "gated_linear_attention"
    if op == "gated_linear_attention":
        facts |= {"read": read, "decay": "key" if per_key else "none" if log_decay is None else "head"}
    chosen = resolve_backend(op, backend, **facts)
    inputs = query, key, value, log_decay, bonus, read, sign, initial_state, lengths
    with without_autocast(value):
        return gated_linear_attention_chunked(*inputs) if chosen == "torch" else _in_kernel(op, chosen, *inputs)


def _in_kernel(
    op: str,
    chosen: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    read: Read,
    sign: Tensor | None,
    initial_state: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel of this operation and name; arguments and results as in ``gated_linear_attention``."""
    query, key, new, log_decay, sign, state = prepare(
        query, key, value, log_decay, bonus, read, sign, initial_state, lengths
    )
    if chosen == "numba":
        tensors = query, key, new, None, None, log_decay, sign, state
        form = functools.partial(_chunked_memory, read=read)
        output, state = matrix_memory(form, op, chosen, *tensors, read == "before")
        own = _own_step(query, key, new, bonus)
        return (output if own is None else output + own).to(value.dtype), state
    signs, kernel = Signs(sign), load_kernel(op, chosen)
    query, key = signs.before(query) if read == "before" else signs(query), signs(key)
    if op == "linear_attention":
        output, state = kernel.linear_attention(query, key, new, log_decay, state, value.dtype)
    else:
        decay = key.new_zeros(key.shape[:3]) if log_decay is None else log_decay
        decay = decay if decay.dim() == 4 else decay.unsqueeze(-1).expand(key.shape)
        output, state = kernel.gated_linear_attention(query, key, new, decay, bonus, read, state, value.dtype)
    return output.to(value.dtype), signs.last(state)


def _own_step(query: Tensor, key: Tensor, value: Tensor, bonus: Tensor | None) -> Tensor | None:
    """What a query that reads before its step reads of it by the bonus: (B, T, H, V), or None without one."""
    return None if bonus is None else (query * bonus.to(key.dtype) * key).sum(-1, keepdim=True) * value


def _chunked_memory(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: None,
    probe: None,
    log_decay: Tensor | None,
    sign: Tensor | None,
    state: Tensor,
    *,
    read: Read,
) -> tuple[Tensor, Tensor]:
    """The chunks in the arguments of a matrix memory, of which nothing is erased."""
    return gated_linear_attention_chunked(query, key, value, log_decay, None, read, sign, state)


def gated_linear_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    bonus: Tensor | None = None,
    read: Read = "after",
    sign: Tensor | None = None,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; the definition, arguments and results as in ``gated_linear_attention``."""
    query, key, new, log_decay, sign, state = prepare(
        query, key, value, log_decay, bonus, read, sign, initial_state, lengths
    )
    decay = new.new_ones(new.shape[:3]) if log_decay is None else log_decay.exp()
    decay = decay if sign is None else decay * sign
    decay = decay if decay.dim() == 4 else decay.unsqueeze(-1)
    outputs = []
    for q, k, v, a in zip(query.unbind(1), key.unbind(1), new.unbind(1), decay.unbind(1), strict=True):
        before, written = state, torch.einsum("bhk,bhv->bhkv", k, v)
        state = a.unsqueeze(-1) * state + written
        seen = state
        if read == "before":
            seen = before if bonus is None else before + bonus.to(state.dtype).unsqueeze(-1) * written
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, seen))
    return torch.stack(outputs, dim=1).to(value.dtype), state


def gated_linear_attention_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    bonus: Tensor | None = None,
    read: Read = "after",
    sign: Tensor | None = None,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run chunks of steps as matrix products; arguments and results as in ``gated_linear_attention``.

    Args:
        chunk_size: Steps per chunk, no more than T are used; with a decay the next power of two. None chooses.
    """
    batch, time = key.shape[:2]
    query, key, new, log_decay, sign, state = prepare(
        query, key, value, log_decay, bonus, read, sign, initial_state, lengths
    )
    own = _own_step(query, key, new, bonus)
    signs = Signs(sign)
    query = signs.before(query) if read == "before" else signs(query)
    key = signs(key)
    usual = _CHUNK if log_decay is None or key.device.type != "cpu" else _CPU_CHUNK_WITH_DECAY
    chunk = min(chunk_size or usual, time)
    chunk = chunk if log_decay is None else power_of_two(chunk)
    query, key, new = (split_chunks(tensor, chunk) for tensor in (query, key, new))
    decays = decayed_scores([query], [key], split_decay(log_decay, chunk), before=read == "before")
    output, state = _combine_decayed(query, key, new, decays, state)
    output = join_chunks(output, batch, time)
    return (output if own is None else output + own).to(value.dtype), signs.last(state)


def _combine_decayed(
    query: Tensor, key: Tensor, value: Tensor, decays: DecayedScores, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (G, n, c, V) and the final state of chunks whose scores are known."""
    if decays.total is None or decays.total.dim() == 3:
        query, key = decays.from_start(query), decays.to_end(key)
        return combine_chunks(query, key, value, decays.scores[0][0], decays.total, state)
    # One number for all keys decays as well what is read and what is written, which are often narrower.
    before, final = chain_chunks(decays.total.exp(), key.mT @ decays.to_end(value), state.flatten(0, 1))
    return decays.from_start(query @ before) + decays.scores[0][0] @ value, final.view(state.shape)


def combine_chunks(
    query: Tensor, key: Tensor, value: Tensor, scores: Tensor, total: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Add what the queries read inside of their chunks to what they read from the states before.

    Args:
        query: Queries (G, n, c, K) with G = B H and n chunks of c steps, decayed from the start of their chunk.
        key: Keys (G, n, c, K), decayed to the end of their chunk.
        value: Values (G, n, c, V).
        scores: Weights of the values inside of each chunk (G, n, c, c).
        total: Logarithm of the decay of a chunk (G, n) or (G, n, K), or None.
        state: Initial state (B, H, K, V).

    Returns:
        Sums (G, n, c, V) and the final state (B, H, K, V).
    """
    factor = None if total is None else total.exp()
    before, final = chain_chunks(factor, key.mT @ value, state.flatten(0, 1))
    return query @ before + scores @ value, final.view(state.shape)


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    read: str,
    sign: Tensor | None,
    initial_state: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """Check, bring everything to the dtype of the state, and make steps past a row's length write and forget nothing.

    Returns:
        Query, key, value, log decay, sign and state.
    """
    if read not in ("after", "before"):
        raise ValueError(f"read must be 'after' or 'before', got {read!r}")
    if bonus is not None and read == "after":
        raise ValueError("bonus must be None where read is 'after': the current step is read in full then")
    batch, time, heads, key_dim = key.shape
    gates = tuple(key.shape) if log_decay is not None and log_decay.dim() == 4 else tuple(key.shape[:3])
    check_shapes(
        key,
        query=(query, tuple(key.shape)),
        value=(value, (batch, time, heads, value.shape[-1])),
        log_decay=(log_decay, gates),
        sign=(sign, gates),
        bonus=(bonus, (heads, key_dim)),
        initial_state=(initial_state, (batch, heads, key_dim, value.shape[-1])),
    )
    dtype = torch.promote_types(value.dtype, torch.float32)
    state = value.new_zeros(batch, heads, key_dim, value.shape[-1], dtype=dtype)
    state = state if initial_state is None else initial_state.to(dtype)
    query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    log_decay, sign = (None if tensor is None else tensor.to(dtype) for tensor in (log_decay, sign))
    if lengths is not None:
        padding = padding_mask(lengths, time)[:, :, None, None]
        value = value.masked_fill(padding, 0)
        log_decay, sign = keep_padding(log_decay, padding, 0), keep_padding(sign, padding, 1)
    return query, key, value, log_decay, sign, state
