"""What the nonlinear recurrent cells share: native kernels, final states, replica axes, eigenvalues of Jacobians.

The hand-written loops run over time-major tensors (T, R, B, D). The axis R counts replicas, models that differ in their
weights and run side by side: it is 1 in ordinary use, and ``torch.vmap`` is folded into it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def state_dtype(inputs: Tensor) -> torch.dtype:
    """The dtype in which a recurrence over ``inputs`` is computed and its state is held."""
    return torch.promote_types(inputs.dtype, torch.float32)


def zero_state(inputs: Tensor, size: int, given: Tensor | None = None) -> Tensor:
    """The state before the first step (B, size): the given one in the dtype of the state, or zeros."""
    dtype = state_dtype(inputs)
    return inputs.new_zeros(inputs.shape[0], size, dtype=dtype) if given is None else given.to(dtype)


def without_autocast(inputs: Tensor) -> AbstractContextManager[Any]:
    """A context in which recurrences keep the precision of their state."""
    kind = inputs.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def last_step(steps: Tensor, initial: Tensor, lengths: Tensor | None) -> Tensor:
    """The state at each row's own length.

    Args:
        steps: State after every step (B, T, ...).
        initial: State before the first step (B, ...), returned where a length is 0.
        lengths: Steps that count in each row (B,), int64; None where all T do.

    Returns:
        The final state (B, ...).
    """
    if lengths is None:
        return steps[:, -1].clone()  # a view would keep the whole sequence alive
    trailing = [1] * (initial.dim() - 1)
    index = (lengths - 1).clamp_min(0).view(-1, 1, *trailing).expand(-1, 1, *initial.shape[1:])
    return torch.where(lengths.view(-1, *trailing) > 0, steps.gather(1, index).squeeze(1), initial)


def native_rnn(kernel: str, inputs: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One layer of the kernels behind ``torch.nn.RNN``, ``LSTM`` and ``GRU``: oneDNN or cuDNN where they apply.

    On a GPU float32 products follow ``torch.backends.cudnn.allow_tf32``, as in those modules.

    Args:
        kernel: ``"lstm"``, ``"gru"``, ``"rnn_tanh"`` or ``"rnn_relu"``.
        inputs: Inputs (B, T, D).
        state: Tensors (B, D) before the first step: h, and for the LSTM c.
        weights: Input weight, recurrent weight, input bias, recurrent bias.

    Returns:
        Outputs (B, T, D), and the tensors of the state after the last step.
    """
    if not torch.is_grad_enabled():
        # oneDNN rounds otherwise where gradients are off, so that a checkpointed pass would differ from its repetition.
        inputs, state, weights = inputs.detach(), [s.detach() for s in state], [w.detach() for w in weights]
    if inputs.is_cuda:
        weights = one_block(weights)
    carried = tuple(tensor.unsqueeze(0).contiguous() for tensor in state)
    with torch.enable_grad():
        output, *final = getattr(torch._VF, kernel)(
            inputs,
            carried if kernel == "lstm" else carried[0],
            list(weights),
            True,  # biases
            1,  # layers
            0.0,  # dropout
            True,  # train: without it cuDNN has no backward pass
            False,  # bidirectional
            True,  # batch first
        )
    return output, *(tensor.squeeze(0) for tensor in final)


def one_block(weights: Sequence[Tensor]) -> list[Tensor]:
    """Views into one contiguous copy of the weights, the layout that cuDNN wants and otherwise warns about."""
    block = torch.cat([weight.reshape(-1) for weight in weights])
    parts = block.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def fold_replicas(tensor: Tensor | None, in_dim: int | None, num_replicas: int, axis: int) -> Tensor | None:
    """Move the axis of a vmap, or a new one where the tensor has none, into the replica axis at ``axis``."""
    if tensor is None:
        return None
    if in_dim is None:
        shape = (*tensor.shape[:axis], num_replicas, *tensor.shape[axis:])
        tensor = tensor.unsqueeze(axis).expand(shape)
    else:
        tensor = tensor.movedim(in_dim, axis)
    return tensor.flatten(axis, axis + 1)


def unfold_replicas(tensor: Tensor, num_replicas: int, axis: int) -> Tensor:
    """Undo :func:`fold_replicas`: the axis of the vmap stands at ``axis`` again."""
    return tensor.unflatten(axis, (num_replicas, tensor.shape[axis] // num_replicas))


class Folded(torch.autograd.Function):
    """A function of tensors with a replica axis, which ``torch.vmap`` can run though it works in place.

    The backward passes of the loops go through it, so that ``jacrev`` and per-sample gradients work; it has no backward
    pass of its own.
    """

    @staticmethod
    def forward(function: Callable, in_axes: Sequence[int], out_axes: Sequence[int], *args: Any) -> tuple[Tensor, ...]:
        """Call ``function(*args)``; ``in_axes`` and ``out_axes`` say where the replica axes of its tensors stand."""
        return function(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, function: Callable, in_axes: Sequence[int], out_axes: Sequence[int], *args: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count, size = len(in_axes), info.batch_size
        named = zip(args[:count], in_dims[3 : 3 + count], in_axes, strict=True)
        folded = [fold_replicas(tensor, in_dim, size, axis) for tensor, in_dim, axis in named]
        outputs = Folded.apply(function, in_axes, out_axes, *folded, *args[count:])
        unfolded = zip(outputs, out_axes, strict=True)
        return tuple(unfold_replicas(output, size, axis) for output, axis in unfolded), tuple(out_axes)


def weight_gradient(grads: Tensor, states: Tensor, initial: Tensor) -> Tensor:
    """Gradient of a recurrent weight as one product over all steps: sum_t grad_t^T state_{t-1}.

    Args:
        grads: Gradient at the recurrent term of every step (T, R, B, G).
        states: State after every step (T, R, B, D).
        initial: State before the first step (R, B, D).

    Returns:
        The gradient (R, G, D).
    """
    first = grads[0].mT @ initial
    if len(grads) == 1:
        return first
    return first + replica_rows(grads[1:]).mT @ replica_rows(states[:-1])


def replica_rows(tensor: Tensor) -> Tensor:
    """(T, R, B, D) as (R, T B, D)."""
    return tensor.transpose(0, 1).flatten(1, 2)


def real_part_range(jacobian: Callable[[slice], Tensor], num_tokens: int, size: int) -> Tensor:
    """Smallest and largest real part of the eigenvalues of one Jacobian per token.

    Args:
        jacobian: Gives the Jacobians (n, size, size) of a slice of n tokens.
        num_tokens: Number of tokens.
        size: Numbers in the state.

    Returns:
        A tensor (num_tokens, 2). Only about 16 MiB of Jacobians exist at a time.
    """
    step = max(1, 2**22 // size**2)
    ranges = []
    for start in range(0, num_tokens, step):
        real = torch.linalg.eigvals(jacobian(slice(start, min(start + step, num_tokens)))).real
        ranges.append(torch.stack([real.amin(-1), real.amax(-1)], dim=-1))
    return torch.cat(ranges)
