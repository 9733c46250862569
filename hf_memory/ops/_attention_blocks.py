"""Masked attention by blocks of queries, so that no matrix of all queries by all keys ever exists.

With a window of w tokens a block of n queries reads n + w - 1 keys: time and memory are O(T w). Without one, time is
O(T^2) as in any exact attention, and memory O(n T). The backward pass builds each block's weights P again. With dO the
gradient at the output O, D dropout's mask over its share, and dS the gradient at the scores,

    dV = (P D)^T dO,   dP = D (dO V^T),   dS = P (dP - sum(dO O))   (softmax)   or   P dP   (exponentials),
    dQ = dS K / sqrt(K),   dK = dS^T Q / sqrt(K).

Blocks are cut by column: the last T keys are the queries' own, and positions rise from one real column to the next, so
that what a query sees lies in the w - 1 columns before its own. Which of these it sees is decided by positions alone.

Where scores decay, L_t - L_s is added to them with L the sums of log decays, so that dL_t = sum_s dS_ts - sum_q dS_qt.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_memory.ops._cells import Folded, fold_replicas, unfold_replicas, without_autocast

WHOLE_NUMBERS = 2**22
"""Weights, over rows and heads, that are still built at once: 16 MiB in float32."""
BLOCK_NUMBERS = 2**20
"""Weights of one block of a longer sequence."""
MIN_QUERIES, MAX_QUERIES = 16, 1024


def attention_mask(query_positions: Tensor, key_positions: Tensor, window: int | None = None) -> Tensor:
    """True where query t (B, T) may see key s (B, S): (B, T, S)."""
    distance = query_positions.unsqueeze(2) - key_positions.unsqueeze(1)
    mask = (key_positions >= 0).unsqueeze(1) & (distance >= 0)
    return mask if window is None else mask & (distance < window)


def linear_bias(query_positions: Tensor, key_positions: Tensor, slopes: Tensor, dtype: torch.dtype) -> Tensor:
    """-slope * distance (B, H, T, S)."""
    distance = (query_positions.unsqueeze(2) - key_positions.unsqueeze(1)).unsqueeze(1)
    return -slopes.to(dtype).view(1, -1, 1, 1) * distance.to(dtype)


def block_weights(
    query: Tensor,
    key: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    slopes: Tensor | None,
    window: int | None,
    normalize: bool,
    decays: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The weights (B, H, T, S) of queries (B, H, T, K) on keys (B, H, S, K), in at least float32.

    A query that sees nothing has weights of zero. ``decays`` are the sums L up to the queries (B, H, T) and up to the
    keys (B, H, S), whose differences keep the digits of the dtype that they are given in.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(dtype) / math.sqrt(query.shape[-1])) @ key.to(dtype).mT
    if slopes is not None:
        scores = scores + linear_bias(query_positions, key_positions, slopes, dtype)
    if decays is not None:
        scores = scores + (decays[0].unsqueeze(-1) - decays[1].unsqueeze(-2)).to(dtype)
    hidden = ~attention_mask(query_positions, key_positions, window).unsqueeze(1)
    # The masked scores are replaced before the exponential, whose gradient at a large one would be no number.
    if not normalize:
        return scores.masked_fill(hidden, -torch.inf).exp()
    # A finite number keeps the softmax of a query that sees nothing defined; its weights are then set to zero.
    return scores.masked_fill(hidden, torch.finfo(dtype).min / 2).softmax(-1).masked_fill(hidden, 0)


class Block(NamedTuple):
    """Columns of one block: its queries, and the keys that some of them may see."""

    queries: slice
    keys: slice


def block_size(query: Tensor, num_keys: int, window: int | None) -> int | None:
    """Queries (B, H, T, K) to a block: at most a window of them, or what fits; None where all fit at once."""
    numbers, num_queries = query.shape[:2].numel(), query.shape[2]
    if numbers * num_queries * num_keys <= WHOLE_NUMBERS:
        return None
    size = MAX_QUERIES if window is None else min(MAX_QUERIES, max(window, 128))
    while size > MIN_QUERIES:
        span = num_keys if window is None else min(num_keys, size + window - 1)
        if numbers * size * span <= BLOCK_NUMBERS:
            break
        size //= 2
    return size


def blocks(num_queries: int, num_keys: int, size: int, window: int | None) -> Iterator[Block]:
    """Blocks of ``size`` queries, each with the keys from the window of its first to the column of its last one."""
    own = num_keys - num_queries
    for start in range(0, num_queries, size):
        stop = min(start + size, num_queries)
        first = 0 if window is None else max(0, own + start - window + 1)
        yield Block(slice(start, stop), slice(first, own + stop))


class BlockAttention(torch.autograd.Function):
    """Attention over blocks, as one node of the graph that keeps its inputs and its output and nothing else."""

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        decay: Tensor | None,
        slopes: Tensor | None,
        window: int | None,
        dropout: float,
        seed: int,
        normalize: bool,
        size: int,
    ) -> Tensor:
        """Attend.

        Args:
            query: (B, H, T, K).
            key: (B, H, S, K).
            value: (B, H, S, V).
            query_positions: (B, T).
            key_positions: (B, S); -1 marks an empty column.
            decay: Sums L of log decays up to each key (B, H, S), or None.
            slopes: (H,), or None.
            window: Largest distance and one; None for no limit.
            dropout: Share of the weights that dropout zeroes.
            seed: From which both passes draw what is dropped.
            normalize: Whether the weights of a query sum to one.
            size: Queries in a block.

        Returns:
            Outputs (B, H, T, V) in the dtype of the queries.
        """
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        options = (slopes, window, normalize)
        with without_autocast(query):
            for number, (rows, columns) in enumerate(blocks(query.shape[2], key.shape[2], size, window)):
                weights = _weights(query, key, query_positions, key_positions, decay, options, rows, columns)
                kept = _kept(weights, dropout, seed + number)
                weights = weights if kept is None else weights * kept
                output[:, :, rows] = (weights @ value[:, :, columns].to(weights.dtype)).to(output.dtype)
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        *tensors, ctx.window, ctx.dropout, ctx.seed, ctx.normalize, ctx.size = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, slopes, output = ctx.saved_tensors
        options = (slopes, ctx.window, ctx.dropout, ctx.seed, ctx.normalize, ctx.size)
        found = (0,) * (3 if inputs[5] is None else 4)
        query, key, value, *decay = Folded.apply(_backward, (0,) * 8, found, grad, *inputs, output, *options)
        return query, key, value, None, None, decay[0] if decay else None, *[None] * 6

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        named = zip(inputs[:6], in_dims[:6], strict=True)
        folded = [fold_replicas(tensor, in_dim, info.batch_size, 0) for tensor, in_dim in named]
        return unfold_replicas(BlockAttention.apply(*folded, *inputs[6:]), info.batch_size, 0), 0


def _weights(
    query: Tensor,
    key: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    decay: Tensor | None,
    options: tuple[Tensor | None, int | None, bool],
    rows: slice,
    columns: slice,
) -> Tensor:
    positions = query_positions[:, rows], key_positions[:, columns]
    decays = None if decay is None else (_own(decay, query)[:, :, rows], decay[:, :, columns])
    return block_weights(query[:, :, rows], key[:, :, columns], *positions, *options, decays)


def _own(decay: Tensor, query: Tensor) -> Tensor:
    """Of sums up to each key (B, H, S), those of the queries' own columns, which are the last."""
    return decay[:, :, decay.shape[2] - query.shape[2] :]


