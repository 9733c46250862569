"""RWKV-7, Goose: a generalised delta rule with a decay and a rate of replacement for each key channel.

    x_j = x_t + (x_{t-1} - x_t) mu_j for j in r, w, k, v, a, g,    r, k, v = W_r x_r, W_k x_k, W_v x_v
    d_t = exp(-e^(-1/2) sigmoid(w_0 + tanh(x_w A_w) B_w)),         a_t = sigmoid(a_0 + x_a A_a B_a)
    c_t = k_t k_k / |k_t k_k|,                                     k'_t = k_t (1 + (a_t - 1) k_a)
    S_t = (diag(d_t) - (a_t c_t) c_t^T) S_{t-1} + k'_t v_t^T,      o_t = S_t^T r_t        per head
    y_t = W_o ((norm(o_t) + (sum_K r_t k'_t r_k) v_t) (sigmoid(x_g A_g) B_g))

Symbols: d_t and a_t have one number for each key channel; c_t is what is removed, k'_t what is added; the norm is a
layer norm of each head. The transition is similar to a symmetric matrix: its eigenvalues are real and lie in
(-0.455, 1). ``wide_rates`` takes (1 + d_t) a_t in the place of a_t before c_t, and they lie in (-1, 1): then a step can
reflect.

Source: Peng et al. (2025), "RWKV-7 Goose with expressive dynamic state evolution", equations 2 to 17. Official code:
BlinkDL/RWKV-LM, RWKV-v7. State: S, D K numbers with K = D / H, and the last input, D. Initial values are those of the
official code: mu, w_0, a_0, k_k, k_a, r_k from the channel and the depth of the layer, A at zero, B orthogonal times
0.1, r and v uniform in +-0.5 D^(-1/2), k in a tenth of that, the output map at zero; ``zero_init=False`` gives that map
the law of other linear layers.

Deviations: values are those of their own layer, without a share of the first layer's, since a mixer knows no other
layer; a single layer counts as the first of many; no channel mix, but the MLP of the block. The authors take heads of
64.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import HeadNorm, product_spectrum
from hf_memory.mixers._token_shift import (
    ShiftedMemoryMixer,
    channel_ramp,
    channel_share,
    depth,
    with_replaced_input,
)
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, mark_residual_output
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.generalized_delta_rule import generalized_delta_rule

_LEAST = -math.exp(-0.5)  # log of the smallest decay
_EXPONENTS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)  # of mu for r, w, k, v, a, g


@strict
class MemoryRWKV7Config(MemoryConfig):
    """Configuration of RWKV-7.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        decay_rank: Rank of the map to the decays; 0 for 2.5 sqrt(hidden_size), rounded to a multiple of 32.
        rate_rank: Rank of the map to the rates; 0 for the same.
        gate_rank: Rank of the map to the gate; 0 for twice as much before rounding.
        wide_rates: Let eigenvalues reach -1.
        head_norm_eps: Epsilon of the norm of each head.
        zero_init: Start the output map at zero.
    """

    model_type: ClassVar[str] = "memory_rwkv7"

    num_heads: int = 2
    decay_rank: int = 0
    rate_rank: int = 0
    gate_rank: int = 0
    wide_rates: bool = False
    head_norm_eps: float = 64e-5
    zero_init: bool = True

    def validate_rwkv7(self) -> None:
        """Check ranks and epsilon."""
        for name in ("decay_rank", "rate_rank", "gate_rank"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.head_norm_eps <= 0:
            raise ValueError(f"head_norm_eps must be above 0, got {self.head_norm_eps}")


class RWKV7Mixer(ShiftedMemoryMixer):
    """Time mix of Goose."""

    fp32_parameters = ("decay_bias", "rate_bias")
    no_decay_parameters = (
        "mix",
        "bonus",
        *(f"{n}_{way}.weight" for n in ("decay", "rate", "gate") for way in ("down", "up")),
    )

    def __init__(self, config: MemoryRWKV7Config, layer_idx: int):
        super().__init__(config, layer_idx)
        width, heads = config.hidden_size, config.num_heads
        self.mix = nn.Parameter(torch.empty(6, width))
        self.receptance, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.decay_down, self.decay_up = self._low_rank(width, config.decay_rank or _rank(width, 2.5))
        self.rate_down, self.rate_up = self._low_rank(width, config.rate_rank or _rank(width, 2.5))
        self.gate_down, self.gate_up = self._low_rank(width, config.gate_rank or _rank(width, 5.0))
        self.decay_bias, self.rate_bias = (nn.Parameter(torch.empty(width, dtype=torch.float32)) for _ in range(2))
        self.removal, self.addition = (nn.Parameter(torch.empty(width)) for _ in range(2))
        self.bonus = nn.Parameter(torch.empty(heads, width // heads))
        self.head_norm = HeadNorm(width, config.head_norm_eps)
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=False))

    @staticmethod
    def _low_rank(width: int, rank: int) -> tuple[nn.Linear, nn.Linear]:
        return nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def reset_parameters(self) -> None:
        """The laws of the official code."""
        deep, falling = depth(self.config, self.layer_idx)
        share, ramp = channel_share(self.decay_bias), channel_ramp(self.decay_bias)
        size = self.bonus.shape[1]
        wave = 2 * (torch.arange(len(ramp), device=ramp.device) % size) / max(size - 1, 1) - 1
        wave, line = wave * wave.abs(), ramp - 0.5
        init.copy_(self.mix, torch.stack([1 - share ** (exponent * falling) for exponent in _EXPONENTS]))
        init.copy_(self.decay_bias, -5.5 + 6 * ramp ** (1 + deep**0.3) + 2.5 * wave)
        init.copy_(self.rate_bias, -0.19 + 0.3 * wave + 0.4 * line)
        init.copy_(self.removal, 0.71 - 0.1 * line)
        init.constant_(self.addition, 1.02)
        init.constant_(self.bonus, -0.04)
        for down, up in (
            (self.decay_down, self.decay_up),
            (self.rate_down, self.rate_up),
            (self.gate_down, self.gate_up),
        ):
            init.zeros_(down.weight)
            init.copy_(up.weight, nn.init.orthogonal_(torch.empty_like(up.weight, dtype=torch.float32), gain=0.1))
        bound = 0.5 * len(ramp) ** -0.5
        for linear, scale in ((self.receptance, 1.0), (self.key, 0.1), (self.value, 1.0)):
            init.uniform_(linear.weight, -scale * bound, scale * bound)
        if self.config.zero_init:
            init.zeros_(self.out_proj.weight)

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        before, shift = self.before(hidden_states, state, lengths)
        x_r, x_w, x_k, x_v, x_a, x_g = self._mixed(hidden_states, before)
        log_decay, key, erase, probe = self._transition(x_w, x_k, x_a)
        receptance, value = (part.unflatten(-1, self.heads) for part in (self.receptance(x_r), self.value(x_v)))
        start = None if state is None else state["memory"]
        output, memory = generalized_delta_rule(
            receptance,
            key,
            value,
            erase,
            probe,
            log_decay,
            initial_state=start,
            lengths=lengths,
            least_log_decay=_LEAST,
        )
        bonus = (receptance * key.to(value.dtype) * self.bonus.to(value.dtype)).sum(-1, keepdim=True) * value
        gate = self.gate_up(torch.sigmoid(self.gate_down(x_g)))
        output = self.out_proj((self.head_norm(output) + bonus.flatten(-2)) * gate)
        return output, {"shift": shift, "memory": memory} if return_state else None

    def _mixed(self, hidden_states: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """The mixtures x_j of the current and the last input, each (B, T, D)."""
        mix = self.mix.to(hidden_states.dtype).view(6, 1, 1, -1)
        return torch.lerp(hidden_states, before, mix).unbind(0)

    def _transition(self, x_w: Tensor, x_k: Tensor, x_a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log d, k', (a c) and c / d (B, T, H, K) in at least float32: the rule erases after the decay."""
        raw = at_least_float32(self.decay_up(torch.tanh(self.decay_down(x_w)))) + at_least_float32(self.decay_bias)
        log_decay = _LEAST * torch.sigmoid(raw)
        rate = torch.sigmoid(at_least_float32(self.rate_up(self.rate_down(x_a))) + at_least_float32(self.rate_bias))
        key = at_least_float32(self.key(x_k))
        added = key * (1 + (rate - 1) * at_least_float32(self.addition))
        removed = (key * at_least_float32(self.removal)).unflatten(-1, self.heads)
        removed = F.normalize(removed, dim=-1, eps=1e-12)
        rate = (1 + log_decay.exp()) * rate if self.config.wide_rates else rate
        log_decay, rate, added = (part.unflatten(-1, self.heads) for part in (log_decay, rate, added))
        return log_decay, added, rate * removed, removed * (-log_decay).exp()

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of the eigenvalues over the heads, and 0, since the last input is replaced."""
        before, _ = self.before(hidden_states, None, None)
        _, x_w, x_k, _, x_a, _ = self._mixed(hidden_states, before)
        log_decay, _, erase, probe = self._transition(x_w, x_k, x_a)
        return with_replaced_input(product_spectrum(erase.unsqueeze(2), probe.unsqueeze(2), log_decay.exp()))


def _rank(width: int, factor: float) -> int:
    """The authors' rank of a map, at least 32."""
    return max(32, 32 * round(factor * width**0.5 / 32))


class MemoryRWKV7Model(MemoryModel):
    """Base model with RWKV-7."""

    config_class = MemoryRWKV7Config
    mixer_class = RWKV7Mixer


class MemoryRWKV7ForCausalLM(MemoryForCausalLM):
    """RWKV-7 with a language model head."""

    config_class = MemoryRWKV7Config
    model_class = MemoryRWKV7Model


class MemoryRWKV7ForTokenClassification(MemoryForTokenClassification):
    """RWKV-7 with a head per position."""

    config_class = MemoryRWKV7Config
    model_class = MemoryRWKV7Model
