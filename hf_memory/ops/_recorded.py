"""Gradients of an operation whose backward pass is a kernel, where they are differentiated once more."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def recorded_gradients(
    form: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """Gradients of ``form(*inputs)``, each through operations that autograd records; None for what needs none.

    Args:
        form: The operation in torch.
        inputs: Its tensors, as they stand in the graph.
        grad: Gradient that arrives at its output.
    """
    is_wanted = [tensor is not None and tensor.requires_grad for tensor in inputs]
    wanted = [tensor for tensor, want in zip(inputs, is_wanted, strict=True) if want]
    found = iter(torch.autograd.grad(form(*inputs), wanted, grad, create_graph=True))
    return [next(found) if want else None for want in is_wanted]
