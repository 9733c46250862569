r"""Attention with the second-order Taylor weights of Based, in time linear in T.

    o_t = sum_{s<=t} w_ts v_s / (sum_{s<=t} w_ts + eps),     w_ts = 1 + x + x^2 / 2,     x = q_t^T k_s / sqrt(f)

    q_t, k_t  query, key  (B, T, H, f)        S_t  state  (B, H, K, V + 1), the normaliser in its last column;
    v_t       value       (B, T, H, V)             without normaliser (B, H, K, V)

It is linear attention on features phi with phi(q)^T phi(k) = w; K = 1 + f + f (f + 1) / 2 of them where each product
of two inputs is kept once, K = 1 + f + f^2 where all are. Inside a chunk the weights are the polynomial itself, which
costs f products and not K. All weights are at least 1/2, so that the normaliser is safe.

Source: Arora et al. (2024), "Simple linear attention language models balance the recall-throughput tradeoff", section
4.1. Their code computes all f^2 products.
"""

import math

import torch
from torch import Tensor

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._chunks import check_shapes, join_chunks, split_chunks
from hf_memory.ops._graph import graph_node
from hf_memory.ops._linear_attention import prepare_values, read_out, value_columns
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.gated_linear_attention import combine_chunks
from hf_memory.ops.linear_attention import linear_attention_recurrent

_CHUNK = 128


@graph_node("query", "key", "value")
def taylor_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    symmetric: bool = True,
    normalize: bool = True,
    eps: float = 1e-12,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    return_final_state: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Attend with weights 1 + s + s^2 / 2, s = q^T k / sqrt(f), in time linear in T.

    Args:
        query: q (B, T, H, f).
        key: k (B, T, H, f).
        value: v (B, T, H, V).
        symmetric: Keep each product of two features once in the state; outputs are the same.
        normalize: Divide by the sum of the weights, which are all positive.
        eps: Added to that sum.
        initial_state: S_0 (B, H, K, V), or (B, H, K, V + 1) with the normaliser, K features; zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        return_final_state: Whether the state is wanted; without one on either side, a single chunk needs no features.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state at each row's own length, in at least float32, or
        None.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    facts = {"device": value.device, "dtype": value.dtype, "key_dim": key.shape[-1]}
    facts["has_initial_state"] = initial_state is not None
    chosen = resolve_backend("taylor_attention", backend, **facts)
    with without_autocast(value):
        if chosen == "triton":
            return _taylor_attention_kernel(query, key, value, symmetric, normalize, lengths, return_final_state)
        if initial_state is None and not return_final_state and key.shape[1] <= _CHUNK:
            return _one_chunk(query, key, value, normalize, eps, lengths), None
        y, state = taylor_attention_chunked(query, key, value, symmetric, normalize, eps, initial_state, lengths)
        return y, state if return_final_state else None


def taylor_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    symmetric: bool = True,
    normalize: bool = True,
    eps: float = 1e-12,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run ``linear_attention_recurrent`` on Taylor features; the definition of ``taylor_attention``."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    query, key = (taylor_features(tensor.to(dtype), symmetric) for tensor in (query, key))
    return linear_attention_recurrent(query, key, value, None, normalize, eps, initial_state, lengths)


def taylor_attention_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    symmetric: bool = True,
    normalize: bool = True,
    eps: float = 1e-12,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_size: int = _CHUNK,
) -> tuple[Tensor, Tensor]:
    """Run chunks of steps as matrix products; arguments and results as in ``taylor_attention``.

    Args:
        chunk_size: Steps per chunk; no more than T are used.
    """
    _check(query, key, value)
    batch, time = key.shape[:2]
    chunk = min(chunk_size, time)
    dtype = torch.promote_types(value.dtype, torch.float32)
    query, key = (split_chunks(tensor.to(dtype), chunk) for tensor in (query, key))
    query_features, key_features = (taylor_features(tensor, symmetric) for tensor in (query, key))
    rows = join_chunks(key_features, batch, time)
    columns, state = prepare_values(rows, value, normalize, initial_state, lengths)
    columns = split_chunks(columns, chunk)
    weights = _weights(query, key).tril()
    sums, state = combine_chunks(query_features, key_features, columns, weights, None, state)
    return read_out(join_chunks(sums, batch, time), normalize, eps, value.dtype), state


def _one_chunk(
    query: Tensor, key: Tensor, value: Tensor, normalize: bool, eps: float, lengths: Tensor | None
) -> Tensor:
    """Outputs of a sequence with nothing before it: the weights themselves."""
    _check(query, key, value)
    batch, time = key.shape[:2]
    dtype = torch.promote_types(value.dtype, torch.float32)
    query, key = (split_chunks(tensor.to(dtype), time) for tensor in (query, key))
    columns = split_chunks(value_columns(value, normalize, lengths), time)
    sums = _weights(query, key).tril() @ columns
    return read_out(join_chunks(sums, batch, time), normalize, eps, value.dtype)


def _weights(query: Tensor, key: Tensor) -> Tensor:
    """1 + x + x^2 / 2 of each pair of steps (..., c, c)."""
    similarity = query @ key.mT / math.sqrt(query.shape[-1])
    return 1 + similarity * (1 + similarity / 2)


def _taylor_attention_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    symmetric: bool,
    normalize: bool,
    lengths: Tensor | None,
    return_final_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Run the kernel of ``triton``, which returns no state: that is one product over all of time."""
    _check(query, key, value)
    output = load_kernel("taylor_attention", "triton").taylor_attention(query, key, value, normalize)
    if not return_final_state:
        return output, None
    features = taylor_features(key.to(torch.promote_types(value.dtype, torch.float32)), symmetric)
    columns, _ = prepare_values(features, value, normalize, None, lengths)
    return output, torch.einsum("bthk,bthv->bhkv", features, columns)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    check_shapes(key, query=(query, tuple(key.shape)), value=(value, (*key.shape[:3], value.shape[-1])))


def taylor_features(inputs: Tensor, symmetric: bool = True) -> Tensor:
    """Map x (..., f) to phi(x) (..., K) with phi(q)^T phi(k) = 1 + x + x^2 / 2, where x = q^T k / sqrt(f).

    Args:
        inputs: Queries or keys (..., f).
        symmetric: Keep each product of two inputs once; all f^2 products otherwise.
    """
    size = inputs.shape[-1]
    scaled = inputs / size**0.25
    if symmetric:
        first, second = torch.triu_indices(size, size, device=inputs.device)
        select = torch.eye(size, dtype=inputs.dtype, device=inputs.device)
        weights = (1 + (first == second).to(inputs.dtype)).rsqrt()  # x_i x_j stands for x_j x_i too, x_i^2 for itself
        # A product with columns of the identity picks entries exactly, and its gradient is a product too.
        products = (scaled @ (select[:, first] * weights)) * (scaled @ select[:, second])
    else:
        products = (scaled.unsqueeze(-1) * scaled.unsqueeze(-2)).flatten(-2) * math.sqrt(0.5)
    return torch.cat((torch.ones_like(scaled[..., :1]), scaled, products), dim=-1)
