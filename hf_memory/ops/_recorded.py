"""Gradients of an operation whose backward pass is a kernel, where they are differentiated once more."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def recorded_gradients(
    form: Callable[..., Any], inputs: Sequence[Tensor | None], grads: Tensor | Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of ``form(*inputs)``, each through operations that autograd records; None for what needs none.

    Args:
        form: The operation in torch, with one output or several.
        inputs: Its tensors, as they stand in the graph.
        grads: What arrives at its output or at each of them.
    """
    is_wanted = [tensor is not None and tensor.requires_grad for tensor in inputs]
    wanted = [tensor for tensor, want in zip(inputs, is_wanted, strict=True) if want]
    found = iter(torch.autograd.grad(form(*inputs), wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if want else None for want in is_wanted]
