"""A linear time-invariant state space with a diagonal transition: S4D (Gu et al., 2022, section 3).

    h_t[d, n] = lambda[d, n] h_{t-1}[d, n] + x_t[d]
    y_t[d]    = 2 Re sum_n c[d, n] h_t[d, n]

Eigenvalues come in conjugate pairs and one of each pair is kept, N/2 complex numbers for a state of N real ones; the
factor 2 Re stands for the other. Input weights b and discretisation factors are part of c, as only their product
matters for the output.

The fast form cuts time into chunks of c steps. Inside a chunk the map is a Toeplitz matrix (c, c) per channel; between
chunks the state is handed on. Both are batched real matrix products, and time and memory grow linearly in T. The powers
of lambda come from repeated multiplication, so no logarithm is taken and lambda = 0 is an ordinary value.

Of a sequence of at most one chunk with no state before or after it only the Toeplitz matrix is left.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._graph import graph_node
from hf_memory.ops._shapes import check_shapes
from hf_memory.ops.backends.dispatch import resolve_backend

_CHUNK = 32


@graph_node("x")
def diagonal_ssm(
    x: Tensor,
    eigenvalues: Tensor,
    output_weights: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    return_final_state: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Run the state space over time.

    Args:
        x: Inputs (B, T, D), real.
        eigenvalues: lambda (D, N/2), complex.
        output_weights: c (D, N/2), complex.
        initial_state: State before the first step (B, D, N/2), complex; zeros if None.
        lengths: Real steps in each row (B,), int64; None where all T are real.
        return_final_state: Whether the final state is wanted.
        backend: ``"auto"`` or a name of :mod:`hf_memory.ops.backends.dispatch`.

    Returns:
        Outputs (B, T, D) in the dtype of ``x``, and the state (B, D, N/2) after each row's last real step, complex with
        parts of at least float32, or None.

    Raises:
        ValueError: Shapes disagree, or the backend is unknown.
    """
    inputs, eigenvalues, output_weights, state = _prepared(x, eigenvalues, output_weights, initial_state)
    resolve_backend("diagonal_ssm", backend, device=x.device, dtype=inputs.dtype)
    # Matrix products of a state that decays slowly would lose it in the half precision of autocast.
    with without_autocast(x):
        if state is None and not return_final_state and x.shape[1] <= _CHUNK:
            return _alone(inputs, eigenvalues, output_weights).to(x.dtype), None
        state = _zeros(inputs, eigenvalues) if state is None else state
        y, final = _chunked(inputs, eigenvalues, output_weights, state, lengths, return_final_state)
    return y.to(x.dtype), final


