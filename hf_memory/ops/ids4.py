"""Recurrences with a dense transition matrix made from the input: the input-dependent S4 of Merrill et al. (2024).

    A_t = A(x_t)            transition (N, N), see :func:`transitions`
    state form      h_t = A_t h_{t-1} + b_t                              state h (N)
    product form    P_t = P_{t-1} A_t,   s_t = P_t p                     state P (N, N), P_0 = I

The state form is the recurrence of the paper (section 5.2); the product form is what its published code computes. There
the new factor stands on the right, so that the readout p (N) cannot be absorbed and the whole matrix is the state.
"""

import torch
from torch import Tensor

from hf_memory.ops._cells import real_part_range, state_dtype, without_autocast, zero_state
from hf_memory.ops._graph import graph_node
from hf_memory.ops._ids4_loop import IDS4Loop, Law, Norm, transitions
from hf_memory.ops.backends.dispatch import resolve_backend


def ids4_state_recurrent(
    hidden_states: Tensor,
    inputs: Tensor,
    weight: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    law: Law = "residual",
    norm: Norm = "row",
) -> tuple[Tensor, Tensor]:
    """The definition of the state form. Arguments and results are those of :func:`ids4_state`."""
    h = zero_state(hidden_states, weight.shape[-1], initial_state)
    steps = []
    for t, (x, b) in enumerate(zip(hidden_states.unbind(1), inputs.unbind(1), strict=True)):
        new = (transitions(x[None], weight[None], law, norm)[0] @ h.unsqueeze(-1)).squeeze(-1) + b
        h = new if lengths is None else torch.where((lengths > t)[:, None], new, h)
        steps.append(h)
    return torch.stack(steps, dim=1), h


def ids4_product_recurrent(
    hidden_states: Tensor,
    readout: Tensor,
    weight: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    law: Law = "residual",
    norm: Norm = "row",
) -> tuple[Tensor, Tensor]:
    """The definition of the product form. Arguments and results are those of :func:`ids4_product`."""
    product = _identity(hidden_states, weight.shape[-1]) if initial_state is None else initial_state
    steps = []
    for t, x in enumerate(hidden_states.unbind(1)):
        new = product @ transitions(x[None], weight[None], law, norm)[0]
        product = new if lengths is None else torch.where((lengths > t)[:, None, None], new, product)
        steps.append(product @ readout)
    return torch.stack(steps, dim=1), product


@graph_node("hidden_states", "inputs")
def ids4_state(
    hidden_states: Tensor,
    inputs: Tensor,
    weight: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
    law: Law = "residual",
    norm: Norm = "row",
) -> tuple[Tensor, Tensor]:
    """Run h_t = A(x_t) h_{t-1} + b_t.

    Args:
        hidden_states: Inputs x of the transitions (B, T, I).
        inputs: What is added, b (B, T, N).
        weight: One matrix per input channel, A_i (I, N, N).
        initial_state: State h before the first step (B, N); zeros where None.
        lengths: Steps that count in each row (B,), int64.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``, whose kernel walks through a chunk of time in one launch.
        law: ``"residual"`` or ``"gelu"``, see :func:`transitions`.
        norm: ``"row"`` or ``"none"``.

    Returns:
        The states h (B, T, N) in the dtype of the inputs, and the final state (B, N).

    Raises:
        ValueError: The law, the norm or the backend is unknown.
    """
    dtype, backend = _checked(hidden_states, weight, backend, law, norm)
    with without_autocast(hidden_states):
        initial = zero_state(hidden_states, weight.shape[-1], initial_state)
        added = inputs.to(dtype).transpose(0, 1)[None]
        options = (law, norm, False, backend)
        output, final = _loop(hidden_states.to(dtype), added, weight.to(dtype), initial, lengths, options)
        return output.to(hidden_states.dtype), final


@graph_node("hidden_states")
def ids4_product(
    hidden_states: Tensor,
    readout: Tensor,
    weight: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
    law: Law = "residual",
    norm: Norm = "row",
) -> tuple[Tensor, Tensor]:
    """Run P_t = P_{t-1} A(x_t) and read s_t = P_t p.

    Args:
        hidden_states: Inputs x of the transitions (B, T, I).
        readout: The vector p (N,).
        weight: One matrix per input channel, A_i (I, N, N).
        initial_state: State P before the first step (B, N, N); the identity where None.
        lengths: Steps that count in each row (B,), int64.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``, whose kernel walks through a chunk of time in one launch.
        law: ``"residual"`` or ``"gelu"``, see :func:`transitions`.
        norm: ``"row"`` or ``"none"``.

    Returns:
        The readouts s (B, T, N) in the dtype of the inputs, and the final state (B, N, N).

    Raises:
        ValueError: The law, the norm or the backend is unknown.
    """
    dtype, backend = _checked(hidden_states, weight, backend, law, norm)
    with without_autocast(hidden_states):
        x = hidden_states.to(dtype)
        initial = _identity(x, weight.shape[-1]) if initial_state is None else initial_state.to(dtype)
        options = (law, norm, True, backend)
        output, final = _loop(x, readout.to(dtype)[None], weight.to(dtype), initial, lengths, options)
        return output.to(hidden_states.dtype), final


def ids4_spectrum(hidden_states: Tensor, weight: Tensor, law: Law = "residual", norm: Norm = "row") -> Tensor:
    """Smallest and largest real part (B, T, 2) of the eigenvalues of A_t.

    They are those of both forms: dP_t / dP_{t-1} repeats the eigenvalues of A_t once per row of P.
    """
    dtype = state_dtype(hidden_states)
    x, weight = hidden_states.to(dtype).flatten(0, 1), weight.to(dtype)[None]
    ranges = real_part_range(lambda rows: transitions(x[None, rows], weight, law, norm)[0], len(x), weight.shape[-1])
    return ranges.unflatten(0, hidden_states.shape[:2])


def _loop(
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    initial: Tensor,
    lengths: Tensor | None,
    options: tuple[Law, Norm, bool, str],
) -> tuple[Tensor, Tensor]:
    """Bring batch-first tensors to the layout of the loop and back; options are law, norm, product and backend."""
    padding = None if lengths is None else (torch.arange(x.shape[1], device=x.device)[:, None] >= lengths)[None]
    outputs, final, _ = IDS4Loop.apply(x.transpose(0, 1)[None], added, weight[None], initial[None], padding, *options)
    return outputs[0].transpose(0, 1), final[0]


def _checked(hidden_states: Tensor, weight: Tensor, backend: str, law: str, norm: str) -> tuple[torch.dtype, str]:
    """The dtype of the state and the backend, after a check of the options."""
    if law not in ("residual", "gelu"):
        raise ValueError(f"law must be 'residual' or 'gelu', got {law!r}")
    if norm not in ("row", "none"):
        raise ValueError(f"norm must be 'row' or 'none', got {norm!r}")
    dtype = state_dtype(hidden_states)
    facts = {"device": hidden_states.device, "dtype": dtype, "state_size": weight.shape[-1]}
    return dtype, resolve_backend("ids4", backend, **facts)


def _identity(inputs: Tensor, size: int) -> Tensor:
    """One identity matrix per row of the batch (B, N, N)."""
    identity = torch.eye(size, dtype=state_dtype(inputs), device=inputs.device)
    return identity.expand(inputs.shape[0], size, size)
