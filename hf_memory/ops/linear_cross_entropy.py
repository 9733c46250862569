"""Cross entropy of a linear layer over many classes, without a tensor of all scores.

    loss_n = logsumexp_c(w_c . h_n + b_c) - (w_{t_n} . h_n + b_{t_n})

On a CPU the scores of a vocabulary are the largest tensor of a small model, read and written half a dozen times. Here a
few rows at a time go through all passes while they are in the cache, the gradient included: its one factor that is not
known yet is a number.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_memory.ops.backends.dispatch import in_function_transform

CACHED = 2**18
"""Scores that stay in the cache of a core: 1 MiB in float32."""


def linear_cross_entropy_recurrent(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition: one row after the other. Arguments and results are those of :func:`linear_cross_entropy`."""
    losses, predictions = [hidden.new_zeros(0)], [targets.new_zeros(0)]
    for row, target in zip(hidden, targets, strict=True):
        scores = weight @ row if bias is None else weight @ row + bias
        losses.append((scores.logsumexp(0) - scores[target])[None])
        predictions.append(scores.argmax()[None])
    per_row = torch.cat(losses)
    return per_row.sum(), per_row.detach(), torch.cat(predictions)


def takes(hidden: Tensor, weight: Tensor) -> bool:
    """Whether the form of this module is the one to use: many scores on a CPU, in full precision, nothing sharded."""
    return (
        type(weight) in (torch.Tensor, torch.nn.Parameter)
        and hidden.device.type == "cpu"
        and hidden.dtype == weight.dtype
        and hidden.dtype in (torch.float32, torch.float64)
        and len(hidden) * len(weight) > CACHED
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not in_function_transform()
    )


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the losses, with gradients; each loss and the most likely class, without.

    Args:
        hidden: h (N, D), float32 or float64.
        weight: w (C, D).
        bias: b (C,).
        targets: t (N,), int64 in [0, C).

    Returns:
        The sum of the losses (), the losses (N,), and the classes of the largest scores (N,), the first of equal ones.
    """
    wanted = any(tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias))
    return _LinearCrossEntropy.apply(hidden, weight, bias, targets, wanted and torch.is_grad_enabled())[:3]


class _LinearCrossEntropy(torch.autograd.Function):
    """Losses and, on the way, the gradients of their sum."""

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Results as above, and where ``wanted`` the gradients of hidden, weight and bias."""
        losses, predictions = hidden.new_empty(len(hidden)), torch.empty_like(targets)
        grad_hidden = torch.empty_like(hidden) if wanted else hidden.new_empty(0)
        grad_weight = torch.zeros_like(weight) if wanted else weight.new_empty(0)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        size = max(16, CACHED // len(weight))
        buffer = hidden.new_empty(min(size, len(hidden)), len(weight))
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            block, target = hidden[rows], targets[rows].unsqueeze(1)
            scores = torch.mm(block, weight.T, out=buffer[: len(block)])
            if bias is not None:
                scores += bias
            largest, predictions_of_block = scores.max(-1, keepdim=True)
            predictions[rows] = predictions_of_block.squeeze(1)
            chosen = scores.gather(1, target)
            total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
            losses[rows] = (total.log() + largest - chosen).squeeze(1)
            if not wanted:
                continue
            slope = scores.div_(total).scatter_add_(1, target, torch.full_like(chosen, -1.0))
            torch.mm(slope, weight, out=grad_hidden[rows])
            grad_weight.addmm_(slope.T, block)
            if grad_bias is not None:
                grad_bias += slope.sum(0)
        return losses.sum(), losses, predictions, grad_hidden, grad_weight, grad_bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*output[3:])
        ctx.mark_non_differentiable(*(tensor for tensor in output[1:] if tensor is not None))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        return grad * hidden, grad * weight, None if bias is None else grad * bias, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
        each = [
            _LinearCrossEntropy.apply(
                *(value if dim is None else value.select(dim, i) for value, dim in zip(inputs, in_dims, strict=True))
            )
            for i in range(info.batch_size)
        ]
        outputs = tuple(None if results[0] is None else torch.stack(results) for results in zip(*each, strict=True))
        return outputs, tuple(None if output is None else 0 for output in outputs)
