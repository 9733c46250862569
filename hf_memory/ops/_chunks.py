"""Chunks of steps, for operations whose state is a matrix."""

import torch
from torch import Tensor


def split_chunks(tensor: Tensor, chunk: int) -> Tensor:
    """Lay (B, T, H, X) out as (B H, T / c, c, X), with steps of zeros at the end where c does not divide T."""
    missing = -tensor.shape[1] % chunk
    padded = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, missing)) if missing else tensor
    return padded.transpose(1, 2).flatten(0, 1).unflatten(1, (-1, chunk)).contiguous()


def join_chunks(chunks: Tensor, batch: int, time: int) -> Tensor:
    """Lay (B H, T / c, c, X) out as (B, T, H, X), without the steps added at the end."""
    return chunks.reshape(batch, -1, chunks.shape[1] * chunks.shape[2], chunks.shape[3])[:, :, :time].transpose(1, 2)


def padding_mask(lengths: Tensor, time: int) -> Tensor:
    """True at steps at and past each row's length: (B, T)."""
    return torch.arange(time, device=lengths.device) >= lengths.unsqueeze(1)


def check_shapes(key: Tensor, **expected: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Compare tensors with their expected shapes, and raise a ``ValueError`` that names the first one that differs."""
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} must have shape {shape} beside a key {tuple(key.shape)}; got {tuple(tensor.shape)}"
            )
