"""RWKV-6, Finch: a matrix memory whose decays, and whose mixtures of each input with the last, depend on the input.

    m = tanh((x + x' mu_x) A) B,    x_j = x + x' (mu_j + m_j) for j in w, k, v, r, g,    x' = x_{t-1} - x_t
    a_t = exp(-exp(w_0 + tanh(x_w A_w) B_w)),    r, k, v = W_r x_r, W_k x_k, W_v x_v
    o_t = (S_{t-1} + diag(u) k_t v_t^T)^T r_t,    S_t = diag(a_t) S_{t-1} + k_t v_t^T        per head
    y_t = W_o (norm(o_t) SiLU(W_g x_g))

Symbols: a_t has one number for each key channel; u is the bonus of the current token, which the memory does not hold
yet; the norm is a layer norm of each head.

Source: Peng et al. (2024), "Eagle and Finch: RWKV with matrix-valued states and dynamic recurrence", equations 16 to
20. Official code: BlinkDL/RWKV-LM, RWKV-v6. State: S, D K numbers with K = D / H, and the last input, D. The
eigenvalues of the transition are the a_t, in (0, 1). Initial values are those of the official code: w_0, u and mu from
the channel and the depth of the layer, A and A_w at zero, B and B_w uniform in +-0.01.

Deviations: r, k, v, g and output maps follow the law of the package; a single layer counts as the first of many; no
channel mix, but the MLP of the block. The authors take heads of 64. The exponent in the decay is cut at e^8, where a_t
is 0 in any precision.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import HeadNorm, decay_spectrum
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
from hf_memory.ops.gated_linear_attention import gated_linear_attention

_PARTS = 5  # decay, key, value, receptance and gate, in this order


@strict
class MemoryRWKV6Config(MemoryConfig):
    """Configuration of RWKV-6.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        mix_rank: Rank of the maps to each mixture.
        decay_rank: Rank of the map to the decays.
        head_norm_eps: Epsilon of the norm of each head.
    """

    model_type: ClassVar[str] = "memory_rwkv6"

    num_heads: int = 2
    mix_rank: int = 32
    decay_rank: int = 64
    head_norm_eps: float = 64e-5

    def validate_rwkv6(self) -> None:
        """Check ranks and epsilon."""
        for name in ("mix_rank", "decay_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.head_norm_eps <= 0:
            raise ValueError(f"head_norm_eps must be above 0, got {self.head_norm_eps}")


class RWKV6Mixer(ShiftedMemoryMixer):
    """Time mix of Finch."""

    fp32_parameters = ("time_decay", "time_first")
    no_decay_parameters = ("mix", "mix_up", "mix_down.weight", "decay_down.weight", "decay_up.weight")

    def __init__(self, config: MemoryRWKV6Config, layer_idx: int):
        super().__init__(config, layer_idx)
        width = config.hidden_size
        self.mix_first = nn.Parameter(torch.empty(width))
        self.mix = nn.Parameter(torch.empty(_PARTS, width))
        self.mix_down = nn.Linear(width, _PARTS * config.mix_rank, bias=False)
        self.mix_up = nn.Parameter(torch.empty(_PARTS, config.mix_rank, width))
        self.decay_down = nn.Linear(width, config.decay_rank, bias=False)
        self.decay_up = nn.Linear(config.decay_rank, width, bias=False)
        self.time_decay, self.time_first = (nn.Parameter(torch.empty(width, dtype=torch.float32)) for _ in range(2))
        self.key, self.value, self.receptance, self.gate = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.head_norm = HeadNorm(width, config.head_norm_eps)
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=False))

    def reset_parameters(self) -> None:
        """The laws of the official code."""
        deep, falling = depth(self.config, self.layer_idx)
        share, ramp = channel_share(self.time_decay), channel_ramp(self.time_decay)
        zigzag = 0.1 * ((torch.arange(len(ramp), device=ramp.device) + 1) % 3 - 1)
        init.copy_(self.time_decay, -6 + 5 * ramp ** (0.7 + 1.3 * deep))
        init.copy_(self.time_first, deep * (1 - ramp) + zigzag)
        usual, slow = share**falling, share ** (0.5 * falling)
        init.copy_(self.mix_first, 1 - usual)
        init.copy_(self.mix, 1 - torch.stack((usual, usual, usual + 0.3 * deep, slow, slow)))
        for linear in (self.mix_down, self.decay_down):
            init.zeros_(linear.weight)
        init.uniform_(self.mix_up, -0.01, 0.01)
        init.uniform_(self.decay_up.weight, -0.01, 0.01)

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
        decay, key, value, receptance, gate = self._mixed(hidden_states, before)
        output, memory = gated_linear_attention(
            self.receptance(receptance).unflatten(-1, self.heads),
            self.key(key).unflatten(-1, self.heads),
            self.value(value).unflatten(-1, self.heads),
            self._log_decay(decay),
            self.time_first.unflatten(0, self.heads),
            "before",
            initial_state=None if state is None else state["memory"],
            lengths=lengths,
        )
        output = self.out_proj(self.head_norm(output) * F.silu(self.gate(gate)))
        return output, {"shift": shift, "memory": memory} if return_state else None

    def _mixed(self, hidden_states: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """The mixtures x_j of the current and the last input, each (B, T, D)."""
        change = before - hidden_states
        low = torch.tanh(self.mix_down(hidden_states + change * self.mix_first.to(change.dtype)))
        dynamic = torch.einsum("btjr,jrd->jbtd", low.unflatten(-1, (_PARTS, -1)), self.mix_up.to(low.dtype))
        mix = self.mix.to(change.dtype).view(_PARTS, 1, 1, -1) + dynamic
        return (hidden_states + change * mix).unbind(0)

    def _log_decay(self, mixed: Tensor) -> Tensor:
        """log a (B, T, H, K), in at least float32."""
        raw = at_least_float32(self.decay_up(torch.tanh(self.decay_down(mixed)))) + at_least_float32(self.time_decay)
        return -raw.clamp(max=8).exp().unflatten(-1, self.heads)

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of a over the channels, and 0, since the last input is replaced."""
        before, _ = self.before(hidden_states, None, None)
        return with_replaced_input(decay_spectrum(self._log_decay(self._mixed(hidden_states, before)[0])))


class MemoryRWKV6Model(MemoryModel):
    """Base model with RWKV-6."""

    config_class = MemoryRWKV6Config
    mixer_class = RWKV6Mixer


class MemoryRWKV6ForCausalLM(MemoryForCausalLM):
    """RWKV-6 with a language model head."""

    config_class = MemoryRWKV6Config
    model_class = MemoryRWKV6Model


class MemoryRWKV6ForTokenClassification(MemoryForTokenClassification):
    """RWKV-6 with a head per position."""

    config_class = MemoryRWKV6Config
    model_class = MemoryRWKV6Model
