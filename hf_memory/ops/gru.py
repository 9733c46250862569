"""The gated recurrent unit, in the form that resets after the recurrent product.

With r and z the reset and update gates (Cho et al., 2014, equations 5 to 8; the form of cuDNN and ``torch.nn.GRU``, in
which the reset gate multiplies the product U_n h instead of h):

    r_t, z_t = sigmoid(W x_t + b + U h_{t-1} + b')
    n_t = tanh(W_n x_t + b_n + r_t * (U_n h_{t-1} + b'_n))
    h_t = (1 - z_t) * n_t + z_t * h_{t-1}

Weights stack the blocks r, z, n.
"""

from typing import Any

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


def gru_recurrent(
    hidden_states: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition: one step after the other. Arguments and results are those of :func:`gru`."""
    h = initial = zero_state(hidden_states, weight_hh.shape[1], initial_state)
    steps = []
    for pre in F.linear(hidden_states, weight_ih, bias_ih).unbind(1):
        pre_r, pre_z, pre_n = pre.chunk(3, dim=-1)
        rec_r, rec_z, rec_n = F.linear(h, weight_hh, bias_hh).chunk(3, dim=-1)
        r, z = torch.sigmoid(pre_r + rec_r), torch.sigmoid(pre_z + rec_z)
        n = torch.tanh(pre_n + r * rec_n)
        h = (1 - z) * n + z * h
        steps.append(h)
    output = torch.stack(steps, dim=1)
    return output, last_step(output, initial, lengths)


class _GRULoop(torch.autograd.Function):
    """The loop over time in place: six kernels a step forward, three backward, one product for the weight."""

    @staticmethod
    def forward(pre: Tensor, weight: Tensor, bias: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the recurrence.

        Args:
            pre: Input part W x + b of the three blocks (T, R, B, 3 D).
            weight: Recurrent weight U (R, 3 D, D).
            bias: Recurrent bias b' (R, 1, 3 D).
            initial: State (R, B, D).

        Returns:
            The states (T, R, B, D), and for the backward pass r, z, U_n h + b'_n (T, R, B, 3 D) and n (T, R, B, D).
        """
        size = initial.shape[-1]
        h, transposed = initial, weight.mT.contiguous()
        gates = torch.empty_like(pre, memory_format=torch.contiguous_format)
        output = initial.new_empty(len(pre), *initial.shape)
        candidates = torch.empty_like(output)
        pre_rz, pre_n = pre.split([2 * size, size], dim=-1)
        for t, (a_rz, a_n) in enumerate(zip(pre_rz.unbind(0), pre_n.unbind(0), strict=True)):
            torch.baddbmm(bias, h, transposed, out=gates[t])
            gates[t, ..., : 2 * size].add_(a_rz).sigmoid_()
            r, z, recurrent = gates[t].split(size, dim=-1)
            torch.addcmul(a_n, r, recurrent, out=candidates[t]).tanh_()
            h = torch.lerp(candidates[t], h, z, out=output[t])
        return output, gates, candidates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, weight, _, initial = inputs
        ctx.save_for_backward(*output, weight, initial)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint gives each tensor out a single time
        grad = torch.zeros_like(saved[0]) if grad is None else grad
        return Folded.apply(_gru_backward, (1, 1, 1, 1, 0, 0), (1, 0, 0, 0), grad, *saved)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, pre: Tensor, weight: Tensor, bias: Tensor, initial: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        size = info.batch_size
        outputs = _GRULoop.apply(
            fold_replicas(pre, in_dims[0], size, 1),
            fold_replicas(weight, in_dims[1], size, 0),
            fold_replicas(bias, in_dims[2], size, 0),
            fold_replicas(initial, in_dims[3], size, 0),
        )
        return tuple(unfold_replicas(output, size, 1) for output in outputs), (1, 1, 1)


def _gru_backward(
    grad: Tensor, output: Tensor, gates: Tensor, n: Tensor, weight: Tensor, initial: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of input part, weight, bias and initial state from that of the states (T, R, B, D)."""
    size = initial.shape[-1]
    r, z, recurrent = gates.split(size, dim=-1)
    # A step's derivatives with respect to its pre-activations are diagonal and known for all steps at once.
    slope_n = (1 - n.square()).mul_(1 - z)
    grad_rec = torch.empty_like(gates)
    slope_r, slope_z, slope_rec = grad_rec.split(size, dim=-1)
    torch.mul(slope_n, r, out=slope_rec)
    torch.mul(slope_rec, recurrent, out=slope_r).mul_(1 - r)
    torch.sub(output, n, out=slope_z).mul_(1 - z)  # z (h_{t-1} - n) = h_t - n
    blocks = grad_rec.unflatten(-1, (3, size))
    grad_h = grad.clone(memory_format=torch.contiguous_format)
    carried, grad_initial = torch.empty_like(initial), torch.zeros_like(initial)
    for t in range(len(output) - 1, -1, -1):
        blocks[t].mul_(grad_h[t].unsqueeze(-2))
        torch.addcmul(grad_h[t - 1] if t else grad_initial, grad_h[t], z[t], out=carried)
        torch.baddbmm(carried, grad_rec[t], weight, out=grad_h[t - 1] if t else grad_initial)
    grad_weight, grad_bias = weight_gradient(grad_rec, output, initial), grad_rec.sum((0, 2)).unsqueeze(1)
    torch.mul(grad_h, slope_n, out=slope_rec)  # from here on the gradient of the input part
    return grad_rec, grad_weight, grad_bias, grad_initial


@graph_node("hidden_states")
def gru(
    hidden_states: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run a gated recurrent unit over a sequence, with the weights of ``torch.nn.GRU``.

    Args:
        hidden_states: Inputs x (B, T, I).
        weight_ih: Input weights (3 D, I), blocks r, z, n.
        weight_hh: Recurrent weights (3 D, D).
        bias_ih: Input biases (3 D,).
        bias_hh: Recurrent biases (3 D,).
        initial_state: State h before the first step (B, D); zeros where None.
        lengths: Steps that count in each row (B,), int64.
        backend: ``"auto"`` or ``"torch"``.

    Returns:
        Outputs h (B, T, D) in the dtype of the inputs, and the final state (B, D).

    Raises:
        ValueError: The backend is unknown.
    """
    dtype = state_dtype(hidden_states)
    resolve_backend("gru", backend, device=hidden_states.device, dtype=dtype)
    with without_autocast(hidden_states):
        x, *weights = (tensor.to(dtype) for tensor in (hidden_states, weight_ih, weight_hh, bias_ih, bias_hh))
        initial = zero_state(x, weights[1].shape[1], initial_state)
        if x.is_cuda and not in_function_transform():
            output, _ = native_rnn("gru", x, (initial,), weights)
        else:
            pre = F.linear(x.transpose(0, 1), weights[0], weights[2])
            loop = _GRULoop.apply(pre.unsqueeze(1), weights[1][None], weights[3].view(1, 1, -1), initial[None])[0]
            output = loop.squeeze(1).transpose(0, 1)
        return output.to(hidden_states.dtype), last_step(output, initial, lengths)


def gru_spectrum(
    hidden_states: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """Smallest and largest real part (B, T, 2) of the eigenvalues of dh_t / dh_{t-1} along a run."""
    x = hidden_states.to(state_dtype(hidden_states))
    weight_ih, weight_hh, bias_ih, bias_hh = (w.to(x.dtype) for w in (weight_ih, weight_hh, bias_ih, bias_hh))
    output, _ = gru(x, weight_ih, weight_hh, bias_ih, bias_hh)
    previous = torch.cat([zero_state(x, weight_hh.shape[1]).unsqueeze(1), output[:, :-1]], dim=1).flatten(0, 1)
    pre_r, pre_z, pre_n = F.linear(x.flatten(0, 1), weight_ih, bias_ih).chunk(3, dim=-1)
    rec_r, rec_z, rec_n = F.linear(previous, weight_hh, bias_hh).chunk(3, dim=-1)
    r, z = torch.sigmoid(pre_r + rec_r), torch.sigmoid(pre_z + rec_z)
    n = torch.tanh(pre_n + r * rec_n)
    slope_n = (1 - z) * (1 - n.square())
    slopes = torch.cat([slope_n * rec_n * r * (1 - r), (previous - n) * z * (1 - z), slope_n * r], dim=-1)

    def jacobian(rows: slice) -> Tensor:
        blocks = (slopes[rows].unsqueeze(-1) * weight_hh).unflatten(1, (3, -1))
        return blocks.sum(1) + torch.diag_embed(z[rows])

    return real_part_range(jacobian, len(previous), z.shape[-1]).unflatten(0, output.shape[:2])
