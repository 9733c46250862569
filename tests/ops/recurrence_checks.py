"""Checks that every recurrence passes which reads several inputs per step.

A recurrence is a function of ``timed`` tensors (B, T, ...), ``fixed`` ones without time, a state and lengths.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Recurrence = Callable[..., tuple[Tensor, Tensor]]
Tensors = Sequence[Tensor]


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    """Compare relative to the largest expected number."""
    assert actual.shape == expected.shape
    scale = expected.abs().max().clamp_min(1.0) if expected.numel() else 1.0
    torch.testing.assert_close(actual / scale, expected / scale, rtol=0, atol=tolerance)


def up_to(lengths: Tensor | None, output: Tensor) -> Tensor:
    """Zero what stands at and after each row's length."""
    if lengths is None:
        return output
    return output * (torch.arange(output.shape[1]) < lengths[:, None]).unsqueeze(-1)


def values_and_gradients(
    function: Recurrence, timed: Tensors, fixed: Tensors, state: Tensor, lengths: Tensor | None
) -> list[Tensor]:
    """Outputs up to each length, the final state, and the gradient of a fixed function of both at every input."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (*timed, *fixed, state)]
    output, final = function(*inputs[:-1], initial_state=inputs[-1], lengths=lengths)
    results = [up_to(lengths, output), final]
    total = sum((r * torch.linspace(-1, 2, r.numel()).cos().to(r.dtype).view(r.shape)).sum() for r in results)
    return results + list(torch.autograd.grad(total.real if total.is_complex() else total, inputs))


def assert_same(
    fast: Recurrence, slow: Recurrence, timed: Tensors, fixed: Tensors, state: Tensor, tolerance: float = 1e-11
) -> None:
    """The fast form in the dtype of its inputs gives what the definition gives in double precision."""
    num_rows, num_steps = timed[0].shape[:2]
    wide = [[_double(tensor) for tensor in group] for group in (timed, fixed, [state])]
    for lengths in (None, torch.arange(num_rows) * num_steps // (num_rows - 1)):
        got = values_and_gradients(fast, timed, fixed, state, lengths)
        expected = values_and_gradients(slow, *wide[:2], wide[2][0], lengths)
        for actual, definition in zip(got, expected, strict=True):
            close(_double(actual), definition, tolerance)


def assert_split(function: Recurrence, timed: Tensors, fixed: Tensors, state: Tensor, tolerance: float = 1e-11) -> None:
    """For every split of time the two pieces give the outputs and the final state of one pass, at any lengths."""
    num_rows, num_steps = timed[0].shape[:2]
    for lengths in (None, torch.arange(num_rows) * num_steps // (num_rows - 1)):
        whole, final = function(*timed, *fixed, initial_state=state, lengths=lengths)
        for cut in range(1, num_steps):
            pieces, carried = [], state
            for span in (slice(0, cut), slice(cut, None)):
                part = [tensor[:, span] for tensor in timed]
                own = None if lengths is None else (lengths - span.start).clamp(0, part[0].shape[1])
                output, carried = function(*part, *fixed, initial_state=carried, lengths=own)
                pieces.append(output)
            close(up_to(lengths, torch.cat(pieces, dim=1)), up_to(lengths, whole), tolerance)
            close(carried, final, tolerance)


def assert_padding_is_inert(function: Recurrence, timed: Tensors, fixed: Tensors, state: Tensor) -> None:
    """Rubbish past a row's length changes neither the real outputs nor the final state, and outputs stay finite."""
    num_rows, num_steps = timed[0].shape[:2]
    lengths = torch.arange(num_rows) * num_steps // (num_rows - 1)
    padding = torch.arange(num_steps) >= lengths[:, None]
    rubbish = [tensor.masked_fill(padding.view(*padding.shape, *[1] * (tensor.dim() - 2)), 50.0) for tensor in timed]
    output, final = function(*rubbish, *fixed, initial_state=state, lengths=lengths)
    expected, expected_final = function(*timed, *fixed, initial_state=state, lengths=lengths)
    assert output.isfinite().all()
    close(up_to(lengths, output), up_to(lengths, expected), 1e-13)
    close(final, expected_final, 1e-13)
    close(final[0], state[0].to(final.dtype), 0)


def assert_half_precision(function: Recurrence, timed: Tensors, fixed: Tensors, state: Tensor) -> None:
    """In bfloat16 the run is that of the rounded numbers in float32, and so is its state; autocast changes nothing."""
    rounded, single = ([tensor.to(dtype) for tensor in timed] for dtype in (torch.bfloat16, torch.float32))
    narrow = [tensor.to(torch.complex64 if tensor.is_complex() else torch.float32) for tensor in (*fixed, state)]
    output, final = function(*rounded, *narrow[:-1], initial_state=narrow[-1])
    exact, expected = function(*(tensor.float() for tensor in rounded), *narrow[:-1], initial_state=narrow[-1])
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, exact.bfloat16())
    assert torch.equal(final, expected)
    assert final.dtype == narrow[-1].dtype
    plain, plain_final = function(*single, *narrow[:-1], initial_state=narrow[-1])
    with torch.autocast("cpu", torch.bfloat16):
        cast, cast_final = function(*single, *narrow[:-1], initial_state=narrow[-1])
    assert torch.equal(cast, plain)
    assert torch.equal(cast_final, plain_final)


def assert_vmap(function: Recurrence, timed: Tensors, fixed: Tensors, state: Tensor) -> None:
    """Replicas side by side give the gradients of one after the other, whichever inputs they share."""

    def loss(*inputs: Tensor) -> Tensor:
        output, final = function(*inputs[:-1], initial_state=inputs[-1])
        return output.cos().sum() + (final * final.conj()).real.sum()

    inputs = [*timed, *fixed, state]
    every = tuple(range(len(inputs)))
    for shared in ((), tuple(range(len(timed))), (len(timed), len(inputs) - 1)):
        stacked = [x if i in shared else torch.stack([x, 0.5 * x, 0.25 * x]) for i, x in enumerate(inputs)]
        dims = tuple(None if i in shared else 0 for i in every)
        together = torch.func.vmap(torch.func.grad(loss, argnums=every), in_dims=dims)(*stacked)
        for replica in range(3):
            own = [x if i in shared else x[replica] for i, x in enumerate(stacked)]
            for many, one in zip(together, torch.func.grad(loss, argnums=every)(*own), strict=True):
                close(many[replica], one, 1e-12)


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
