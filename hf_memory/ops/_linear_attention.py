"""Parts that linear attention shares with its variants: what a state adds up, and how it is read."""

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


def value_columns(value: Tensor, normalize: bool, lengths: Tensor | None = None) -> Tensor:
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
