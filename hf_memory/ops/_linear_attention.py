"""Parts that linear attention shares with its variants: what a state adds up, and how chunks of steps are combined."""

import torch
from torch import Tensor

from hf_memory.ops._chunks import check_shapes, padding_mask


def prepare_values(
    key: Tensor, value: Tensor, normalize: bool, initial_state: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Values and initial state as the recurrence adds them up.

    Args:
        key: Features (B, T, H, K).
        value: Values (B, T, H, V).
        normalize: Append a column of ones, whose sum is the normaliser.
        initial_state: State (B, H, K, V), or (B, H, K, V + 1) with the normaliser; zeros if None.
        lengths: Steps that count in each row (B,): later values are zero. All if None.

    Returns:
        Values (B, T, H, V or V + 1) and state, in at least float32.
    """
    batch, time, heads, key_dim = key.shape
    state_shape = (batch, heads, key_dim, value.shape[-1] + normalize)
    check_shapes(key, value=(value, (batch, time, heads, value.shape[-1])), initial_state=(initial_state, state_shape))
    value = value_columns(value, normalize, lengths)
    state = value.new_zeros(state_shape) if initial_state is None else initial_state.to(value.dtype)
    return value, state


def value_columns(value: Tensor, normalize: bool, lengths: Tensor | None) -> Tensor:
    """The values of :func:`prepare_values` alone."""
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    if normalize:
        value = torch.cat((value, torch.ones_like(value[..., :1])), dim=-1)
    if lengths is not None:
        value = value.masked_fill(padding_mask(lengths, value.shape[1])[:, :, None, None], 0)
    return value


def read_out(sums: Tensor, normalize: bool, eps: float, dtype: torch.dtype) -> Tensor:
    """Divide what the queries read by its last column, where that is the normaliser."""
    if normalize:
        sums = sums[..., :-1] / (sums[..., -1:] + eps)
    return sums.to(dtype)


def combine_chunks(
    query: Tensor, key: Tensor, value: Tensor, scores: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Add what the queries read inside of their chunks to what they read from the states before.

    Args:
        query: Features (G, n, c, K), with G = B H and n chunks of c steps.
        key: Features (G, n, c, K).
        value: Values (G, n, c, V).
        scores: Weights of the values inside of each chunk (G, n, c, c), before decay and causal mask.
        log_decay: Logarithm of the decays (G, n, c), or None.
        state: Initial state (B, H, K, V).

    Returns:
        Sums (G, n, c, V) and the final state (B, H, K, V).
    """
    start = state.flatten(0, 1)
    if log_decay is None:
        states = torch.cumsum(key.transpose(-1, -2) @ value, dim=1) + start.unsqueeze(1)
        before = torch.cat((start.unsqueeze(1), states[:, :-1]), dim=1)
        return query @ before + scores.tril() @ value, states[:, -1].reshape(state.shape)
    total = log_decay.cumsum(-1)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    difference = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(future, -torch.inf)
    kept = key * (total[..., -1:] - total).exp().unsqueeze(-1)
    before, current = [], start
    for factor, added in zip(total[..., -1].exp().unbind(1), (kept.mT @ value).unbind(1), strict=True):
        before.append(current)
        current = factor[:, None, None] * current + added
    decayed = query * total.exp().unsqueeze(-1)
    sums = decayed @ torch.stack(before, dim=1) + (scores * difference.exp()) @ value
    return sums, current.view(state.shape)
