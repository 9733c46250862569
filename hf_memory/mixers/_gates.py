"""Laws of decays and gates that mixers with a matrix memory share, and the spectra of their transitions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.layers import RMSNorm, at_least_float32
from hf_memory.ops._cells import real_part_range
from hf_memory.ops.rms_norm import rms_norm


def check_rates(config: MemoryConfig) -> None:
    """Raise a ``ValueError`` unless the initial rates and time steps of a config are in order."""
    _check_order(config, "decay_min", "decay_max")
    check_time_steps(config)


def check_time_steps(config: MemoryConfig) -> None:
    """Raise a ``ValueError`` unless the initial time steps of a config are in order."""
    _check_order(config, "time_step_min", "time_step_max")
    if config.time_step_floor <= 0:
        raise ValueError(f"time_step_floor must be above 0, got {config.time_step_floor}")


def _check_order(config: MemoryConfig, low: str, high: str) -> None:
    if not 0 < getattr(config, low) <= getattr(config, high):
        raise ValueError(f"{low} must be in (0, {high}={getattr(config, high)}], got {getattr(config, low)}")


def draw_time_steps(like: Tensor, low: float, high: float, floor: float) -> Tensor:
    """Time steps in float32, log-uniform between two bounds and at least ``floor`` (Gu and Dao, 2023, section 3.6)."""
    step = torch.empty_like(like, dtype=torch.float32).uniform_(math.log(low), math.log(high))
    return step.exp().clamp(min=floor)


def start_time_steps(bias: nn.Parameter, low: float, high: float, floor: float) -> None:
    """Give a bias the values whose softplus is a drawn time step."""
    step = draw_time_steps(bias, low, high, floor)
    # The inverse of softplus, log(exp(step) - 1), in a form that keeps the digits of small steps.
    init.copy_(bias, step + torch.log(-torch.expm1(-step)))


def start_rates(rate_log: nn.Parameter, low: float, high: float) -> None:
    """Give a parameter the logarithms of rates drawn uniformly between two bounds."""
    init.copy_(rate_log, torch.empty_like(rate_log, dtype=torch.float32).uniform_(low, high).log())


def softplus_log_decay(raw: Tensor, rate_log: Tensor, bias: Tensor) -> Tensor:
    """-exp(A_log) softplus(raw + bias), in at least float32; A_log and bias broadcast to ``raw``."""
    return -at_least_float32(rate_log).exp() * F.softplus(at_least_float32(raw) + at_least_float32(bias))


class GatedNorm(nn.Module):
    """An RMS norm over the last axis, and then a gate: w x / rms(x) * act(z).

    Args:
        size: Width of the last axis.
        eps: Epsilon of the norm.
        activation: ``"silu"`` or ``"sigmoid"``.
    """

    def __init__(self, size: int, eps: float, activation: str = "silu"):
        super().__init__()
        self.norm = RMSNorm(size, eps)
        self.act = F.silu if activation == "silu" else torch.sigmoid

    def forward(self, hidden_states: Tensor, gate: Tensor | None) -> Tensor:
        """Normalise, and multiply with the activated gate where there is one."""
        normed = self.norm(hidden_states)
        return normed if gate is None else normed * self.act(gate)


class GroupedNorm(RMSNorm):
    """An RMS norm of each group of channels, with a weight for each channel.

    Args:
        size: Number of channels.
        eps: Epsilon of the norm.
        groups: Number of groups.
    """

    def __init__(self, size: int, eps: float, groups: int):
        super().__init__(size, eps)
        self.groups = groups

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalise the last axis."""
        if self.groups == 1:
            return super().forward(hidden_states)
        parts = hidden_states.unflatten(-1, (self.groups, -1))
        normed = rms_norm(parts, None, self.eps).flatten(-2)
        return normed * self.weight.to(hidden_states.dtype)


class HeadNorm(nn.LayerNorm):
    """A layer norm of each head, with a weight and a bias for each channel: a group norm of every step.

    Args:
        width: Channels of all heads.
        eps: Epsilon of the norm.
        bias: Whether there is a bias.
    """

    def __init__(self, width: int, eps: float, bias: bool = True):
        super().__init__(width, eps, bias=bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalise (B, T, H, V), and return (B, T, H V)."""
        normed = F.layer_norm(hidden_states, hidden_states.shape[-1:], eps=self.eps).flatten(-2)
        scaled = normed * self.weight.to(normed.dtype)
        return scaled if self.bias is None else scaled + self.bias.to(normed.dtype)


def decay_spectrum(log_decay: Tensor) -> Tensor:
    """Smallest and largest factor (B, T, 2) of log decays (B, T, H) or (B, T, H, K)."""
    decay = log_decay.flatten(2).exp()
    return torch.stack((decay.amin(-1), decay.amax(-1)), dim=-1)


def product_spectrum(erase: Tensor, probe: Tensor, decay: Tensor) -> Tensor:
    """Smallest and largest real part of the eigenvalues of (I - e_n p_n^T) ... (I - e_1 p_1^T) diag(a).

    Args:
        erase: e (B, T, n, H, K).
        probe: p (B, T, n, H, K).
        decay: a (B, T, H, K), of any sign.

    Returns:
        The range over the heads (B, T, 2).
    """
    batch, time, steps, heads, size = erase.shape
    erase, probe = (tensor.transpose(2, 3).reshape(-1, steps, size) for tensor in (erase, probe))
    decay = decay.reshape(-1, size)

    def transition(part: slice) -> Tensor:
        matrix = torch.diag_embed(decay[part])
        for e, p in zip(erase[part].unbind(1), probe[part].unbind(1), strict=True):
            matrix = matrix - e.unsqueeze(-1) @ (p.unsqueeze(-2) @ matrix)
        return matrix

    ranges = real_part_range(transition, len(decay), size).view(batch, time, heads, 2)
    return torch.stack((ranges[..., 0].amin(-1), ranges[..., 1].amax(-1)), dim=-1)
