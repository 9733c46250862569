"""Memories that are matrices, by loops over time of a kernel, as one node of the graph."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function

from hf_memory.ops._recorded import must_be_recorded, recorded_gradients
from hf_memory.ops._replicas import fold_into_batch
from hf_memory.ops.backends.dispatch import load_kernel


def matrix_memory(
    form: Callable[..., tuple[Tensor, Tensor]],
    op: str,
    backend: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor | None,
    log_decay: Tensor | None,
    sign: Tensor | None,
    state: Tensor,
    before: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run a kernel over all steps.

    Args:
        form: The same in torch, of the tensors below in their order, for second gradients.
        op: Name of the operation.
        backend: Name of the kernel.
        query: (B, T, H, K).
        key: (B, n T, H, K).
        value: (B, n T, H, V).
        erase: (B, n T, H, K); that of the key if None.
        probe: (B, n T, H, K); nothing is erased if None.
        log_decay: (B, T, H) or (B, T, H, K), or None.
        sign: Signs of the decays, in the same shape, or None.
        state: (B, H, K, V).
        before: Whether queries read before their own step.

    Returns:
        Outputs (B, T, H, V) and the last state.
    """
    tensors = query, key, value, erase, probe, log_decay, sign, state
    return _MatrixMemory.apply(*tensors, before, form, op, backend)[:2]


class _MatrixMemory(Function):
    """The third output is what the kernel keeps for its backward pass."""

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        erase: Tensor | None,
        probe: Tensor | None,
        log_decay: Tensor | None,
        sign: Tensor | None,
        state: Tensor,
        before: bool,
        form: Callable[..., tuple[Tensor, Tensor]],
        op: str,
        backend: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        factor = _factor(log_decay, sign)
        return load_kernel(op, backend).advance(query, key, value, erase, probe, factor, state, before)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, ctx.before, ctx.form, ctx.op, ctx.backend = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, output[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_state: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, sign, state, starts = ctx.saved_tensors
        if must_be_recorded(grad, grad_state):
            inputs = *tensors, sign, state
            found = recorded_gradients(ctx.form, inputs, ctx.needs_input_grad, (grad, grad_state))
            return *found, None, None, None, None
        kernel = load_kernel(ctx.op, ctx.backend)
        *tensors, log_decay = tensors
        factor = _factor(log_decay, sign)
        *grads, of_factor, first = kernel.gradient(*tensors, factor, starts, ctx.before, grad, grad_state)
        of_decay = None if log_decay is None else of_factor.view_as(log_decay)
        return *grads, of_decay, None, first, None, None, None, None  # of signs there is no gradient

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return fold_into_batch(_MatrixMemory, info.batch_size, in_dims, inputs)


def _factor(log_decay: Tensor | None, sign: Tensor | None) -> Tensor | None:
    """Factors of the state (B, T, H, 1 or K), or None."""
    factor = sign if log_decay is None else log_decay.exp() if sign is None else log_decay.exp() * sign
    return factor if factor is None or factor.dim() == 4 else factor.unsqueeze(-1)
