"""Errors for tensors whose shapes do not fit together."""

from collections.abc import Sequence

from torch import Tensor


def check_shapes(expected: dict[str, tuple[Tensor | None, Sequence[int]]]) -> None:
    """Raise a ``ValueError`` that names the first tensor without its shape. None is not checked.

    Args:
        expected: Tensor and shape under each name.
    """
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != tuple(shape):
            raise ValueError(f"{name} must have the shape {tuple(shape)}, got {tuple(tensor.shape)}")
