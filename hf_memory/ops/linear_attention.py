r"""Linear attention: a matrix state that adds up keys and values, with scalar decay and normaliser as options.

    S_t = a_t S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t              and with the normaliser
    z_t = a_t z_{t-1} + k_t,          o_t = S_t^T q_t / (z_t^T q_t + eps)

    q_t, k_t  query, key  (B, T, H, K)    features of the caller's choice, not scaled here
    v_t       value       (B, T, H, V)
    a_t       decay       (B, T, H)       given as its logarithm; 1 by default
    S_t       state       (B, H, K, V)    with the normaliser (B, H, K, V + 1): z_t is one more column, for a value of 1

Source: Katharopoulos et al. (2020), "Transformers are RNNs", equations 16-20. Inside a chunk of c steps, with the state
S before it and the sums L of log decays, the chunked form is

    O = (Q K^T * M) V + diag(e^L) Q S,        M_ij = e^{L_i - L_j} for i >= j, else 0,
    S' = e^{L_c} S + (diag(e^{L_c - L}) K)^T V,

where exponents are differences, taken before ``exp``, so that no decay overflows (Yang et al., 2024, "Gated linear
attention transformers", section 4; Dao and Gu, 2024, "Transformers are SSMs", section 6).
"""

import torch
from torch import Tensor

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._chunks import check_shapes, join_chunks, padding_mask, split_chunks
from hf_memory.ops._linear_attention import combine_chunks, prepare_values, read_out
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Sum values under their keys, and read with every query.

    Args:
        query: q (B, T, H, K).
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        log_decay: log a (B, T, H), finite; None for a = 1.
        normalize: Divide by the sum of the weights q^T k.
        eps: Added to that sum.
        initial_state: S_0 (B, H, K, V), or (B, H, K, V + 1) with the normaliser; zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state at each row's own length, in at least float32.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    facts = {"device": value.device, "dtype": value.dtype, "key_dim": key.shape[-1]}
    chosen = resolve_backend("linear_attention", backend, **facts)
    form = _linear_attention_kernel if chosen == "triton" else linear_attention_chunked
    with without_autocast(value):
        return form(query, key, value, log_decay, normalize, eps, initial_state, lengths)


def linear_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; the definition, arguments and results as in ``linear_attention``."""
    columns, state = prepare_values(key, value, normalize, initial_state, lengths)
    query, key, log_decay = _prepare_rest(query, key, log_decay, lengths, columns.dtype)
    decay = columns.new_ones(columns.shape[:3]) if log_decay is None else log_decay.exp()
    outputs = []
    for q, k, v, a in zip(query.unbind(1), key.unbind(1), columns.unbind(1), decay.unbind(1), strict=True):
        state = a[:, :, None, None] * state + torch.einsum("bhk,bhv->bhkv", k, v)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return read_out(torch.stack(outputs, dim=1), normalize, eps, value.dtype), state


def linear_attention_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """Run chunks of steps as matrix products; arguments and results as in ``linear_attention``.

    Args:
        chunk_size: Steps per chunk; no more than T are used.
    """
    batch, time = key.shape[:2]
    columns, state = prepare_values(key, value, normalize, initial_state, lengths)
    query, key, log_decay = _prepare_rest(query, key, log_decay, lengths, columns.dtype)
    chunk = min(chunk_size, time)
    query, key, columns = (split_chunks(tensor, chunk) for tensor in (query, key, columns))
    if log_decay is not None:
        log_decay = split_chunks(log_decay.unsqueeze(-1), chunk).squeeze(-1)
    sums, state = combine_chunks(query, key, columns, query @ key.mT, log_decay, state)
    return read_out(join_chunks(sums, batch, time), normalize, eps, value.dtype), state


def _linear_attention_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    normalize: bool,
    eps: float,
    initial_state: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel of ``triton``; arguments and results as in ``linear_attention``."""
    columns, state = prepare_values(key, value, normalize, initial_state, lengths)
    _, _, log_decay = _prepare_rest(query, key, log_decay, lengths, columns.dtype)
    kernel = load_kernel("linear_attention", "triton")
    sums, state = kernel.linear_attention(query, key, columns, log_decay, state, value.dtype)
    return read_out(sums, normalize, eps, value.dtype), state


def _prepare_rest(
    query: Tensor, key: Tensor, log_decay: Tensor | None, lengths: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check shapes, bring everything to the dtype of the state, and stop the decay past a row's length."""
    check_shapes(key, query=(query, tuple(key.shape)), log_decay=(log_decay, tuple(key.shape[:3])))
    if log_decay is not None:
        log_decay = log_decay.to(dtype)
        if lengths is not None:
            log_decay = log_decay.masked_fill(padding_mask(lengths, key.shape[1]).unsqueeze(-1), 0)
    return query.to(dtype), key.to(dtype), log_decay
