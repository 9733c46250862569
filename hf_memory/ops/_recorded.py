"""Gradients of an operation whose backward pass is a kernel, where a transform or a second gradient stands above it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_memory.ops.backends.dispatch import in_function_transform


def must_be_recorded(*grads: Tensor) -> bool:
    """Whether a backward pass is differentiated itself, or runs for many gradients at once: kernels can do neither.

    Args:
        *grads: The gradients that arrive, of which ``is_grads_batched`` of ``torch.autograd.grad`` makes many.
    """
    if torch.is_grad_enabled() or in_function_transform():
        return True
    return any(torch._C._functorch.is_legacy_batchedtensor(grad) for grad in grads)


def recorded_gradients(
    form: Callable[..., Any], inputs: Sequence[Tensor | None], is_wanted: Sequence[bool], grads: Any
) -> list[Tensor | None]:
    """Gradients of ``form(*inputs)`` through operations that autograd and ``torch.func`` see.

    Args:
        form: The operation in torch, with one output or several.
        inputs: Its tensors, as they were saved; None where there is none.
        is_wanted: Which of them need a gradient. Inside of a transform the tensors do not tell.
        grads: What arrives at its output or, as a tuple, at each of them.

    Returns:
        A gradient for each input; None where none is wanted.
    """
    wanted = [index for index, want in enumerate(is_wanted[: len(inputs)]) if want]

    def of_wanted(*values: Tensor) -> Any:
        own = dict(zip(wanted, values, strict=True))
        return form(*(own.get(index, tensor) for index, tensor in enumerate(inputs)))

    _, back = torch.func.vjp(of_wanted, *(inputs[index] for index in wanted))
    found = dict(zip(wanted, back(grads), strict=True))
    return [found.get(index) for index in range(len(inputs))]
