"""Loops over time of the diagonal scan as Triton kernels, for real and complex numbers.

A program holds one row and a block of channels in registers and walks over time, so that states are exact for every
decay: a scan of logarithmic depth would multiply decays with each other, and where they are above 1 their product
overflows although no state does. The numbers of the next step are asked for before those of the current one are used.
The first two axes of ``decay`` may have length one: it is then the same for every row or step.

The reverse scan walks from the end, and its decay is that of the step before in its own order: the one at t + 1.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from hf_memory.ops.backends.triton_common import INTERPRETED, current_device
from hf_memory.ops.backends.triton_common import refusal as refusal_of_types

__all__ = ["INTERPRETED", "refusal", "reverse_scan", "scan"]

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
BLOCK = 64  # channels of one program: two warps, so that many programs hide each other's wait for memory


def refusal(*, device: torch.device, dtype: torch.dtype, **_: Any) -> str | None:
    """Say why these kernels cannot run on such tensors, or nothing where they can."""
    return refusal_of_types(device=device, dtype=dtype, dtypes=DTYPES)


def scan(decay: torch.Tensor, inputs: torch.Tensor, initial_state: torch.Tensor) -> torch.Tensor:
    """Return h_t = a_t h_{t-1} + b_t for every t; decay (B or 1, T or 1, N), inputs (B, T, N), state (B, N)."""
    return _launch(decay, inputs, initial_state)


def reverse_scan(decay: torch.Tensor, grads: torch.Tensor) -> torch.Tensor:
    """Return G_t = g_t + conj(a_{t+1}) G_{t+1} for every t; shapes as in ``scan``."""
    return _launch(decay, grads, None)


def _launch(decay: torch.Tensor, inputs: torch.Tensor, initial_state: torch.Tensor | None) -> torch.Tensor:
    """Run the kernel for the dtype over rows and blocks of channels, from the end where there is no initial state."""
    batch, time, channels = inputs.shape
    reverse = initial_state is None
    results = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    decay_step = channels if decay.shape[1] > 1 else 0
    decay_row = channels * decay.shape[1] if decay.shape[0] > 1 else 0
    # Where the walk begins and how far it goes each time, in numbers from the start of a row.
    places = (
        *((time * decay_step, -decay_step) if reverse else (0, decay_step)),
        *(((time - 1) * channels, -channels) if reverse else (0, channels)),
    )
    tensors = [_plain(tensor) for tensor in (decay, inputs, inputs if reverse else initial_state, results)]
    kernel = _complex_scan if inputs.is_complex() else _scan
    grid = (batch, triton.cdiv(channels, BLOCK))
    with current_device(results):
        kernel[grid](*tensors, time, channels, decay_row, *places, REVERSE=reverse, BLOCK=BLOCK, num_warps=2)
    return results


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous real numbers; the real and the imaginary part of a complex number are neighbours."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@triton.jit
def _scan(
    decay,
    inputs,
    initial,
    states,
    time,
    channels,
    decay_row,
    decay_start,
    decay_step,
    start,
    step,
    REVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    decay += row * decay_row + decay_start + channel
    inputs += row * time * channels + start + channel
    states += row * time * channels + start + channel
    b = tl.load(inputs, mask=inside, other=0)
    if REVERSE:
        a = tl.zeros_like(b)
        state = tl.zeros_like(b)
    else:
        a = tl.load(decay, mask=inside, other=0)
        state = tl.load(initial + row * channels + channel, mask=inside, other=0)
    for done in range(time):
        ahead = inside & (done + 1 < time)
        decay += decay_step
        inputs += step
        next_a = tl.load(decay, mask=ahead, other=0)
        next_b = tl.load(inputs, mask=ahead, other=0)
        state = a * state + b
        tl.store(states, state, mask=inside)
        states += step
        a = next_a
        b = next_b


@triton.jit
def _complex_scan(
    decay,
    inputs,
    initial,
    states,
    time,
    channels,
    decay_row,
    decay_start,
    decay_step,
    start,
    step,
    REVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    decay += 2 * (row * decay_row + decay_start + channel)
    inputs += 2 * (row * time * channels + start + channel)
    states += 2 * (row * time * channels + start + channel)
    b_real = tl.load(inputs, mask=inside, other=0)
    b_imag = tl.load(inputs + 1, mask=inside, other=0)
    if REVERSE:
        a_real = tl.zeros_like(b_real)
        a_imag = tl.zeros_like(b_real)
        real = tl.zeros_like(b_real)
        imag = tl.zeros_like(b_real)
    else:
        a_real = tl.load(decay, mask=inside, other=0)
        a_imag = tl.load(decay + 1, mask=inside, other=0)
        initial += 2 * (row * channels + channel)
        real = tl.load(initial, mask=inside, other=0)
        imag = tl.load(initial + 1, mask=inside, other=0)
    for done in range(time):
        ahead = inside & (done + 1 < time)
        decay += 2 * decay_step
        inputs += 2 * step
        next_a_real = tl.load(decay, mask=ahead, other=0)
        next_a_imag = tl.load(decay + 1, mask=ahead, other=0)
        next_b_real = tl.load(inputs, mask=ahead, other=0)
        next_b_imag = tl.load(inputs + 1, mask=ahead, other=0)
        if REVERSE:
            next_a_imag = -next_a_imag
        turned = a_real * real - a_imag * imag + b_real
        imag = a_real * imag + a_imag * real + b_imag
        real = turned
        tl.store(states, real, mask=inside)
        tl.store(states + 1, imag, mask=inside)
        states += 2 * step
        a_real = next_a_real
        a_imag = next_a_imag
        b_real = next_b_real
        b_imag = next_b_imag