def _kept(weights: Tensor, dropout: float, seed: int) -> Tensor | None:
    """Zeros where dropout takes a weight, 1 / (1 - dropout) elsewhere; the same for the same seed. None without it."""
    if not dropout:
        return None
    generator = torch.Generator(weights.device).manual_seed(seed)
    return torch.empty_like(weights).bernoulli_(1 - dropout, generator=generator) / (1 - dropout)


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    decay: Tensor | None,
    output: Tensor,
    slopes: Tensor | None,
    window: int | None,
    dropout: float,
    seed: int,
    normalize: bool,
    size: int,
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values, and of decays where there are some, from that of the output."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    grad_query, grad_key, grad_value = (torch.zeros_like(tensor, dtype=dtype) for tensor in (query, key, value))
    grad_decay = None if decay is None else torch.zeros_like(decay)
    scale = 1 / math.sqrt(query.shape[-1])
    options = (slopes, window, normalize)
    with without_autocast(query):
        for number, (rows, columns) in enumerate(blocks(query.shape[2], key.shape[2], size, window)):
            weights = _weights(query, key, query_positions, key_positions, decay, options, rows, columns)
            kept = _kept(weights, dropout, seed + number)
            at_output = grad[:, :, rows].to(dtype)
            dropped = weights if kept is None else weights * kept
            grad_value[:, :, columns] += dropped.mT @ at_output
            at_scores = at_output @ value[:, :, columns].to(dtype).mT
            at_scores = at_scores if kept is None else at_scores * kept
            if normalize:
                at_scores = at_scores - (at_output * output[:, :, rows].to(dtype)).sum(-1, keepdim=True)
            at_scores = at_scores * weights
            if grad_decay is not None:
                _own(grad_decay, query)[:, :, rows] += at_scores.sum(-1)
                grad_decay[:, :, columns] -= at_scores.sum(-2)
            at_scores = at_scores * scale
            grad_query[:, :, rows] = at_scores @ key[:, :, columns].to(dtype)
            grad_key[:, :, columns] += at_scores.mT @ query[:, :, rows].to(dtype)
    grads = grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype)
    return grads if grad_decay is None else (*grads, grad_decay)
