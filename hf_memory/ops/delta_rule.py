r"""Delta rule: a matrix state that replaces the value stored under a key instead of adding to it.

    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,        o_t = S_t^T q_t

    q_t, k_t  query, key  (B, T, H, K)        S_t  state      (B, H, K, V)
    v_t       value       (B, T, H, V)        o_t  output     (B, T, H, V)
    beta_t    beta        (B, T, H)           beta = 1 and |k| = 1 overwrite, beta = 0 keeps the state

Source: Schlag, Irie and Schmidhuber (2021), "Linear transformers are secretly fast weight programmers", section 4.2
(the state there is transposed). The chunked form follows Yang et al. (2024), "Parallelizing linear transformers with
the delta rule over sequence length", section 3: inside a chunk of c steps, S_t = S + sum_{s<=t} k_s u_s^T with

    (I + A) U = diag(beta) (V - K S),        A = strictly lower part of diag(beta) K K^T,

a triangular system solved for [beta V | beta K] at once, before the state S at the start of the chunk is known. Only
T / c steps remain sequential. The system is solved by substitution and never inverted by a series: with keys that
repeat, as in recall tasks, a series loses all digits. Where keys repeat and beta is near 2 the solution is large beside
the state, and float32 keeps about 5 digits at c = 16 and 4 at c = 64, against 6 in the loop.
"""

import torch
from torch import Tensor

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._chunks import check_shapes, join_chunks, padding_mask, split_chunks
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Write every value under its key and read with every query.

    Keys are used as given: for |k| > 1 and beta near its end the state grows, so callers normalise them.

    Args:
        query: q (B, T, H, K), not scaled here.
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        beta: Strength of the writes (B, T, H), in [0, 2] for unit keys.
        initial_state: S_0 (B, H, K, V), zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state (B, H, K, V) at each row's own length, in at least
        float32.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    facts = {"device": value.device, "dtype": value.dtype, "key_dim": key.shape[-1]}
    if resolve_backend("delta_rule", backend, **facts) == "triton":
        beta = _checked(query, key, value, beta, initial_state, lengths)
        with without_autocast(value):
            return load_kernel("delta_rule", "triton").delta_rule(query, key, value, beta, initial_state)
    few_steps = value.shape[1] < 4  # for which a chunk costs more than it saves
    with without_autocast(value):
        form = delta_rule_recurrent if few_steps else delta_rule_chunked
        return form(query, key, value, beta, initial_state, lengths)


def delta_rule_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; the definition, arguments and results as in ``delta_rule``."""
    query, key, new, beta, state = _prepared(query, key, value, beta, initial_state, lengths)
    outputs = []
    for q, k, v, b in zip(*(tensor.unbind(1) for tensor in (query, key, new, beta)), strict=True):
        error = v - torch.einsum("bhk,bhkv->bhv", k, state)
        state = state + torch.einsum("bhk,bhv->bhkv", k, b.unsqueeze(-1) * error)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return torch.stack(outputs, dim=1).to(value.dtype), state


def delta_rule_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run chunks of steps as matrix products; arguments and results as in ``delta_rule``.

    Args:
        chunk_size: Steps per chunk c, no more than T are used; None chooses by device and K.
    """
    batch, time, heads, _ = key.shape
    chunk = min(chunk_size or _chunk_size(key), time)
    query, key, new, beta, state = _prepared(query, key, value, beta, initial_state, lengths)
    query, key, new = (split_chunks(tensor, chunk) for tensor in (query, key, new))
    beta = split_chunks(beta.unsqueeze(-1), chunk)
    written, read = _solve_chunks(key, new, beta)

    state = state.flatten(0, 1)
    states, updates = [], []
    for k, u, w in zip(key.unbind(1), written.unbind(1), read.unbind(1), strict=True):
        update = torch.baddbmm(u, w, state, alpha=-1)
        states.append(state)
        updates.append(update)
        state = torch.baddbmm(state, k.transpose(1, 2), update)

    scores = (query @ key.transpose(-1, -2)).tril()
    output = query @ torch.stack(states, 1) + scores @ torch.stack(updates, 1)
    return join_chunks(output, batch, time).to(value.dtype), state.unflatten(0, (batch, heads))


def _chunk_size(key: Tensor) -> int:
    """On a CPU the work per step, O(c), counts; elsewhere the number of sequential launches, O(T / c)."""
    if key.device.type != "cpu":
        return 64
    return 32 if key.shape[-1] >= 64 else 16


def _solve_chunks(key: Tensor, value: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Solve (I + A) [U | W] = beta [V | K] in every chunk; the updates are then U - W S."""
    weighted = beta * key
    system = (weighted @ key.transpose(-1, -2)).tril(-1)  # the unit diagonal is implied
    targets = torch.cat((beta * value, weighted), dim=-1)
    solved = torch.linalg.solve_triangular(system, targets, upper=False, unitriangular=True)
    return solved.split((value.shape[-1], key.shape[-1]), dim=-1)


def _prepared(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, initial_state: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Bring everything to the dtype of the state, and make steps past a row's length write nothing."""
    beta = _checked(query, key, value, beta, initial_state, lengths)
    batch, _, heads, key_dim = key.shape
    dtype = torch.promote_types(value.dtype, torch.float32)
    if initial_state is None:
        initial_state = value.new_zeros(batch, heads, key_dim, value.shape[-1], dtype=dtype)
    return query.to(dtype), key.to(dtype), value.to(dtype), beta.to(dtype), initial_state.to(dtype)


def _checked(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, initial_state: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Check shapes, and return beta with 0 past each row's length."""
    batch, time, heads, key_dim = key.shape
    check_shapes(
        key,
        query=(query, tuple(key.shape)),
        value=(value, (batch, time, heads, value.shape[-1])),
        beta=(beta, (batch, time, heads)),
        initial_state=(initial_state, (batch, heads, key_dim, value.shape[-1])),
    )
    return beta if lengths is None else beta.masked_fill(padding_mask(lengths, time).unsqueeze(-1), 0)
