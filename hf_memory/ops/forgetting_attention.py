"""Softmax attention whose keys fade by forget gates, by blocks of queries (Lin et al., 2025).

    weights of query t on key s: softmax over s of q_t k_s / sqrt(K) + L_t - L_s,    L_t = sum_{i <= t} log f_i

The definition is :func:`hf_memory.ops.attention.attention_recurrent` with ``decay``.
"""

import torch

from hf_memory.ops._attention_blocks import BlockAttention, block_size
from hf_memory.ops._cells import without_autocast
from hf_memory.ops._graph import graph_node
from hf_memory.ops._shapes import check_shapes
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend


@graph_node("query", "query_positions")
def forgetting_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    decay: torch.Tensor,
    window: int | None = None,
    queries_per_block: int | None = None,
    is_causal: bool = False,
    backend: str = "auto",
) -> torch.Tensor:
    """Softmax attention with forget gates, by blocks.

    Arguments and result are those of :func:`hf_memory.ops.attention.attention_recurrent`, and

    Args:
        decay: Sums L of log forget gates (B, S, H). In float64, differences keep all digits that are left to them.
        queries_per_block: Size of a block. Default: chosen by memory.
        is_causal: The caller's word that queries and keys are the same columns, without history. Kernels need it.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.
    """
    check_shapes({"decay": (decay, key.shape[:3])})
    facts = {"device": value.device, "dtype": value.dtype, "key_dim": key.shape[-1]}
    facts |= {"has_history": not is_causal, "has_window": window is not None}
    chosen = resolve_backend("forgetting_attention", backend, **facts)
    if chosen != "torch":
        log_forget = decay.diff(dim=1, prepend=decay[:, :1])  # the first is in all sums, and so in no difference
        with without_autocast(value):
            return load_kernel("forgetting_attention", chosen).attention(query, key, value, log_forget)
    query, key, value, decay = (tensor.transpose(1, 2) for tensor in (query, key, value, decay))
    size = queries_per_block or block_size(query, key.shape[2], window) or query.shape[2]
    options = (decay, None, window, 0.0, 0, True, size)
    return BlockAttention.apply(query, key, value, query_positions, key_positions, *options).transpose(1, 2)
