"""The long short-term memory with forget gate (Hochreiter and Schmidhuber, 1997; Gers et al., 2000).

    i_t, f_t, o_t = sigmoid(W x_t + b + U h_{t-1} + b')
    g_t = tanh(W_g x_t + b_g + U_g h_{t-1} + b'_g)
    c_t = f_t * c_{t-1} + i_t * g_t
    h_t = o_t * tanh(c_t)

Weights stack the blocks i, f, g, o. The fast form is torch's own kernel: oneDNN on a CPU, cuDNN on a GPU.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_memory.ops._cells import (
    last_step,
    native_rnn,
    real_part_range,
    state_dtype,
    without_autocast,
    zero_state,
)
from hf_memory.ops._graph import graph_node
from hf_memory.ops.backends.dispatch import in_function_transform, resolve_backend

# Added to a pre-activation it makes a sigmoid exactly 0 or 1, also where TF32 or bfloat16 rounds.
_SATURATED = 1e6

LSTMState = tuple[Tensor, Tensor]
"""The outputs h (B, D) and the cells c (B, D)."""


def lstm_recurrent(
    hidden_states: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: LSTMState | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, LSTMState]:
    """The definition: one step after the other. Arguments and results are those of :func:`lstm`."""
    initial = _initial(hidden_states, weight_hh, initial_state)
    outputs, cells = _steps(hidden_states, weight_ih, weight_hh, bias_ih, bias_hh, initial)
    return outputs, (last_step(outputs, initial[0], lengths), last_step(cells, initial[1], lengths))


def _steps(
    hidden_states: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor, state: LSTMState
) -> tuple[Tensor, Tensor]:
    """Outputs and cells after every step, each (B, T, D)."""
    h, c = state
    steps = []
    for pre in F.linear(hidden_states, weight_ih, bias_ih + bias_hh).unbind(1):
        i, f, g, o = (pre + F.linear(h, weight_hh)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        steps.append((h, c))
    outputs, cells = zip(*steps, strict=True)
    return torch.stack(outputs, dim=1), torch.stack(cells, dim=1)


@graph_node("hidden_states")
def lstm(
    hidden_states: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: LSTMState | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, LSTMState]:
    """Run a long short-term memory over a sequence, with the weights of ``torch.nn.LSTM``.

    Args:
        hidden_states: Inputs x (B, T, I).
        weight_ih: Input weights W (4 D, I), blocks i, f, g, o.
        weight_hh: Recurrent weights U (4 D, D).
        bias_ih: Input biases (4 D,).
        bias_hh: Recurrent biases (4 D,).
        initial_state: The pair h, c before the first step, each (B, D); zeros where None.
        lengths: Steps that count in each row (B,), int64.
        backend: ``"auto"`` or ``"torch"``.

    Returns:
        Outputs h (B, T, D) in the dtype of the inputs, and the final pair h, c, each (B, D).

    Raises:
        ValueError: The backend is unknown.
    """
    dtype = state_dtype(hidden_states)
    resolve_backend("lstm", backend, device=hidden_states.device, dtype=dtype)
    with without_autocast(hidden_states):
        x, *weights = (tensor.to(dtype) for tensor in (hidden_states, weight_ih, weight_hh, bias_ih, bias_hh))
        initial = _initial(x, weights[1], initial_state)
        if in_function_transform():
            output, (hidden, cell) = lstm_recurrent(x, *weights, initial, lengths)
        elif lengths is None:
            output, hidden, cell = native_rnn("lstm", x, initial, weights)
        else:
            output, _, cell = native_rnn("lstm", *_hold_cells(x, initial, weights, lengths))
            hidden = last_step(output, initial[0], lengths)
        return output.to(hidden_states.dtype), (hidden, cell)


def _hold_cells(
    x: Tensor, initial: LSTMState, weights: list[Tensor], lengths: Tensor
) -> tuple[Tensor, LSTMState, list[Tensor]]:
    """Arguments of the kernel under which cells keep their value past each row's length.

    The kernel returns the last cells only. A further input channel, 1 at padding and 0 elsewhere, opens the forget gate
    and closes the input gate there; both saturate, so that cells and gradients pass exactly.
    """
    padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
    size = weights[1].shape[1]
    column = torch.cat([x.new_full((size,), -_SATURATED), x.new_full((size,), _SATURATED), x.new_zeros(2 * size)])
    x = torch.cat([x.masked_fill(padding.unsqueeze(-1), 0.0), padding.unsqueeze(-1).to(x.dtype)], dim=-1)
    return x, initial, [torch.cat([weights[0], column.unsqueeze(1)], dim=1), *weights[1:]]


def lstm_spectrum(
    hidden_states: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """Smallest and largest real part (B, T, 2) of the eigenvalues of d(h_t, c_t) / d(h_{t-1}, c_{t-1}) along a run."""
    x = hidden_states.to(state_dtype(hidden_states))
    weight_ih, weight_hh, bias_ih, bias_hh = (w.to(x.dtype) for w in (weight_ih, weight_hh, bias_ih, bias_hh))
    initial = _initial(x, weight_hh, None)
    outputs, cells = _steps(x, weight_ih, weight_hh, bias_ih, bias_hh, initial)
    h, c = (
        torch.cat([first.unsqueeze(1), steps[:, :-1]], dim=1).flatten(0, 1)
        for first, steps in zip(initial, (outputs, cells), strict=True)
    )
    pre = F.linear(x.flatten(0, 1), weight_ih, bias_ih + bias_hh) + F.linear(h, weight_hh)
    i, f, g, o = pre.chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    squashed = torch.tanh(cells.flatten(0, 1))
    to_cell = torch.cat([g * i * (1 - i), c * f * (1 - f), i * (1 - g.square())], dim=-1)
    from_gate, from_cell = squashed * o * (1 - o), o * (1 - squashed.square())
    size = c.shape[-1]

    def jacobian(rows: slice) -> Tensor:
        cell_h = (to_cell[rows].unsqueeze(-1) * weight_hh[: 3 * size]).unflatten(1, (3, size)).sum(1)
        out_h = from_gate[rows].unsqueeze(-1) * weight_hh[3 * size :] + from_cell[rows].unsqueeze(-1) * cell_h
        cell_c, out_c = torch.diag_embed(f[rows]), torch.diag_embed(from_cell[rows] * f[rows])
        return torch.cat([torch.cat([out_h, out_c], dim=-1), torch.cat([cell_h, cell_c], dim=-1)], dim=-2)

    return real_part_range(jacobian, len(c), 2 * size).unflatten(0, outputs.shape[:2])


def _initial(inputs: Tensor, weight_hh: Tensor, given: LSTMState | None) -> LSTMState:
    """The pair before the first step, in the dtype of the state."""
    h, c = (None, None) if given is None else given
    return zero_state(inputs, weight_hh.shape[1], h), zero_state(inputs, weight_hh.shape[1], c)
