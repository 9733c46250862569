r"""Exponential linear attention: a matrix state whose gates are exponentials, kept in range by their running maximum.

    S_t = f_t S_{t-1} + i_t k_t v_t^T,    z_t = f_t z_{t-1} + i_t k_t,    o_t = S_t^T q_t / max(|z_t^T q_t|, 1)

    q_t, k_t  query, key  (B, T, H, K)      f_t  forget gate  (B, T, H)    given as its logarithm, at most 0
    v_t       value       (B, T, H, V)      i_t  input gate   (B, T, H)    given as its logarithm, of any size
    S_t       state       (B, H, K, V)      z_t  normaliser   (B, H, K)

Source: Beck et al. (2024), "xLSTM: Extended long short-term memory", equations 19-27. Held are e^{-m_t} S_t and
e^{-m_t} z_t, with m_t = max(log f_t + m_{t-1}, log i_t) (B, H), and the 1 becomes e^{-m_t}. The outputs do not depend
on m, so that it takes no gradient and the first m is free. Inside a chunk of c steps, with L the sums of log f and m
the maximum before it,

    a_ij = L_i - L_j + log i_j for j <= i,    b_i = L_i + m,    M_i = max(b_i, max_j a_ij),
    (S_i, z_i)^T q_i = e^{b_i - M_i} (S, z)^T q_i + sum_j e^{a_ij - M_i} (k_j^T q_i) (v_j, 1),

which is gated linear attention with a scale for each step (``gated_linear_attention.py``).
"""

import torch
from torch import Tensor

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._chunks import (
    chain_chunks,
    check_shapes,
    join_chunks,
    keep_padding,
    padding_mask,
    split_chunks,
    split_decay,
)
from hf_memory.ops._graph import graph_node
from hf_memory.ops.backends.dispatch import resolve_backend

State = tuple[Tensor, Tensor, Tensor]


@graph_node("query", "key", "value", "log_forget", "log_input")
def exponential_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_forget: Tensor,
    log_input: Tensor,
    initial_state: State | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, State]:
    """Sum values under their keys with exponential gates, and read their weighted mean with every query.

    Args:
        query: q (B, T, H, K), not scaled here.
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        log_forget: log f (B, T, H), finite and at most 0.
        log_input: log i (B, T, H), finite.
        initial_state: e^{-m} S (B, H, K, V), e^{-m} z (B, H, K) and m (B, H); zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        backend: ``"auto"`` or ``"torch"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state at each row's own length, in at least float32.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    resolve_backend("exponential_linear_attention", backend, device=value.device, dtype=value.dtype)
    with without_autocast(value):
        return exponential_linear_attention_chunked(query, key, value, log_forget, log_input, initial_state, lengths)


def exponential_linear_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_forget: Tensor,
    log_input: Tensor,
    initial_state: State | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Run the recurrence step by step; the definition, arguments and results as in ``exponential_linear_attention``."""
    query, key, columns, log_forget, log_input, state, most = _prepare(
        query, key, value, log_forget, log_input, initial_state, lengths
    )
    outputs = []
    steps = zip(*(t.unbind(1) for t in (query, key, columns, log_forget, log_input)), strict=True)
    for q, k, v, forget, add in steps:
        previous, most = most, torch.maximum(forget + most, add).detach()
        written = torch.einsum("bhk,bhv->bhkv", k, v)
        factors = (forget + previous - most).exp(), (add - most).exp()
        state = factors[0][..., None, None] * state + factors[1][..., None, None] * written
        outputs.append(_read(torch.einsum("bhk,bhkv->bhv", q, state), most))
    return torch.stack(outputs, dim=1).to(value.dtype), (state[..., :-1], state[..., -1], most)


