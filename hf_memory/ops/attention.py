"""Softmax attention over a growing history, with the position codes that act inside of it.

    o_t = sum_s softmax_s(q_t . k_s / sqrt(K) + bias(t - s)) v_s      (Vaswani et al., 2017, equation 1)

where s runs over the real positions with 0 <= t - s < window. Without the normaliser the weights are exp(score), not
divided by their sum. Forget gates f add log f_{s+1} + ... + log f_t to a score (Lin et al., 2025, "Forgetting
transformer", section 3), as the difference of sums L, of which only differences count.
"""

import math

import torch
from torch.nn import functional as F

from hf_memory.ops._attention_blocks import BlockAttention, attention_mask, block_size, block_weights, linear_bias


def attention_recurrent(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    slopes: torch.Tensor | None = None,
    window: int | None = None,
    normalize: bool = True,
    decay: torch.Tensor | None = None,
) -> torch.Tensor:
    """The definition: one query after the other, and no fused kernel.

    Args:
        query: (B, T, H, K).
        key: (B, S, H, K), the history and the new columns.
        value: (B, S, H, V).
        query_positions: (B, T), increasing.
        key_positions: (B, S); -1 marks an empty column.
        slopes: Slope of each head's linear bias (H,), or None.
        window: Largest t - s + 1; None for no limit.
        normalize: Divide the weights by their sum.
        decay: Sums L of log forget gates up to each key (B, S, H), of which the last T are the queries' own; or None.

    Returns:
        Outputs (B, T, H, V).
    """
    mask = attention_mask(query_positions, key_positions, window)
    outputs = []
    for step, one in enumerate(query.unbind(1)):
        scores = torch.einsum("bhk,bshk->bhs", one, key) / math.sqrt(query.shape[-1])
        if slopes is not None:
            distance = query_positions[:, step, None] - key_positions
            scores = scores - slopes.to(scores)[:, None] * distance[:, None].to(scores)
        if decay is not None:
            own = decay.shape[1] - query.shape[1] + step
            scores = scores + (decay[:, own, :, None] - decay.transpose(1, 2)).to(scores)
        scores = scores.masked_fill(~mask[:, step, None], -torch.inf)
        weights = (scores.softmax(-1) if normalize else scores.exp()).masked_fill(~mask[:, step, None], 0)
        outputs.append(torch.einsum("bhs,bshv->bhv", weights, value))
    return torch.stack(outputs, dim=1)


def attention_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    slopes: torch.Tensor | None = None,
    window: int | None = None,
    normalize: bool = True,
    decay: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weights (B, H, T, S) by which :func:`attention` sums values; arguments as there.

    They are built in full, to be looked at. A query that sees nothing has weights of zero.
    """
    query, key = query.transpose(1, 2), key.transpose(1, 2)
    decays = None
    if decay is not None:
        decays = decay[:, decay.shape[1] - query.shape[2] :].transpose(1, 2), decay.transpose(1, 2)
    return block_weights(query, key, query_positions, key_positions, slopes, window, normalize, decays)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    slopes: torch.Tensor | None = None,
    window: int | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
    normalize: bool = True,
    queries_per_block: int | None = None,
) -> torch.Tensor:
    """Attention by ``scaled_dot_product_attention``, or by blocks; arguments and result as in the definition.

    The keys are the history and then the queries' own columns, so that S - T of them come before the first query.

    Args:
        is_causal: The caller's word that queries and keys are the same columns, without history, so that no mask is
            needed where there is neither bias nor window. Right padding then needs none either: causality hides it.
        dropout: Dropout on the attention weights.
        queries_per_block: Size of a block where a mask is needed. Default: chosen by memory, with one block, and the
            fused kernel, for short sequences.
    """
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if is_causal and slopes is None and window is None and normalize:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout).transpose(1, 2)
    positions = query_positions, key_positions
    size = queries_per_block or block_size(query, key.shape[2], window)
    if size is not None:
        seed = int(torch.randint(2**62, ())) if dropout else 0
        options = (None, slopes, window, dropout, seed, normalize, size)
        return BlockAttention.apply(query, key, value, *positions, *options).transpose(1, 2)
    if not normalize:
        weights = F.dropout(block_weights(query, key, *positions, slopes, window, normalize), dropout)
        return (weights @ value.to(weights.dtype)).to(query.dtype).transpose(1, 2)
    mask = attention_mask(*positions, window).unsqueeze(1)
    if slopes is not None:
        bias = linear_bias(*positions, slopes, query.dtype)
        # Rows of padding may see nothing at all; a large finite number keeps their softmax defined.
        mask = bias.masked_fill(~mask, torch.finfo(query.dtype).min / 2)
    else:
        # A query without any key attends to all of them: its output is that of a padded column and is not read.
        mask = mask | ~mask.any(-1, keepdim=True)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout).transpose(1, 2)


def alibi_slopes(num_heads: int) -> torch.Tensor:
    """Slopes of attention with linear biases (Press et al., 2022, section 3): 2^(-8h/H) for H a power of two.

    For other numbers of heads, those of the next lower power of two are followed by every second one of the next
    higher.

    Returns:
        (H,), float32.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / lower) for head in range(lower)]
    extra = [2.0 ** (-8.0 * (2 * head + 1) / (2 * lower)) for head in range(num_heads - lower)]
    return torch.tensor(slopes + extra)
