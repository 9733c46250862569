"""The simple recurrent net (Elman, 1990): h_t = phi(W x_t + b + U h_{t-1} + b'), phi = tanh or ReLU."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hf_memory.ops._cells import (
    Folded,
    fold_replicas,
    last_step,
    native_rnn,
    real_part_range,
    state_dtype,
    unfold_replicas,
    weight_gradient,
    without_autocast,
    zero_state,
)
from hf_memory.ops._graph import graph_node
from hf_memory.ops.backends.dispatch import in_function_transform, resolve_backend

Nonlinearity = Literal["tanh", "relu"]


def elman_recurrent(
    hidden_states: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    nonlinearity: Nonlinearity = "tanh",
) -> tuple[Tensor, Tensor]:
    """The definition: one step after the other. Arguments and results are those of :func:`elman`."""
    phi = torch.tanh if nonlinearity == "tanh" else torch.relu
    h = initial = zero_state(hidden_states, weight_hh.shape[1], initial_state)
    steps = []
    for pre in F.linear(hidden_states, weight_ih, bias_ih + bias_hh).unbind(1):
        h = phi(pre + F.linear(h, weight_hh))
        steps.append(h)
    output = torch.stack(steps, dim=1)
    return output, last_step(output, initial, lengths)


class _ElmanLoop(torch.autograd.Function):
    """The loop over time in place: two kernels a step forward, two backward, one product for the weight."""

    @staticmethod
    def forward(pre: Tensor, weight: Tensor, initial: Tensor, relu: bool) -> Tensor:
        """Run from pre-activations (T, R, B, D), weight (R, D, D) and state (R, B, D) to states (T, R, B, D)."""
        output = torch.empty_like(pre, memory_format=torch.contiguous_format)
        h, transposed = initial, weight.mT.contiguous()
        for a, out in zip(pre.unbind(0), output.unbind(0), strict=True):
            torch.baddbmm(a, h, transposed, out=out)
            h = out.relu_() if relu else out.tanh_()
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, weight, initial, ctx.relu = inputs
        ctx.save_for_backward(output, weight, initial)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = (grad, *ctx.saved_tensors)
        return *Folded.apply(_elman_backward, (1, 1, 0, 0), (1, 0, 0), *tensors, ctx.relu), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, pre: Tensor, weight: Tensor, initial: Tensor, relu: bool) -> tuple[Tensor, int]:
        size = info.batch_size
        output = _ElmanLoop.apply(
            fold_replicas(pre, in_dims[0], size, 1),
            fold_replicas(weight, in_dims[1], size, 0),
            fold_replicas(initial, in_dims[2], size, 0),
            relu,
        )
        return unfold_replicas(output, size, 1), 1


def _elman_backward(grad: Tensor, output: Tensor, weight: Tensor, initial: Tensor, relu: bool) -> tuple[Tensor, ...]:
    """Gradients of pre-activations, weight and initial state from that of the states (T, R, B, D)."""
    slope = (output > 0).to(output.dtype) if relu else 1 - output.square()
    grad_pre = torch.empty_like(output)
    grad_pre[-1] = grad[-1] * slope[-1]
    for t in range(len(output) - 2, -1, -1):
        torch.baddbmm(grad[t], grad_pre[t + 1], weight, out=grad_pre[t]).mul_(slope[t])
    return grad_pre, weight_gradient(grad_pre, output, initial), grad_pre[0] @ weight


@graph_node("hidden_states")
def elman(
    hidden_states: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
    nonlinearity: Nonlinearity = "tanh",
) -> tuple[Tensor, Tensor]:
    """Run a simple recurrent net over a sequence, with the weights of ``torch.nn.RNN``.

    Args:
        hidden_states: Inputs x (B, T, I).
        weight_ih: Input weight W (D, I).
        weight_hh: Recurrent weight U (D, D).
        bias_ih: Input bias (D,).
        bias_hh: Recurrent bias (D,).
        initial_state: State h before the first step (B, D); zeros where None.
        lengths: Steps that count in each row (B,), int64.
        backend: ``"auto"`` or ``"torch"``.
        nonlinearity: ``"tanh"`` or ``"relu"``.

    Returns:
        Outputs h (B, T, D) in the dtype of the inputs, and the final state (B, D).

    Raises:
        ValueError: The nonlinearity or the backend is unknown.
    """
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
    dtype = state_dtype(hidden_states)
    resolve_backend("elman", backend, device=hidden_states.device, dtype=dtype)
    with without_autocast(hidden_states):
        x, *weights = (tensor.to(dtype) for tensor in (hidden_states, weight_ih, weight_hh, bias_ih, bias_hh))
        initial = zero_state(x, weights[1].shape[1], initial_state)
        if x.is_cuda and not in_function_transform():
            output, _ = native_rnn(f"rnn_{nonlinearity}", x, (initial,), weights)
        else:
            pre = F.linear(x.transpose(0, 1), weights[0], weights[2] + weights[3])
            loop = _ElmanLoop.apply(pre.unsqueeze(1), weights[1][None], initial[None], nonlinearity == "relu")
            output = loop.squeeze(1).transpose(0, 1)
        return output.to(hidden_states.dtype), last_step(output, initial, lengths)


def elman_spectrum(
    hidden_states: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    nonlinearity: Nonlinearity = "tanh",
) -> Tensor:
    """Smallest and largest real part (B, T, 2) of the eigenvalues of dh_t / dh_{t-1} = diag(phi') U along a run."""
    x = hidden_states.to(state_dtype(hidden_states))
    weights = [weight.to(x.dtype) for weight in (weight_ih, weight_hh, bias_ih, bias_hh)]
    output, _ = elman(x, *weights, nonlinearity=nonlinearity)
    h = output.flatten(0, 1)
    slope = (h > 0).to(h.dtype) if nonlinearity == "relu" else 1 - h.square()
    ranges = real_part_range(lambda rows: slope[rows].unsqueeze(-1) * weights[1], len(h), h.shape[-1])
    return ranges.unflatten(0, output.shape[:2])
