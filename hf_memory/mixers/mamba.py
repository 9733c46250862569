"""Mamba: a selective state space (Gu and Dao, 2023, equation 2, section 3.2 and algorithm 2; figure 3 for the block).

    [x, z] = W_in u,    x = SiLU(conv(x)),    [r, B, C] = W_x x,    dt = softplus(W_dt r + b_dt)
    h_t = a_t h_{t-1} + dt_t B_t x_t,    a_t = exp(dt_t A),    y_t = C_t . h_t + D x_t,    o_t = W_out (y_t SiLU(z_t))

Symbols: x and z have ``expand`` * hidden_size channels; h_t holds N numbers for each of them; A = -exp(A_log) per
channel and state; dt, B and C depend on the input. ``negative_eigenvalues`` takes a_t = 2 exp(dt_t A) - 1, in (-1, 1)
(Grazzi et al., 2025), and leaves the input term as it is.

Official code: state-spaces/mamba. State: N numbers per inner channel, and the last W - 1 inputs of the convolution:
``expand`` * D * (N + W - 1). Initial values are those of the official code: A_log = log(1 ... N), D = 1, W_dt uniform
in +-rank^(-1/2), b_dt such that softplus(b_dt) is log-uniform between ``time_step_min`` and ``time_step_max``.

Beyond the paper, as switches for ablations: no convolution, no gate, a norm before the output map, and a state space
that is the same at all inputs. Without ``selective``, B and C are vectors of N numbers and dt = softplus(b_dt), where B
starts from ones and C from a normal law, as in S4D (Gu et al., 2022).

Deviations: b_dt is a parameter of the mixer, so that its law is not that of a linear layer's bias. A continued sequence
starts from the state that it is given, for any number of new tokens.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig, later_field
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import (
    RMSNorm,
    ShortConvolution,
    State,
    join_state,
    mark_residual_output,
    split_state,
    with_shift,
)
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.selective_scan import selective_scan


@strict
class MemoryMambaConfig(MemoryConfig):
    """Configuration of Mamba.

    Attributes:
        state_size: Numbers N of the state per inner channel.
        expand: Inner channels per channel of the residual stream.
        conv_kernel: Width W of the short convolution; 0 for none.
        conv_bias: Whether the convolution has a bias.
        gate: Multiply the outputs with SiLU(z).
        output_norm: RMS norm before the output map, as in Mamba-2 (Dao and Gu, 2024).
        time_step_rank: Rank of the map to the time steps; 0 for hidden_size / 16, rounded up.
        time_step_min: Smallest initial time step.
        time_step_max: Largest initial time step.
        time_step_floor: Lower bound of initial time steps.
        negative_eigenvalues: Let transitions reach from -1 to 1 instead of from 0 to 1.
        selective: Let B, C and dt depend on the input.
    """

    model_type: ClassVar[str] = "memory_mamba"

    state_size: int = 16
    expand: int = 2
    conv_kernel: int = 4
    conv_bias: bool = True
    gate: bool = True
    output_norm: bool = False
    time_step_rank: int = 0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4
    negative_eigenvalues: bool = False
    selective: bool = later_field(True)

    def validate_mamba(self) -> None:
        """Check sizes and time steps."""
        for name, least in (("state_size", 1), ("expand", 1), ("conv_kernel", 0), ("time_step_rank", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.time_step_min <= self.time_step_max:
            high = self.time_step_max
            raise ValueError(f"time_step_min must be in (0, time_step_max={high}], got {self.time_step_min}")
        if self.time_step_floor <= 0:
            raise ValueError(f"time_step_floor must be above 0, got {self.time_step_floor}")


class MambaMixer(Mixer):
    """A selective state space with convolution and gate."""

    fp32_parameters = ("A_log", "D", "dt_bias")

    def __init__(self, config: MemoryMambaConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        inner = config.expand * config.hidden_size
        self.rank = config.time_step_rank or math.ceil(config.hidden_size / 16)
        self.in_proj = nn.Linear(config.hidden_size, inner * (2 if config.gate else 1), bias=False)
        self.conv = (
            ShortConvolution(inner, config.conv_kernel, activation="silu", bias=config.conv_bias)
            if config.conv_kernel
            else None
        )
        if config.selective:
            self.x_proj = nn.Linear(inner, self.rank + 2 * config.state_size, bias=False)
            self.dt_proj = nn.Linear(self.rank, inner, bias=False)
        else:
            self.B = nn.Parameter(torch.empty(config.state_size))
            self.C = nn.Parameter(torch.empty(config.state_size))
        self.dt_bias = nn.Parameter(torch.empty(inner, dtype=torch.float32))
        self.A_log = nn.Parameter(torch.empty(inner, config.state_size, dtype=torch.float32))
        self.D = nn.Parameter(torch.empty(inner, dtype=torch.float32))
        self.out_norm = RMSNorm(inner, config.norm_eps) if config.output_norm else None
        self.out_proj = mark_residual_output(nn.Linear(inner, config.hidden_size, bias=False))

    def reset_parameters(self) -> None:
        """The laws of the official code, named in the module's docstring."""
        config = self.config
        rates = torch.arange(1, config.state_size + 1, dtype=torch.float32, device=self.A_log.device)
        init.copy_(self.A_log, rates.log().expand_as(self.A_log))
        init.ones_(self.D)
        if config.selective:
            bound = self.rank**-0.5
            init.uniform_(self.dt_proj.weight, -bound, bound)
        else:
            init.ones_(self.B)
            init.normal_(self.C)
        low, high = math.log(config.time_step_min), math.log(config.time_step_max)
        step = torch.empty_like(self.dt_bias).uniform_(low, high).exp().clamp(min=config.time_step_floor)
        # The inverse of softplus, log(exp(step) - 1), in a form that keeps the digits of small steps.
        init.copy_(self.dt_bias, step + torch.log(-torch.expm1(-step)))

    def initial_state(self, batch_size: int) -> State:
        """Zeros."""
        conv = self.conv.initial_state(batch_size) if self.conv is not None else None
        return {**join_state({"conv": conv}), "ssm": self.state_tensor(batch_size, *self.A_log.shape)}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        x, z, conv_state = self._convolved(hidden_states, state, lengths, return_state)
        step, B, C = self._selected(x)
        y, ssm = selective_scan(
            x,
            step,
            self._rates(),
            B,
            C,
            None if state is None else state["ssm"],
            lengths,
            self.config.negative_eigenvalues,
            return_state,
        )
        y = y + self.D.to(y.dtype) * x
        y = y if z is None else y * F.silu(z)
        output = self.out_proj(y if self.out_norm is None else self.out_norm(y))
        return output, {**join_state({"conv": conv_state}), "ssm": ssm} if return_state else None

    def decays(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """abs(a_t) of each channel and state."""
        step, _, _ = self._selected(self._convolved(hidden_states, None, None, False)[0])
        a = torch.exp(step.unsqueeze(-1) * self._rates())
        return (2 * a - 1 if self.config.negative_eigenvalues else a).abs().flatten(2)

    def transition_spectrum(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The range of a_t; with a convolution also 0, since its buffer is shifted."""
        x, _, _ = self._convolved(hidden_states, None, None, False)
        (step, _, _), rates = self._selected(x), self._rates()
        ends = [torch.exp(step * rates.amin(1)).amin(-1), torch.exp(step * rates.amax(1)).amax(-1)]
        if self.config.negative_eigenvalues:
            ends = [2 * end - 1 for end in ends]
        return with_shift(torch.stack(ends, dim=-1), self.conv)

    def _convolved(self, hidden_states, state, lengths, return_state):
        """The inputs x of the state space, the gate z, and the state of the convolution."""
        projected, conv_state = self.in_proj(hidden_states), None
        x, z = projected.chunk(2, dim=-1) if self.config.gate else (projected, None)
        if self.conv is None:
            return F.silu(x), z, None
        x, conv_state = self.conv(x, split_state(state, "conv"), lengths, None, return_state)
        return x, z, conv_state

    def _rates(self) -> torch.Tensor:
        """A (inner channels, N), in at least float32."""
        return -torch.exp(self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)))

    def _selected(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dt (B, T, inner channels), in at least float32, and the maps B and C (B, T, N)."""
        dtype, size = torch.promote_types(x.dtype, torch.float32), self.config.state_size
        bias = self.dt_bias.to(dtype)
        if not self.config.selective:
            maps = (vector.to(x.dtype).expand(*x.shape[:2], size) for vector in (self.B, self.C))
            return (F.softplus(bias).expand(x.shape), *maps)
        low_rank, B, C = self.x_proj(x).split([self.rank, size, size], dim=-1)
        return F.softplus(self.dt_proj(low_rank).to(dtype) + bias), B, C


class MemoryMambaModel(MemoryModel):
    """Base model with Mamba."""

    config_class = MemoryMambaConfig
    mixer_class = MambaMixer


class MemoryMambaForCausalLM(MemoryForCausalLM):
    """Mamba with a language model head."""

    config_class = MemoryMambaConfig
    model_class = MemoryMambaModel


class MemoryMambaForTokenClassification(MemoryForTokenClassification):
    """Mamba with a head per position."""

    config_class = MemoryMambaConfig
    model_class = MemoryMambaModel
