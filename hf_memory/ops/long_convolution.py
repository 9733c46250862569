"""Causal convolution with a filter as long as the sequence, by FFT, with the past as its state.

    y_t[d] = sum_{i=0}^{W-1} k[d, i] x_{t-i}[d]

It is the operator of Hyena (Poli et al., 2023, section 2.1), of long BaseConv filters (Arora et al., 2023, section 4)
and of H3's shift SSM (Fu et al., 2023, section 3.1), whose filter is short.

The state is the history: the last W - 1 inputs, or all of them while there are fewer, oldest first. Its rows end at
their last real token; where a row has fewer tokens than the state has columns, zeros come first, which add nothing.
"""

import torch
from torch import Tensor

from hf_memory.ops._graph import graph_node
from hf_memory.ops.backends.dispatch import resolve_backend


@graph_node("x", "kernel")
def long_convolution(
    x: Tensor,
    kernel: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    return_final_state: bool = True,
    max_history: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Convolve each channel with its filter.

    Args:
        x: Inputs (B, T, D).
        kernel: Filters (D, W), the tap of the current input first.
        initial_state: History (B, S, D) of any S, the latest input last; None for an empty one.
        lengths: Real steps in each row (B,), int64; None where all T are real.
        return_final_state: Whether the history is wanted.
        max_history: Columns that the history may grow to; W - 1 if None. A filter of which only the first taps are
            given, as many as there are columns now, needs more.
        backend: ``"auto"`` or a name of :mod:`hf_memory.ops.backends.dispatch`.

    Returns:
        Outputs (B, T, D) in the dtype of ``x``, and the history (B, min(S + T, max_history), D) after each row's last
        real step, in at least float32, or None.

    Raises:
        ValueError: Shapes disagree, or the backend is unknown.
    """
    window, kernel, num_past = _prepared(x, kernel, initial_state, lengths)
    resolve_backend("long_convolution", backend, device=x.device, dtype=window.dtype)
    taps = kernel[:, : window.shape[1]]
    if x.shape[1] == 1:
        y = (window[:, window.shape[1] - taps.shape[1] :] * taps.flip(1).t()).sum(1, keepdim=True)
    else:
        y = _convolve(window, taps, num_past)
    if not return_final_state:
        return y.to(x.dtype), None
    longest = kernel.shape[1] - 1 if max_history is None else max_history
    return y.to(x.dtype), _history(window, num_past, lengths, longest)


def long_convolution_recurrent(
    x: Tensor, kernel: Tensor, initial_state: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one step at a time. Arguments and results are those of :func:`long_convolution`."""
    window, kernel, num_past = _prepared(x, kernel, initial_state, lengths)
    past, taps, outputs = list(window.unbind(1)), kernel.unbind(1), []
    for t in range(num_past, len(past)):
        recent = reversed(past[max(0, t + 1 - len(taps)) : t + 1])
        outputs.append(sum(tap * x_s for tap, x_s in zip(taps, recent, strict=False)))
    return torch.stack(outputs, dim=1).to(x.dtype), _history(window, num_past, lengths, len(taps) - 1)


def count_tokens(
    counts: Tensor, num_past: int, num_steps: int, lengths: Tensor | None, longest: int, field: str
) -> Tensor:
    """Add the new tokens of each row to those that its history holds, and refuse more than the filter has taps for.

    Args:
        counts: Real tokens seen before (B,), int64.
        num_past: Columns S of the history, which is as wide as the longest row until it reaches ``longest`` - 1.
        num_steps: New columns T.
        lengths: Real ones among them (B,), int64; None for all.
        longest: Taps of the filter.
        field: Name of the config field that sets ``longest``.

    Returns:
        Real tokens seen now (B,), int64.

    Raises:
        ValueError: Names ``field`` where a row grows longer than the filter.
    """
    counts = counts + (num_steps if lengths is None else lengths)
    # Reading the counts makes a GPU wait, so they are read only where the columns could be too many.
    if num_past + num_steps >= longest and int(counts.max()) > longest:
        raise ValueError(f"{field}={longest} is the length of the filter, and a row has {int(counts.max())} tokens")
    return counts


def fast_fft_size(at_least: int) -> int:
    """The smallest even number with no prime factor above 5 that is not below ``at_least``."""
    size = at_least + at_least % 2
    while _rest(size) > 1:
        size += 2
    return size


def _rest(number: int) -> int:
    for prime in (2, 3, 5):
        while number % prime == 0:
            number //= prime
    return number


def _convolve(window: Tensor, taps: Tensor, num_past: int) -> Tensor:
    """Outputs (B, T, D) at the last T columns of ``window`` (B, S + T, D).

    The first S outputs are not wanted, so they may hold what wraps around: the transform needs T + W - 1 points only.
    """
    num_columns = window.shape[1]
    size = fast_fft_size(max(num_columns, num_columns - num_past + taps.shape[1] - 1))
    # Transforms over the last, contiguous axis take a third of the time of those over a strided one.
    spectrum = torch.fft.rfft(window.transpose(1, 2).contiguous(), n=size) * torch.fft.rfft(taps, n=size)
    return torch.fft.irfft(spectrum, n=size)[..., num_past:num_columns].transpose(1, 2)


def _history(window: Tensor, num_past: int, lengths: Tensor | None, longest: int) -> Tensor:
    """The last ``longest`` columns before each row's end, or all columns if there are fewer."""
    num_columns = window.shape[1]
    count = min(num_columns, longest)
    if lengths is None:
        return window[:, num_columns - count :]
    index = (lengths + num_past - count).unsqueeze(1) + torch.arange(count, device=window.device)
    columns = window.gather(1, index.clamp(min=0).unsqueeze(-1).expand(-1, -1, window.shape[2]))
    return columns.masked_fill((index < 0).unsqueeze(-1), 0)


def _prepared(
    x: Tensor, kernel: Tensor, initial_state: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """Check shapes; join history and inputs in the dtype of the state."""
    batch, _, width = x.shape
    if kernel.dim() != 2 or kernel.shape[0] != width or kernel.shape[1] < 1:
        raise ValueError(f"kernel must have the shape (D, W) with D = {width} and W >= 1, got {tuple(kernel.shape)}")
    dtype = torch.promote_types(x.dtype, torch.float32)
    if lengths is not None:
        # The rounding of a transform would carry a little of the padding, and of its gradient, to other columns.
        padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
        x = x.masked_fill(padding.unsqueeze(-1), 0)
    if initial_state is None:
        return x.to(dtype), kernel.to(dtype), 0
    if initial_state.dim() != 3 or (initial_state.shape[0], initial_state.shape[2]) != (batch, width):
        raise ValueError(f"initial_state must have the shape ({batch}, S, {width}), got {tuple(initial_state.shape)}")
    return torch.cat([initial_state.to(dtype), x.to(dtype)], dim=1), kernel.to(dtype), initial_state.shape[1]
