"""Gated linear attention: a matrix memory that adds up keys and values, and forgets each key channel by its own gate.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t / sqrt(K),    y_t = W_o (RMS(o_t) SiLU(W_g x_t))    per head
    a_t = sigmoid(A_2 A_1 x_t + b)^(1 / 16)

Symbols: q, k, v are maps of the input to H heads; a_t has one number for each key channel, from maps of rank
``gate_rank``; 1/16, ``1 / gate_temperature``, keeps it near 1.

Source: Yang et al. (2024), "Gated linear attention transformers with hardware-efficient training", equations 3 and 5
and section 4.4. Official code: fla-org/flash-linear-attention, ``fla/layers/gla.py``. State: S, H K V numbers, and
(2 H K + D) (W - 1) where there is a convolution. The eigenvalues of the transition are the a_t, in (0, 1). Initial
values: b = 0, so that every a is near 0.957. The authors take 4 heads, keys half as wide as values, and no convolution.

Deviation: b is a parameter of the mixer, which stays in float32. Beyond the paper: a short convolution with SiLU on q,
k and v, and no gate, as switches.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import decay_spectrum
from hf_memory.mixers._linear import NormedMixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, with_shift
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.gated_linear_attention import gated_linear_attention


@strict
class MemoryGLAConfig(MemoryConfig):
    """Configuration of gated linear attention.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        key_head_dim: Numbers K of a key; 0 for half of those of a value, hidden_size / H.
        gate_rank: Rank of the map to the decays.
        gate_temperature: The root that is taken of the gates.
        conv_kernel: Width W of a short convolution on queries, keys and values; 0 for none.
        gate: Multiply the normed outputs with SiLU(W_g x).
    """

    model_type: ClassVar[str] = "memory_gla"

    num_heads: int = 2
    key_head_dim: int = 0
    gate_rank: int = 16
    gate_temperature: float = 16.0
    conv_kernel: int = 0
    gate: bool = True

    def validate_gla(self) -> None:
        """Check sizes and the temperature."""
        for name, least in (("key_head_dim", 0), ("conv_kernel", 0), ("gate_rank", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.gate_temperature <= 0:
            raise ValueError(f"gate_temperature must be above 0, got {self.gate_temperature}")


class GLAMixer(NormedMixer):
    """Multi-head linear attention with a decay for each key channel."""

    fp32_parameters = ("decay_bias",)

    def __init__(self, config: MemoryGLAConfig, layer_idx: int):
        width, heads = config.hidden_size, config.num_heads
        value_dim = width // heads
        key_dim = config.key_head_dim or max(1, value_dim // 2)
        super().__init__(config, layer_idx, heads * key_dim, (heads, key_dim, value_dim), width)
        maps = nn.Linear(width, config.gate_rank, bias=False), nn.Linear(config.gate_rank, heads * key_dim, bias=False)
        self.decay_proj = nn.Sequential(*maps)
        self.decay_bias = nn.Parameter(torch.empty(heads * key_dim, dtype=torch.float32))

    def reset_parameters(self) -> None:
        """Decays near 1."""
        init.zeros_(self.decay_bias)

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        (query, key, value), conv = self.project(hidden_states, state, lengths, return_state)
        output, memory = gated_linear_attention(
            query * query.shape[-1] ** -0.5,
            key,
            value,
            self.log_decay(hidden_states),
            initial_state=None if state is None else state["memory"],
            lengths=lengths,
        )
        return self.emit(output, hidden_states), self.join(memory, conv) if return_state else None

    def log_decay(self, hidden_states: Tensor) -> Tensor:
        """log a (B, T, H, K), in at least float32."""
        raw = at_least_float32(self.decay_proj(hidden_states)) + at_least_float32(self.decay_bias)
        return F.logsigmoid(raw).unflatten(-1, (self.config.num_heads, -1)) / self.config.gate_temperature

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of a over the channels; with a convolution also 0, since its buffer is shifted."""
        return with_shift(decay_spectrum(self.log_decay(hidden_states)), self.conv)


class MemoryGLAModel(MemoryModel):
    """Base model with gated linear attention."""

    config_class = MemoryGLAConfig
    mixer_class = GLAMixer


class MemoryGLAForCausalLM(MemoryForCausalLM):
    """Gated linear attention with a language model head."""

    config_class = MemoryGLAConfig
    model_class = MemoryGLAModel


class MemoryGLAForTokenClassification(MemoryForTokenClassification):
    """Gated linear attention with a head per position."""

    config_class = MemoryGLAConfig
    model_class = MemoryGLAModel
