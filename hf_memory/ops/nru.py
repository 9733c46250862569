"""The non-saturating recurrent unit (Chandar et al., 2019), after the published code.

With [a, b] a concatenation, k heads, a memory m of M numbers, and side = sqrt(k M):

    h_t = relu(norm(W x_t + b + U [h_{t-1}, m_{t-1}]))                         norm: layer norm or none
    alpha, beta (k), p^a, q^a, p^b, q^b (side) = G [h_t, m_{t-1}] + b_G        gains and directions
    v = rows of (p q^T, read as k rows of M), each divided by max(|row|_5, eps)
    m_t = m_{t-1} + reduce_i (alpha_i v^a_i - beta_i v^b_i)                    reduce: mean or sum over the heads

alpha writes and beta erases. Gains and directions may pass through a ReLU. The rows of G are alpha, beta, p^a, p^b,
q^a, q^b.

Where side is a multiple of k, and M therefore k r^2 with side = k r, a head's row is the outer product of its own part
p_i (r) with all of q. Its norm is |p_i|_5 |q|_5, and the sum over heads is one outer product (sum_i c_i p_i) q^T: the
fast form never builds the k rows.

Both forms scale p and q before their product, so that a memory of any size that a float can hold is updated. One that
outgrows floats becomes infinite or no number, and never stands still.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.nn import functional as F

from hf_memory.ops._cells import last_step, real_part_range, state_dtype, without_autocast, zero_state
from hf_memory.ops._graph import graph_node
from hf_memory.ops._nru_loop import LAYER_NORM_EPS, NORM_FLOOR, NRULoop
from hf_memory.ops.backends.dispatch import resolve_backend

NRUState = tuple[Tensor, Tensor]
"""The hidden state h (B, D) and the memory m (B, M)."""

Reduce = Literal["mean", "sum"]


def nru_recurrent(
    hidden_states: Tensor,
    weight_ih: Tensor,
    bias_ih: Tensor,
    weight_hh: Tensor,
    weight_memory: Tensor,
    bias_memory: Tensor,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    initial_state: NRUState | None = None,
    lengths: Tensor | None = None,
    num_heads: int = 4,
    reduce: Reduce = "mean",
    relu_gains: bool = False,
    relu_directions: bool = False,
) -> tuple[Tensor, NRUState]:
    """The definition: one step after the other. Arguments and results are those of :func:`nru`."""
    h, m = initial = _initial(hidden_states, weight_hh, initial_state)
    steps = []
    for pre in F.linear(hidden_states, weight_ih, bias_ih).unbind(1):
        h = pre + F.linear(torch.cat([h, m], dim=-1), weight_hh)
        if norm_weight is not None:
            h = F.layer_norm(h, h.shape[-1:], norm_weight, norm_bias, LAYER_NORM_EPS)
        h = torch.relu(h)
        gates = F.linear(torch.cat([h, m], dim=-1), weight_memory, bias_memory)
        m = m + _update(gates, m.shape[-1], num_heads, reduce, relu_gains, relu_directions)
        steps.append((h, m))
    outputs, memories = (torch.stack(tensors, dim=1) for tensors in zip(*steps, strict=True))
    return outputs, (last_step(outputs, initial[0], lengths), last_step(memories, initial[1], lengths))


def _update(
    gates: Tensor, memory_size: int, num_heads: int, reduce: Reduce, relu_gains: bool, relu_directions: bool
) -> Tensor:
    """What is added to the memory (B, M), from gains and directions (B, 2 k + 4 side)."""
    side = math.isqrt(num_heads * memory_size)
    gains, p, q = gates.split([2 * num_heads, 2 * side, 2 * side], dim=-1)
    (p, size_p), (q, size_q) = (_scaled(direction.unflatten(-1, (2, side))) for direction in (p, q))
    rows = (p.unsqueeze(-1) * q.unsqueeze(-2)).reshape(-1, 2, num_heads, memory_size)
    if relu_gains:
        gains = torch.relu(gains)
    if relu_directions:
        rows = torch.relu(rows)
    # The floor is that of the rows before they were scaled, and its fifth power kept within float64.
    floor = (NORM_FLOOR / size_p.double() / size_q.double()).clamp(1e-60, 1e60).unsqueeze(-1)
    fifth_powers = rows.double().abs().pow(5).sum(-1, keepdim=True)
    rows = rows / torch.maximum(fifth_powers, floor.pow(5)).pow(0.2).to(rows.dtype)
    writes, erases = (gains.unflatten(-1, (2, num_heads, 1)) * rows).unbind(1)
    change = writes - erases
    return change.mean(1) if reduce == "mean" else change.sum(1)


def _scaled(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (..., n) over their largest number, and that number (..., 1), a constant to the gradient; 1 for zeros.

    A direction does not change where its two vectors are scaled, and their product then stays in range.
    """
    largest = vectors.detach().abs().amax(-1, keepdim=True)
    largest = torch.where(largest == 0, torch.ones_like(largest), largest)
    return vectors / largest, largest


