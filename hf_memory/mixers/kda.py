"""Kimi Delta Attention: a delta rule whose memory decays by a number for each key channel, of either sign on request.

    S_t = (I - beta_t k_t k_t^T) diag(a_t) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t / sqrt(K)        per head
    y_t = W_o (RMS(o_t) sigmoid(W_2 W_1 x_t))

Symbols: q, k, v and beta as in Gated DeltaNet; r_t = F_2 F_1 x_t + b_dt, with maps of rank K, sets the decay a_t:

``softplus``  a = exp(-exp(A_log) softplus(r)), as in Kimi Linear
``bounded``   a = exp(-g sigmoid(exp(A_log) r)) with g = ``largest_decay``: no channel forgets faster
``signed``    a = sign(u) (e + (1 - e) |tanh(u / 2)|), u = exp(A_log) r, e = exp(-5): Complex KDA. With
              ``allow_neg_eigval`` one step can turn two channels, so that eigenvalues are complex; beta has a bias.

With the first two, (I - beta k k^T) diag(a) is similar to a symmetric matrix, with eigenvalues in (0, 1), or (-1, 1)
with ``allow_neg_eigval``.

Sources: Kimi team (2025), "Kimi Linear", section 3; for the signs, "Complex KDA" (2026). Official code:
fla-org/flash-linear-attention, ``fla/layers/kda.py``; OpenEuroLLM/ComplexKDA. State: S, H K K numbers, and
3 H K (W - 1) of the convolution. Initial values: exp(A_log) uniform between ``decay_min`` and ``decay_max`` with
``softplus``, else 1; -log|a| at r = b_dt log-uniform between ``time_step_min`` and ``time_step_max``, times exp(A_log)
with ``softplus``. With ``signed_start="spread"``, signs of b_dt are drawn, F_2 starts at a tenth of the law of other
maps, and the bias of beta at + or - log 3.

Deviations: K is given by ``num_heads``; the authors take 32 heads of 128 at width 2,304. The output gate has no bias,
as in transformers. With ``bounded`` b_dt is inverted for the law that it obeys, where fla keeps that of ``softplus``.
"""

import math
from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._delta import DeltaMixer
from hf_memory.mixers._gates import (
    check_rates,
    draw_time_steps,
    product_spectrum,
    softplus_log_decay,
    start_rates,
    start_time_steps,
)
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, with_shift
from hf_memory.models.modeling import MemoryModel

_LEAST = math.exp(-5)  # size of a signed decay: its logarithm has no gradient at 0


