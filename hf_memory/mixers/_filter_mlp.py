"""The MLP of an implicit filter, which Hyena and BaseConv share (see :mod:`hf_memory.ops.implicit_filter`)."""

import math
from itertools import pairwise

import torch
from torch import nn
from transformers import initialization as init


def filter_mlp(num_features: int, size: int, num_layers: int, width: int) -> nn.ModuleList:
    """Linear layers from the features of a position to ``width`` taps, with ``num_layers`` hidden ones after the first.

    They are in float32 whatever the default dtype is: behind some sines, weights rounded to 8 bits are another filter.
    """
    sizes = [num_features, *[size] * (num_layers + 1)]
    hidden = [nn.Linear(low, high, dtype=torch.float32) for low, high in pairwise(sizes)]
    return nn.ModuleList([*hidden, nn.Linear(size, width, bias=False, dtype=torch.float32)])


def reset_filter_mlp(mlp: nn.ModuleList) -> None:
    """The law of ``torch.nn.Linear``: uniform in +-1 / sqrt(fan in)."""
    for linear in mlp:
        bound = 1 / math.sqrt(linear.in_features)
        init.uniform_(linear.weight, -bound, bound)
        if linear.bias is not None:
            init.uniform_(linear.bias, -bound, bound)


def validate_filter(size: int, num_layers: int, num_features: int) -> None:
    """Raise a ``ValueError`` that names the field of the config that is out of range."""
    for name, value, least in (("filter_size", size, 1), ("filter_layers", num_layers, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if num_features < 3 or num_features % 2 == 0:
        raise ValueError(f"filter_features must be odd and at least 3, got {num_features}")