def diagonal_ssm_recurrent(
    x: Tensor,
    eigenvalues: Tensor,
    output_weights: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, one step at a time. Arguments and results are those of :func:`diagonal_ssm`."""
    inputs, eigenvalues, output_weights, state = _prepared(x, eigenvalues, output_weights, initial_state)
    state = _zeros(inputs, eigenvalues) if state is None else state
    outputs = []
    for t, x_t in enumerate(inputs.unbind(1)):
        new = eigenvalues * state + x_t.unsqueeze(-1)
        outputs.append(2 * (output_weights * new).sum(-1).real)
        state = new if lengths is None else torch.where((lengths > t).view(-1, 1, 1), new, state)
    return torch.stack(outputs, dim=1).to(x.dtype), state


def discretize(
    log_step: Tensor, log_decay_rate: Tensor, frequency: Tensor, method: str = "zoh"
) -> tuple[Tensor, Tensor]:
    """Turn dh/dt = A h + b x with A = -exp(log_decay_rate) + i frequency into a recurrence over steps of exp(log_step).

    Args:
        log_step: Logarithm of the step per channel (D,).
        log_decay_rate: Logarithm of -Re A (D, N/2), so that the real part stays below 0.
        frequency: Im A (D, N/2).
        method: ``"zoh"``, lambda = exp(dt A) and factor (lambda - 1) / A; or ``"bilinear"``, lambda = (1 + dt A / 2) /
            (1 - dt A / 2) and factor dt / (1 - dt A / 2) (Gu et al., 2022, section 3.1).

    Returns:
        Eigenvalues lambda and the factor of b, both (D, N/2) and complex.

    Raises:
        ValueError: Another method.
    """
    step = log_step.exp().unsqueeze(-1)
    rate = torch.complex(-log_decay_rate.exp(), frequency)
    if method == "zoh":
        # expm1 keeps the digits that exp(dt A) - 1 loses for short steps.
        growth = torch.expm1(step * rate)
        return growth + 1, growth / rate
    if method == "bilinear":
        denominator = 1 - step * rate / 2
        return (1 + step * rate / 2) / denominator, step / denominator
    raise ValueError(f"method must be 'zoh' or 'bilinear', got {method!r}")


def _alone(x: Tensor, eigenvalues: Tensor, output_weights: Tensor) -> Tensor:
    """Outputs of a sequence with nothing before it: one Toeplitz matrix (T, T) per channel."""
    taps = _taps(_powers(eigenvalues, x.shape[1]), output_weights)
    return torch.bmm(x.permute(2, 0, 1), _upper_toeplitz(taps)).permute(1, 2, 0)


def _chunked(
    x: Tensor, eigenvalues: Tensor, output_weights: Tensor, state: Tensor, lengths: Tensor | None, want_final: bool
) -> tuple[Tensor, Tensor | None]:
    """The fast form. Inside, channels come first and complex numbers are interleaved real pairs."""
    batch, num_steps, width = x.shape
    chunk = min(num_steps, _CHUNK)
    powers = _powers(eigenvalues, chunk)
    x = F.pad(x, (0, 0, 0, -num_steps % chunk))
    chunks = x.permute(2, 0, 1).reshape(width, -1, chunk)
    # From a chunk's inputs to what it adds to the state at its end: sum_j lambda^{c-1-j} x_j.
    into_state = _interleaved(powers[:, :-1].flip(1))
    added = torch.view_as_complex(torch.bmm(chunks, into_state).view(width, batch, -1, *eigenvalues.shape[1:], 2))
    starts = _chunk_starts(state.transpose(0, 1), added, powers[:, -1].unsqueeze(1))
    # From a chunk's first state to its outputs: 2 Re c lambda^{j+1} h = 2 (Re, -Im)(c lambda^{j+1}) . (Re, Im)(h).
    out_of_state = _interleaved((2 * output_weights.unsqueeze(1) * powers[:, 1:]).conj())
    before = _interleaved(torch.stack(starts[:-1], dim=2)).flatten(1, 2)
    # The interleaved pairs stand first: a complex view of their gradient needs an even offset.
    weights = torch.cat([out_of_state.mT, _upper_toeplitz(_taps(powers, output_weights))], dim=1)
    y = torch.bmm(torch.cat([before, chunks], dim=2), weights)
    y = y.view(width, batch, -1)[..., :num_steps].permute(1, 2, 0)
    if not want_final:
        return y, None
    if lengths is None:
        lengths = torch.full((batch,), num_steps, device=x.device)
    return y, _state_at(x, torch.stack(starts, dim=2), powers, into_state, lengths).transpose(0, 1)


def _powers(eigenvalues: Tensor, count: int) -> Tensor:
    """lambda^0 to lambda^count (D, count + 1, N/2), by doubling."""
    powers = torch.stack([torch.ones_like(eigenvalues), eigenvalues], dim=1)
    while powers.shape[1] <= count:
        powers = torch.cat([powers, powers[:, 1:] * powers[:, -1:]], dim=1)
    return powers[:, : count + 1]


def _taps(powers: Tensor, output_weights: Tensor) -> Tensor:
    """What an input adds to the outputs from its own step on (D, c): 2 Re c lambda^j."""
    weights = _interleaved((2 * output_weights).conj()).unsqueeze(-1)
    return torch.bmm(_interleaved(powers[:, :-1]), weights).squeeze(-1)


def _chunk_starts(state: Tensor, added: Tensor, decay: Tensor) -> list[Tensor]:
    """States (D, B, N/2) before each chunk and after the last one; ``added`` is (D, B, chunks, N/2)."""
    states = [state]
    for into_state in added.unbind(2):
        states.append(decay * states[-1] + into_state)
    return states


def _state_at(x: Tensor, starts: Tensor, powers: Tensor, into_state: Tensor, lengths: Tensor) -> Tensor:
    """States (D, B, N/2) after ``lengths`` steps: from the start of the chunk that the length lies in."""
    chunk, rows = powers.shape[1] - 1, torch.arange(len(lengths), device=x.device)
    rest = lengths % chunk
    # The last c inputs before the length, without those that lie in the chunk before.
    columns = torch.arange(chunk, device=x.device)
    recent = x[rows.unsqueeze(1), (lengths.unsqueeze(1) - chunk + columns).clamp(min=0)]
    recent = recent.masked_fill((columns < chunk - rest.unsqueeze(1)).unsqueeze(-1), 0)
    added = torch.bmm(recent.permute(2, 0, 1), into_state).view(*starts.shape[:2], starts.shape[-1], 2)
    return powers[:, rest] * starts[:, rows, lengths // chunk] + torch.view_as_complex(added)


def _upper_toeplitz(taps: Tensor) -> Tensor:
    """Upper triangular matrices (D, c, c) with entry taps[j - i] at (i, j), from taps (D, c).

    The same padded row c times, read with rows that are one shorter, moves to the right by one in each row.
    """
    count = taps.shape[1]
    rows = F.pad(taps, (0, count)).unsqueeze(1).expand(-1, count, -1).flatten(1)
    return rows[:, : count * (2 * count - 1)].view(-1, count, 2 * count - 1)[..., :count]


def _interleaved(complex_numbers: Tensor) -> Tensor:
    """Real tensor whose last axis alternates real and imaginary parts."""
    return torch.view_as_real(complex_numbers.resolve_conj()).flatten(-2)


def _prepared(
    x: Tensor, eigenvalues: Tensor, output_weights: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Check shapes and bring everything to the precision of the state."""
    batch, _, width = x.shape
    if eigenvalues.dim() != 2 or eigenvalues.shape[0] != width:
        raise ValueError(f"eigenvalues must have the shape (D, N/2), D = {width}, got {tuple(eigenvalues.shape)}")
    state_shape = (batch, *eigenvalues.shape)
    check_shapes({"output_weights": (output_weights, eigenvalues.shape), "initial_state": (initial_state, state_shape)})
    dtype = torch.promote_types(x.dtype, torch.float32)
    complex_dtype = torch.promote_types(dtype, torch.complex64)
    state = None if initial_state is None else initial_state.to(complex_dtype)
    return x.to(dtype), eigenvalues.to(complex_dtype), output_weights.to(complex_dtype), state


def _zeros(x: Tensor, eigenvalues: Tensor) -> Tensor:
    """A state (B, D, N/2) with nothing in it."""
    return torch.zeros(len(x), *eigenvalues.shape, dtype=eigenvalues.dtype, device=x.device)