@strict
class MemoryKDAConfig(MemoryConfig):
    """Configuration of Kimi Delta Attention.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        head_dim: Numbers K of a key and of a value; 0 for hidden_size / H.
        decay: Law of the decay.
        allow_neg_eigval: Draw beta from (0, 2) instead of (0, 1), so that a step can reverse what a key has stored.
        conv_kernel: Width W of the short convolution on queries, keys and values; 0 for none.
        key_activation: SiLU on keys. Without it they point in all directions, and not nearly into one orthant.
        gate: Multiply the normed outputs with a gate.
        largest_decay: Largest -log a with ``bounded``.
        signed_start: Where ``signed`` decays start: with signs of their own, or all above 0.
        decay_min: Smallest initial rate exp(A_log).
        decay_max: Largest initial rate.
        time_step_min: Smallest initial time step.
        time_step_max: Largest initial time step.
        time_step_floor: Lower bound of initial time steps.
    """

    model_type: ClassVar[str] = "memory_kda"

    num_heads: int = 2
    head_dim: int = 0
    decay: Literal["softplus", "bounded", "signed"] = "softplus"
    allow_neg_eigval: bool = False
    conv_kernel: int = 4
    key_activation: bool = True
    gate: bool = True
    largest_decay: float = 5.0
    signed_start: Literal["spread", "positive"] = "spread"
    decay_min: float = 1.0
    decay_max: float = 16.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    def validate_kda(self) -> None:
        """Check sizes, rates and time steps."""
        for name in ("head_dim", "conv_kernel"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        check_rates(self)
        if self.largest_decay <= self.time_step_max:
            raise ValueError(
                f"largest_decay must be above time_step_max={self.time_step_max}, got {self.largest_decay}"
            )


class KDAMixer(DeltaMixer):
    """Multi-head delta rule with a decay for each key channel."""

    def __init__(self, config: MemoryKDAConfig, layer_idx: int):
        width, heads = config.hidden_size, config.num_heads
        size = config.head_dim or width // heads
        super().__init__(config, layer_idx, size, size, activation="sigmoid")
        if self.conv is not None and not config.key_activation:
            self.conv.activation = None
        if config.gate:
            self.gate_proj = self._low_rank(width, size, heads * size)
        self.decay_proj = self._low_rank(width, size, heads * size)
        self.A_log = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(heads * size, dtype=torch.float32))
        signed = config.decay == "signed"
        self.beta_bias = nn.Parameter(torch.empty(heads, dtype=torch.float32)) if signed else None
        if signed:
            self.fp32_parameters = ("A_log", "dt_bias", "beta_bias")

    @staticmethod
    def _low_rank(width: int, rank: int, size: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, size, bias=False))

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        config = self.config
        steps = config.time_step_min, config.time_step_max, config.time_step_floor
        if config.decay == "softplus":
            start_rates(self.A_log, config.decay_min, config.decay_max)
            start_time_steps(self.dt_bias, *steps)
            return
        init.zeros_(self.A_log)
        drawn = draw_time_steps(self.dt_bias, *steps)
        if config.decay == "bounded":
            init.copy_(self.dt_bias, torch.logit(drawn / config.largest_decay))
            return
        bias = 2 * torch.atanh((torch.exp(-drawn) - _LEAST) / (1 - _LEAST))
        strength = torch.zeros_like(self.beta_bias)
        if config.signed_start == "spread":
            bias = torch.where(torch.rand_like(bias) < 0.5, -bias, bias)
            strength = torch.where(torch.rand_like(strength) < 0.5, -math.log(3.0), math.log(3.0))
            init.normal_(self.decay_proj[1].weight, std=0.1 * config.initializer_range)
        init.copy_(self.dt_bias, bias)
        init.copy_(self.beta_bias, strength)

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        step, conv = self.step(hidden_states, state, lengths, return_state)
        log_decay, sign = self.log_decay(hidden_states)
        start = None if state is None else state["memory"]
        output, memory = self.remember(step, log_decay, sign, start, lengths)
        return self.emit(output, hidden_states), self.join(memory, conv) if return_state else None

    def activate(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """SiLU where the convolution has none, and not on keys where the config says so."""
        return F.silu(query), F.silu(key) if self.config.key_activation else key, F.silu(value)

    def strength_logits(self, hidden_states: Tensor) -> Tensor:
        """What the strengths are sigmoids of, in at least float32."""
        raw = super().strength_logits(hidden_states)
        return raw if self.beta_bias is None else raw + at_least_float32(self.beta_bias)

    def log_decay(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        """log |a| (B, T, H, K) in at least float32, and the signs of a where they differ."""
        config, heads = self.config, (self.config.num_heads, -1)
        raw = self.decay_proj(hidden_states).unflatten(-1, heads)
        bias, rate_log = self.dt_bias.unflatten(0, heads), self.A_log.unsqueeze(-1)
        if config.decay == "softplus":
            return softplus_log_decay(raw, rate_log, bias), None
        scaled = at_least_float32(rate_log).exp() * (at_least_float32(raw) + at_least_float32(bias))
        if config.decay == "bounded":
            return -config.largest_decay * scaled.sigmoid(), None
        size = _LEAST + (1 - _LEAST) * torch.tanh(scaled / 2).abs()
        return size.log(), torch.where(scaled < 0, -1.0, 1.0).to(size.dtype)

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of the real parts over the heads; with a convolution also 0, since its buffer is shifted."""
        step, _ = self.step(hidden_states, None, None, False)
        log_decay, sign = self.log_decay(hidden_states)
        decay = log_decay.exp() if sign is None else log_decay.exp() * sign
        probe = step.probe.unsqueeze(2)
        spectrum = product_spectrum(step.beta[:, :, None, :, None] * probe, probe, decay)
        return with_shift(spectrum, self.conv)


class MemoryKDAModel(MemoryModel):
    """Base model with Kimi Delta Attention."""

    config_class = MemoryKDAConfig
    mixer_class = KDAMixer


class MemoryKDAForCausalLM(MemoryForCausalLM):
    """Kimi Delta Attention with a language model head."""

    config_class = MemoryKDAConfig
    model_class = MemoryKDAModel


class MemoryKDAForTokenClassification(MemoryForTokenClassification):
    """Kimi Delta Attention with a head per position."""

    config_class = MemoryKDAConfig
    model_class = MemoryKDAModel