def exponential_linear_attention_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_forget: Tensor,
    log_input: Tensor,
    initial_state: State | None = None,
    lengths: Tensor | None = None,
    chunk_size: int = 32,
) -> tuple[Tensor, State]:
    """Run chunks of steps as matrix products; arguments and results as in ``exponential_linear_attention``.

    Args:
        chunk_size: Steps per chunk; no more than T are used.
    """
    batch, time, heads = key.shape[:3]
    query, key, columns, log_forget, log_input, state, most = _prepare(
        query, key, value, log_forget, log_input, initial_state, lengths
    )
    chunk = min(chunk_size, time)
    log_input = split_decay(log_input, chunk)
    added = torch.arange(log_input[0].numel(), device=key.device).view(log_input.shape[1:]) >= time
    log_input = log_input.masked_fill(added, -torch.inf)
    query, key, columns = (split_chunks(tensor, chunk) for tensor in (query, key, columns))
    exact = torch.float32 if key.device.type == "mps" else torch.float64  # in which differences keep their digits
    since = split_decay(log_forget, chunk).to(exact).cumsum(-1)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=key.device).triu(1)
    inside = (since.unsqueeze(-1) - since.unsqueeze(-2)).to(key.dtype) + log_input.unsqueeze(-2)
    inside = inside.masked_fill(later, -torch.inf)
    to_end = (since[..., -1:] - since).to(key.dtype) + log_input
    since = since.to(key.dtype)
    before, after = _maxima(since[..., -1], to_end, most.flatten())
    largest = torch.maximum(since + before.unsqueeze(-1), inside.amax(-1)).detach()

    kept = key * (to_end - after.unsqueeze(-1)).exp().unsqueeze(-1)
    factor = (since[..., -1] + before - after).exp()
    states, final = chain_chunks(factor, kept.mT @ columns, state.flatten(0, 1))
    decayed = query * (since + before.unsqueeze(-1) - largest).exp().unsqueeze(-1)
    sums = decayed @ states + ((query @ key.mT) * (inside - largest.unsqueeze(-1)).exp()) @ columns
    output = join_chunks(_read(sums, largest), batch, time).to(value.dtype)
    final = final.view(state.shape)
    return output, (final[..., :-1], final[..., -1], after[:, -1].view(batch, heads))


def _maxima(total: Tensor, to_end: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum m before and after each chunk (G, n), which takes no gradient."""
    before, most = [], start.detach()
    for decay, own in zip(total.detach().unbind(1), to_end.detach().amax(-1).unbind(1), strict=True):
        before.append(most)
        most = torch.maximum(decay + most, own)
    before.append(most)
    every = torch.stack(before, dim=1)
    return every[:, :-1], every[:, 1:]


def _read(sums: Tensor, most: Tensor) -> Tensor:
    """Divide what the queries read by the last column, the normaliser, where that is above e^{-m}."""
    # In float32 e^{-m} may be 0, also at steps that were only added, with queries of zeros.
    least = (-most).exp().clamp(min=torch.finfo(most.dtype).tiny)
    weight = torch.maximum(sums[..., -1].abs(), least)
    return sums[..., :-1] / weight.unsqueeze(-1)


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_forget: Tensor,
    log_input: Tensor,
    initial_state: State | None,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:
    """Check, bring everything to the dtype of the state, and make steps past a row's length change nothing.

    Returns:
        Query, key, value with a column of ones, log forget gate, log input gate, state with the normaliser as its last
        column, and maximum.
    """
    batch, time, heads, key_dim = key.shape
    state, normaliser, most = initial_state or (None, None, None)
    check_shapes(
        key,
        query=(query, tuple(key.shape)),
        value=(value, (batch, time, heads, value.shape[-1])),
        log_forget=(log_forget, (batch, time, heads)),
        log_input=(log_input, (batch, time, heads)),
        initial_state=(state, (batch, heads, key_dim, value.shape[-1])),
        normaliser=(normaliser, (batch, heads, key_dim)),
        maximum=(most, (batch, heads)),
    )
    dtype = torch.promote_types(value.dtype, torch.float32)
    query, key, value, log_forget, log_input = (t.to(dtype) for t in (query, key, value, log_forget, log_input))
    columns = torch.cat((value, torch.ones_like(value[..., :1])), dim=-1)
    if initial_state is None:
        start, most = value.new_zeros(batch, heads, key_dim, value.shape[-1] + 1), value.new_zeros(batch, heads)
    else:
        start, most = torch.cat((state, normaliser.unsqueeze(-1)), dim=-1).to(dtype), most.to(dtype).detach()
    if lengths is not None:
        padding = padding_mask(lengths, time)[:, :, None, None]
        log_forget, log_input = keep_padding(log_forget, padding, 0), keep_padding(log_input, padding, -torch.inf)
    return query, key, columns, log_forget, log_input, start, most
