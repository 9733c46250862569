"""Chunks of steps, for operations whose state is a matrix."""

import torch
from torch import Tensor


def split_chunks(tensor: Tensor, chunk: int) -> Tensor:
    """Lay (B, T, H, X) out as (B H, T / c, c, X), with steps of zeros at the end where c does not divide T."""
    missing = -tensor.shape[1] % chunk
    padded = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, missing)) if missing else tensor
    return padded.transpose(1, 2).flatten(0, 1).unflatten(1, (-1, chunk)).contiguous()


def split_decay(log_decay: Tensor | None, chunk: int) -> Tensor | None:
    """Lay log decays (B, T, H) or (B, T, H, K) out in chunks; steps added at the end do not decay."""
    if log_decay is None or log_decay.dim() == 4:
        return None if log_decay is None else split_chunks(log_decay, chunk)
    return split_chunks(log_decay.unsqueeze(-1), chunk).squeeze(-1)


def join_chunks(chunks: Tensor, batch: int, time: int) -> Tensor:
    """Lay (B H, T / c, c, X) out as (B, T, H, X), without the steps added at the end."""
    return chunks.reshape(batch, -1, chunks.shape[1] * chunks.shape[2], chunks.shape[3])[:, :, :time].transpose(1, 2)


def chain_chunks(factor: Tensor | None, added: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """States S' = F S + A from chunk to chunk.

    Args:
        factor: F of each chunk: a number (G, n), or one for each key (G, n, K); 1 if None.
        added: A (G, n, K, V).
        start: State before the first chunk (G, K, V).

    Returns:
        States before each chunk (G, n, K, V), and the one after the last (G, K, V).
    """
    if factor is None:
        states = torch.cumsum(added, dim=1) + start.unsqueeze(1)
        return torch.cat((start.unsqueeze(1), states[:, :-1]), dim=1), states[:, -1]
    factor = factor.reshape(*factor.shape[:2], -1, 1)
    before, current = [], start
    for step, new in zip(factor.unbind(1), added.unbind(1), strict=True):
        before.append(current)
        current = torch.addcmul(new, step, current)
    return torch.stack(before, dim=1), current


def power_of_two(steps: int) -> int:
    """The smallest power of two that is not below a number of steps."""
    return 1 << (steps - 1).bit_length()


def padding_mask(lengths: Tensor, time: int) -> Tensor:
    """True at steps at and past each row's length: (B, T)."""
    return torch.arange(time, device=lengths.device) >= lengths.unsqueeze(1)


def keep_padding(tensor: Tensor | None, padding: Tensor, neutral: float) -> Tensor | None:
    """A gate (B, T, H) or (B, T, H, K) with a neutral number where padding (B, T, 1, 1) stands."""
    if tensor is None:
        return None
    return tensor.masked_fill(padding if tensor.dim() == 4 else padding.squeeze(-1), neutral)


def check_shapes(key: Tensor, **expected: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Compare tensors with their expected shapes, and raise a ``ValueError`` that names the first one that differs."""
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} must have shape {shape} beside a key {tuple(key.shape)}; got {tuple(tensor.shape)}"
            )