@graph_node("hidden_states")
def nru(
    hidden_states: Tensor,
    weight_ih: Tensor,
    bias_ih: Tensor,
    weight_hh: Tensor,
    weight_memory: Tensor,
    bias_memory: Tensor,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    initial_state: NRUState | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
    num_heads: int = 4,
    reduce: Reduce = "mean",
    relu_gains: bool = False,
    relu_directions: bool = False,
) -> tuple[Tensor, NRUState]:
    """Run a non-saturating recurrent unit over a sequence.

    Args:
        hidden_states: Inputs x (B, T, I).
        weight_ih: Input weight W (D, I).
        bias_ih: Input bias b (D,).
        weight_hh: Weight U (D, D + M) on h and m.
        weight_memory: Weight G (2 k + 4 side, D + M) of gains and directions, side = sqrt(k M).
        bias_memory: Their bias (2 k + 4 side,).
        norm_weight: Scale of the layer norm (D,); None for no norm.
        norm_bias: Shift of the layer norm (D,).
        initial_state: The pair h (B, D), m (B, M) before the first step; zeros where None.
        lengths: Steps that count in each row (B,), int64.
        backend: ``"auto"``, ``"torch"``, ``"numba"`` or ``"triton"``, whose kernels write to the memory in one piece.
        num_heads: Heads k.
        reduce: ``"mean"`` (published code) or ``"sum"`` (paper) over the heads.
        relu_gains: Pass the gains through a ReLU.
        relu_directions: Pass the outer products through a ReLU.

    Returns:
        Outputs h (B, T, D) in the dtype of the inputs, and the final pair h, m.

    Raises:
        ValueError: k M is not a square, the shape of ``weight_memory`` is another, or a name is unknown.
    """
    dtype = state_dtype(hidden_states)
    backend = resolve_backend("nru", backend, device=hidden_states.device, dtype=dtype)
    side = _check(weight_hh, weight_memory, num_heads, reduce)
    weights = [weight_ih, bias_ih, weight_hh, weight_memory, bias_memory, norm_weight, norm_bias]
    with without_autocast(hidden_states):
        x = hidden_states.to(dtype)
        weights = [weight if weight is None else weight.to(dtype) for weight in weights]
        initial = _initial(x, weight_hh, initial_state)
        if relu_directions or side % num_heads:
            output, final = nru_recurrent(x, *weights, initial, lengths, num_heads, reduce, relu_gains, relu_directions)
        else:
            scale = 1 / num_heads if reduce == "mean" else 1.0
            states = _fast(x, *weights, torch.cat(initial, dim=-1), num_heads, scale, relu_gains, backend)
            output, memories = states.split([tensor.shape[-1] for tensor in initial], dim=-1)
            final = last_step(output, initial[0], lengths), last_step(memories, initial[1], lengths)
        return output.to(hidden_states.dtype), final


def _fast(
    x: Tensor,
    weight_ih: Tensor,
    bias_ih: Tensor,
    weight_hh: Tensor,
    weight_memory: Tensor,
    bias_memory: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    initial: Tensor,
    num_heads: int,
    scale: float,
    relu_gains: bool,
    backend: str,
) -> Tensor:
    """The pairs h, m after every step (B, T, D + M)."""
    pre = F.linear(x.transpose(0, 1), weight_ih, bias_ih).unsqueeze(1)
    norm = [None if tensor is None else tensor.view(1, 1, -1) for tensor in (norm_weight, norm_bias)]
    bias = bias_memory.view(1, 1, -1)
    loop = NRULoop.apply(
        pre, weight_hh[None], weight_memory[None], bias, *norm, initial[None], num_heads, scale, relu_gains, backend
    )
    return loop[0].squeeze(1).transpose(0, 1)


def nru_spectrum(
    hidden_states: Tensor,
    *weights: Tensor | None,
    num_heads: int = 4,
    reduce: Reduce = "mean",
    relu_gains: bool = False,
    relu_directions: bool = False,
) -> Tensor:
    """Smallest and largest real part (B, T, 2) of the eigenvalues of d(h_t, m_t) / d(h_{t-1}, m_{t-1}) along a run."""
    x = hidden_states.to(state_dtype(hidden_states))
    weights = tuple(weight if weight is None else weight.to(x.dtype) for weight in weights)
    size = weights[2].shape[0]
    options = (None, num_heads, reduce, relu_gains, relu_directions)
    state, before = torch.cat(_initial(x, weights[2], None), dim=-1), []

    def step(column: Tensor, state: Tensor) -> Tensor:
        _, pair = nru_recurrent(column[None, None], *weights, (state[None, :size], state[None, size:]), *options)
        return torch.cat(pair, dim=-1)[0]

    with torch.no_grad():
        for column in x.unbind(1):
            before.append(state)
            state = vmap(step)(column, state)
        columns, states = x.flatten(0, 1), torch.stack(before, dim=1).flatten(0, 1)
        jacobians = vmap(jacrev(step, argnums=1))
        ranges = real_part_range(lambda rows: jacobians(columns[rows], states[rows]), len(states), states.shape[-1])
    return ranges.unflatten(0, x.shape[:2])


def _check(weight_hh: Tensor, weight_memory: Tensor, num_heads: int, reduce: str) -> int:
    """The side of the square that the directions span."""
    if reduce not in ("mean", "sum"):
        raise ValueError(f"reduce must be 'mean' or 'sum', got {reduce!r}")
    memory_size = weight_hh.shape[1] - weight_hh.shape[0]
    side = math.isqrt(num_heads * memory_size)
    if side**2 != num_heads * memory_size:
        raise ValueError(f"num_heads * memory_size must be a square, got {num_heads} * {memory_size}")
    if len(weight_memory) != 2 * num_heads + 4 * side:
        raise ValueError(f"weight_memory must have {2 * num_heads + 4 * side} rows, got {len(weight_memory)}")
    return side


def _initial(inputs: Tensor, weight_hh: Tensor, given: NRUState | None) -> NRUState:
    """The pair before the first step, in the dtype of the state."""
    h, m = (None, None) if given is None else given
    size, both = weight_hh.shape
    return zero_state(inputs, size, h), zero_state(inputs, both - size, m)
