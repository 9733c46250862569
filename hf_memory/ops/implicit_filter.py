"""Filters of long convolutions as a function of the position (Romero et al., 2021; Poli et al., 2023, section 3.3).

    k[d, i] = MLP(z(i))_d exp(-|delta_d| i / (L - 1))        z(i) = [i / (L - 1), cos(2 pi f i / L), -sin(2 pi f i / L)]

    i      position of the tap, 0 to L - 1             L      length that the filter is built for
    f      frequencies, spread evenly over [1e-4, bands - 1]
    delta  decay per channel, spread evenly so that the filter has fallen to 1e-2 after between 0.3 and 1.5 times L

The MLP's activation is sin(omega x), with one learned omega per unit, shared by its layers.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hf_memory.ops._cells import without_autocast

_TARGET, _FAST, _SLOW = 1e-2, 0.3, 1.5


def implicit_filter(
    num_taps: int,
    longest: int,
    num_features: int,
    layers: Sequence[Callable[[Tensor], Tensor]],
    frequency: Tensor,
) -> Tensor:
    """The first taps of a filter.

    Args:
        num_taps: How many taps W to return; at most ``longest``.
        longest: Length L that the filter is built for. Another one gives another filter.
        num_features: Features of a position.
        layers: Linear layers of the MLP, from the features to F units, from F to F, ..., and from F to D. They are
            called, and on inputs in the dtype of ``frequency``.
        frequency: omega (F,).

    Returns:
        Filters (D, W) in at least float32.

    Raises:
        ValueError: More taps than the filter has, an even number of features, or one that is below 3.
    """
    if num_taps > longest:
        raise ValueError(f"num_taps must be at most longest={longest}, got {num_taps}")
    dtype = torch.promote_types(frequency.dtype, torch.float32)
    hidden = position_features(num_taps, longest, num_features, frequency.device, dtype)
    with without_autocast(hidden):
        for layer in layers[:-1]:
            hidden = torch.sin(frequency.to(dtype) * layer(hidden.to(frequency.dtype)).to(dtype))
        taps = layers[-1](hidden.to(frequency.dtype)).to(dtype)
    return (taps * decay_window(num_taps, longest, taps.shape[1], taps.device, dtype)).t()


def position_features(
    num_taps: int, longest: int, num_features: int, device: torch.device | str, dtype: torch.dtype
) -> Tensor:
    """z(0) to z(W - 1): (W, features)."""
    if num_features < 3 or num_features % 2 == 0:
        raise ValueError(f"num_features must be odd and at least 3, got {num_features}")
    bands = (num_features - 1) // 2
    position = torch.arange(num_taps, device=device, dtype=dtype).unsqueeze(1)
    angle = position * (2 * math.pi / longest) * torch.linspace(1e-4, bands - 1, bands, device=device, dtype=dtype)
    return torch.cat([position / max(longest - 1, 1), angle.cos(), -angle.sin()], dim=1)


def decay_window(num_taps: int, longest: int, width: int, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """exp(-|delta| i / (L - 1)): (W, D)."""
    rate = -math.log(_TARGET)
    delta = torch.linspace(rate / _SLOW, rate / _FAST, width, device=device, dtype=dtype)
    return torch.exp(torch.arange(num_taps, device=device, dtype=dtype).unsqueeze(1) * (-delta / max(longest - 1, 1)))
