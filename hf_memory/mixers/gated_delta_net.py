"""Gated DeltaNet: a delta rule whose memory also decays, by one number per head and token.

    S_t = (I - beta_t k_t k_t^T) a_t S_{t-1} + beta_t k_t v_t^T,        o_t = S_t^T q_t / sqrt(K)        per head
    a_t = exp(-exp(A_log) softplus(W_a x_t + b_dt)),                    beta_t = sigmoid(W_beta x_t),
    y_t = W_o (RMS(o_t) SiLU(W_g x_t))

Symbols: q, k, v are maps of the input with a short convolution and SiLU; q and k have Euclidean norm 1; beta is doubled
where ``allow_neg_eigval``, as in Olmo Hybrid. The eigenvalues of the transition are a_t and a_t (1 - beta_t |k_t|^2),
in (0, 1), or (-1, 1) with the factor: then a step can reflect, and a layer can count modulo two.

Source: Yang, Kautz and Hatamizadeh (2025), "Gated delta networks: improving Mamba2 with delta rule", equation 10 and
section 3.4; Grazzi et al. (2025), "Unlocking state-tracking in linear RNNs through negative eigenvalues", for the
factor. Official code: NVlabs/GatedDeltaNet; fla-org/flash-linear-attention, ``fla/layers/gated_deltanet.py``. State: S,
H K V numbers, and (2 H_k K + H V) (W - 1) of the convolution. Initial values: exp(A_log) uniform between ``decay_min``
and ``decay_max``, softplus(b_dt) log-uniform between ``time_step_min`` and ``time_step_max``.

Deviations: no head sizes of its own, but those of ``num_heads``: the authors take K = 256 and V = 512 with 6 heads at
width 2,048. The smallest rate is 0.01, as in transformers, and not 0, whose logarithm is infinite.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from hf_memory.mixers._delta import DeltaMixer
from hf_memory.mixers._gates import check_rates, softplus_log_decay, start_rates, start_time_steps
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, with_shift
from hf_memory.models.modeling import MemoryModel


@strict
class MemoryGatedDeltaNetConfig(MemoryConfig):
    """Configuration of Gated DeltaNet.

    Attributes:
        num_heads: Heads H of values; divides ``hidden_size``.
        num_key_heads: Heads H_k of queries and keys, each for H / H_k heads of values; 0 for H.
        key_head_dim: Numbers K of a key; 0 for hidden_size / H.
        value_head_dim: Numbers V of a value; 0 for K.
        allow_neg_eigval: Draw beta from (0, 2) instead of (0, 1), so that a step can reverse what a key has stored.
        conv_kernel: Width W of the short convolution on queries, keys and values; 0 for none.
        gate: Multiply the normed outputs with SiLU(W_g x).
        decay_min: Smallest initial rate exp(A_log).
        decay_max: Largest initial rate.
        time_step_min: Smallest initial softplus(b_dt).
        time_step_max: Largest initial softplus(b_dt).
        time_step_floor: Lower bound of the drawn ones.
    """

    model_type: ClassVar[str] = "memory_gated_delta_net"

    num_heads: int = 2
    num_key_heads: int = 0
    key_head_dim: int = 0
    value_head_dim: int = 0
    allow_neg_eigval: bool = False
    conv_kernel: int = 4
    gate: bool = True
    decay_min: float = 0.01
    decay_max: float = 16.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    def validate_gated_delta_net(self) -> None:
        """Check sizes, rates and time steps."""
        for name in ("num_key_heads", "key_head_dim", "value_head_dim", "conv_kernel"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.num_key_heads and self.num_heads % self.num_key_heads:
            raise ValueError(f"num_key_heads must divide num_heads={self.num_heads}, got {self.num_key_heads}")
        check_rates(self)


class GatedDeltaNetMixer(DeltaMixer):
    """Multi-head delta rule with a decay per head."""

    def __init__(self, config: MemoryGatedDeltaNetConfig, layer_idx: int):
        key_dim = config.key_head_dim or config.hidden_size // config.num_heads
        super().__init__(config, layer_idx, key_dim, config.value_head_dim or key_dim, config.num_key_heads or None)
        self.decay_proj = nn.Linear(config.hidden_size, config.num_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32))

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        config = self.config
        start_rates(self.A_log, config.decay_min, config.decay_max)
        start_time_steps(self.dt_bias, config.time_step_min, config.time_step_max, config.time_step_floor)

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
        start = None if state is None else state["memory"]
        output, memory = self.remember(step, self.log_decay(hidden_states), None, start, lengths)
        return self.emit(output, hidden_states), self.join(memory, conv) if return_state else None

    def log_decay(self, hidden_states: Tensor) -> Tensor:
        """log a (B, T, H), in at least float32."""
        return softplus_log_decay(self.decay_proj(hidden_states), self.A_log, self.dt_bias)

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of a and a (1 - beta |k|^2) over the heads; with a convolution also 0, as its buffer is shifted."""
        step, _ = self.step(hidden_states, None, None, False)
        decay = self.log_decay(hidden_states).exp()
        along = decay * (1 - step.beta * step.probe.square().sum(-1))
        every = along if step.probe.shape[-1] == 1 else torch.cat((along, decay), dim=-1)
        return with_shift(torch.stack((every.amin(-1), every.amax(-1)), dim=-1), self.conv)


class MemoryGatedDeltaNetModel(MemoryModel):
    """Base model with Gated DeltaNet."""

    config_class = MemoryGatedDeltaNetConfig
    mixer_class = GatedDeltaNetMixer


class MemoryGatedDeltaNetForCausalLM(MemoryForCausalLM):
    """Gated DeltaNet with a language model head."""

    config_class = MemoryGatedDeltaNetConfig
    model_class = MemoryGatedDeltaNetModel


class MemoryGatedDeltaNetForTokenClassification(MemoryForTokenClassification):
    """Gated DeltaNet with a head per position."""

    config_class = MemoryGatedDeltaNetConfig
    model_class = MemoryGatedDeltaNetModel
