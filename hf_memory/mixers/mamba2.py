"""Mamba-2: a selective state space with one decay per head, which is linear attention with decay (Dao and Gu, 2024).

    [z, x, B, C, d] = W_in u,    [x, B, C] = SiLU(conv([x, B, C])),    dt = softplus(d + b_dt)
    S_t = a_t S_{t-1} + B_t (dt_t x_t)^T,    a_t = exp(-dt_t exp(A_log)),    y_t = S_t^T C_t + D x_t        per head
    o_t = W_out RMS(y_t SiLU(z_t))

Symbols: x and z have ``expand`` * hidden_size channels in H heads of P; B and C, keys and queries, have N numbers for
each of G groups of heads; dt, A and D are one number per head. ``negative_eigenvalues`` takes a_t = 2 exp(-dt_t
exp(A_log)) - 1, in (-1, 1) (Grazzi et al., 2025), and leaves the input term as it is.

Source: Dao and Gu (2024), "Transformers are SSMs", equation 16, section 7 and figure 6. Official code:
state-spaces/mamba, ``mamba_ssm/modules/mamba2.py``. State: S, H N P numbers, and the last W - 1 inputs of the
convolution, (``expand`` * D + 2 G N) (W - 1). Initial values are those of the official code: exp(A_log) uniform between
``decay_min`` and ``decay_max``, D = 1, softplus(b_dt) log-uniform between ``time_step_min`` and ``time_step_max``.

Deviations: the number of heads is given and not P, which is 64 in the official code; no upper limit of dt, which is
infinite there. transformers starts with exp(A_log) = 1 ... H. Beyond the paper, as switches: no convolution, no norm.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import GroupedNorm, check_rates, start_rates, start_time_steps
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import (
    ShortConvolution,
    State,
    at_least_float32,
    join_state,
    mark_residual_output,
    split_state,
    with_shift,
)
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.gated_linear_attention import gated_linear_attention

_LEAST_FACTOR = 1e-6  # of a transition of either sign: its logarithm and its gradient are infinite at 0


@strict
class MemoryMamba2Config(MemoryConfig):
    """Configuration of Mamba-2.

    Attributes:
        num_heads: Heads H of the inner channels; divides ``hidden_size``.
        num_groups: Groups G of heads that share B and C; divides ``num_heads``.
        state_size: Numbers N of B and C.
        expand: Inner channels per channel of the residual stream.
        conv_kernel: Width W of the short convolution on x, B and C; 0 for none.
        conv_bias: Whether the convolution has a bias.
        output_norm: RMS norm, over the channels of a group, before the output map.
        negative_eigenvalues: Let transitions reach from -1 to 1 instead of from 0 to 1.
        decay_min: Smallest initial rate exp(A_log).
        decay_max: Largest initial rate.
        time_step_min: Smallest initial time step.
        time_step_max: Largest initial time step.
        time_step_floor: Lower bound of initial time steps.
    """

    model_type: ClassVar[str] = "memory_mamba2"

    num_heads: int = 2
    num_groups: int = 1
    state_size: int = 128
    expand: int = 2
    conv_kernel: int = 4
    conv_bias: bool = True
    output_norm: bool = True
    negative_eigenvalues: bool = False
    decay_min: float = 1.0
    decay_max: float = 16.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    def validate_mamba2(self) -> None:
        """Check sizes, rates and time steps."""
        for name, least in (("state_size", 1), ("expand", 1), ("conv_kernel", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.num_groups < 1 or self.num_heads % self.num_groups:
            raise ValueError(f"num_groups must divide num_heads={self.num_heads}, got {self.num_groups}")
        check_rates(self)


class Mamba2Mixer(Mixer):
    """State space duality with convolution and gate."""

    fp32_parameters = ("A_log", "D", "dt_bias")
    nan_reaches_back = True

    def __init__(self, config: MemoryMamba2Config, layer_idx: int):
        super().__init__(config, layer_idx)
        width, heads = config.hidden_size, config.num_heads
        self.inner, self.shared = config.expand * width, config.num_groups * config.state_size
        channels = self.inner + 2 * self.shared
        self.in_proj = nn.Linear(width, self.inner + channels + heads, bias=False)
        kernel = config.conv_kernel
        self.conv = ShortConvolution(channels, kernel, activation="silu", bias=config.conv_bias) if kernel else None
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(heads, dtype=torch.float32)) for _ in range(3))
        self.out_norm = GroupedNorm(self.inner, config.norm_eps, config.num_groups) if config.output_norm else None
        self.out_proj = mark_residual_output(nn.Linear(self.inner, width, bias=False))

    def reset_parameters(self) -> None:
        """The laws of the official code, named in the module's docstring."""
        config = self.config
        start_rates(self.A_log, config.decay_min, config.decay_max)
        start_time_steps(self.dt_bias, config.time_step_min, config.time_step_max, config.time_step_floor)
        init.ones_(self.D)

    def initial_state(self, batch_size: int) -> State:
        """Zeros."""
        conv = self.conv.initial_state(batch_size) if self.conv is not None else None
        heads = self.config.num_heads
        memory = self.state_tensor(batch_size, heads, self.config.state_size, self.inner // heads)
        return {"memory": memory, **join_state({"conv": conv})}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        config = self.config
        gate, mixed, raw = self.in_proj(hidden_states).split(
            [self.inner, self.inner + 2 * self.shared, config.num_heads], dim=-1
        )
        mixed, conv = self._convolved(mixed, state, lengths, return_state)
        x, key, query = mixed.split([self.inner, self.shared, self.shared], dim=-1)
        x = x.unflatten(-1, (config.num_heads, -1))
        step = self._time_steps(raw)
        log_decay, sign = self._log_decay(step)
        y, memory = gated_linear_attention(
            self._of_heads(query),
            self._of_heads(key),
            (step.unsqueeze(-1) * x).to(x.dtype),
            log_decay,
            sign=sign,
            initial_state=None if state is None else state["memory"],
            lengths=lengths,
        )
        y = at_least_float32(y)
        y = (y + self.D.to(y.dtype).unsqueeze(-1) * x).flatten(-2).to(hidden_states.dtype)
        y = y * F.silu(gate)
        output = self.out_proj(y if self.out_norm is None else self.out_norm(y))
        return output, {"memory": memory, **join_state({"conv": conv})} if return_state else None

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of a_t over the heads; with a convolution also 0, since its buffer is shifted."""
        log_decay, sign = self._log_decay(self._time_steps(self.in_proj(hidden_states)[..., -self.config.num_heads :]))
        decay = log_decay.exp() if sign is None else log_decay.exp() * sign
        return with_shift(torch.stack((decay.amin(-1), decay.amax(-1)), dim=-1), self.conv)

    def _convolved(
        self, mixed: Tensor, state: State | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, State | None]:
        """x, B and C side by side, and the state of the convolution."""
        if self.conv is None:
            return F.silu(mixed), None
        return self.conv(mixed, split_state(state, "conv"), lengths, None, return_state)

    def _of_heads(self, shared: Tensor) -> Tensor:
        """B or C (B, T, G N) beside each head that shares it: (B, T, H, N)."""
        groups = shared.unflatten(-1, (self.config.num_groups, 1, -1))
        share = self.config.num_heads // self.config.num_groups
        return groups.expand(*groups.shape[:3], share, groups.shape[4]).flatten(2, 3)

    def _time_steps(self, raw: Tensor) -> Tensor:
        """dt (B, T, H), in at least float32."""
        return F.softplus(at_least_float32(raw) + at_least_float32(self.dt_bias))

    def _log_decay(self, step: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logarithm of the size of a (B, T, H), and its sign where that may be negative."""
        log_decay = -step * at_least_float32(self.A_log).exp()
        if not self.config.negative_eigenvalues:
            return log_decay, None
        factor = 2 * log_decay.exp() - 1
        return factor.abs().clamp(min=_LEAST_FACTOR).log(), torch.where(factor < 0, -1.0, 1.0).to(factor.dtype)


class MemoryMamba2Model(MemoryModel):
    """Base model with Mamba-2."""

    config_class = MemoryMamba2Config
    mixer_class = Mamba2Mixer


class MemoryMamba2ForCausalLM(MemoryForCausalLM):
    """Mamba-2 with a language model head."""

    config_class = MemoryMamba2Config
    model_class = MemoryMamba2Model


class MemoryMamba2ForTokenClassification(MemoryForTokenClassification):
    """Mamba-2 with a head per position."""

    config_class = MemoryMamba2Config
    model_class = MemoryMamba2Model
