"""Gated DeltaProduct: several steps of the delta rule in every token, so that a transition is a product of reflections.

    S <- a_t S_{t-1},    S <- (I - b_j k_j k_j^T) S + b_j k_j v_j^T for j = 1 ... n,    S_t <- S        per head
    o_t = S_t^T q_t / sqrt(K),    y_t = W_o (RMS(o_t) SiLU(W_g x_t))

Symbols: a_t as in Gated DeltaNet; a token has n keys k_j, values v_j and strengths b_j, and one query, all maps of the
input with a short convolution and SiLU; q and k have Euclidean norm 1; b_j = sigmoid(.), doubled where
``allow_neg_eigval``. With n = 1 it is Gated DeltaNet, and without ``forget_gate`` DeltaProduct. Two reflections turn
a plane, so that from n = 2 on eigenvalues may be complex; their size is at most 1.

Source: Siems et al. (2025), "DeltaProduct: improving state-tracking in linear RNNs via Householder products", equations
7 and 8. Official code: automl/DeltaProduct; fla-org/flash-linear-attention, ``fla/layers/gated_deltaproduct.py``.
State: S, H K V numbers, and (H K + n H (K + V)) (W - 1) of the convolution. Initial values are those of Gated DeltaNet.

Beyond the paper, for state tracking: ``write=False`` leaves out b_j k_j v_j^T, so that tokens only turn and erase what
``learned_start``, an S_0 that is a parameter with rows of about unit norm, has put there. Deviations: those of Gated
DeltaNet.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.mixers._delta import DeltaMixer
from hf_memory.mixers._gates import (
    check_rates,
    product_spectrum,
    softplus_log_decay,
    start_rates,
    start_time_steps,
)
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, with_shift
from hf_memory.models.modeling import MemoryModel


@strict
class MemoryGatedDeltaProductConfig(MemoryConfig):
    """Configuration of Gated DeltaProduct.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        num_householder: Steps n of the delta rule in a token.
        key_head_dim: Numbers K of a key; 0 for hidden_size / H.
        value_head_dim: Numbers V of a value; 0 for K.
        allow_neg_eigval: Draw strengths from (0, 2) instead of (0, 1), so that a step can be a reflection.
        forget_gate: Let the memory decay once a token.
        write: Add values under their keys.
        learned_start: Start from a memory that is learned instead of an empty one.
        conv_kernel: Width W of the short convolution on queries, keys and values; 0 for none.
        gate: Multiply the normed outputs with SiLU(W_g x).
        decay_min: Smallest initial rate exp(A_log).
        decay_max: Largest initial rate.
        time_step_min: Smallest initial softplus(b_dt).
        time_step_max: Largest initial softplus(b_dt).
        time_step_floor: Lower bound of the drawn ones.
    """

    model_type: ClassVar[str] = "memory_gated_delta_product"

    num_heads: int = 2
    num_householder: int = 2
    key_head_dim: int = 0
    value_head_dim: int = 0
    allow_neg_eigval: bool = True
    forget_gate: bool = True
    write: bool = True
    learned_start: bool = False
    conv_kernel: int = 4
    gate: bool = True
    decay_min: float = 0.01
    decay_max: float = 16.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    def validate_gated_delta_product(self) -> None:
        """Check sizes, rates and time steps."""
        if self.num_householder < 1:
            raise ValueError(f"num_householder must be at least 1, got {self.num_householder}")
        for name in ("key_head_dim", "value_head_dim", "conv_kernel"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not (self.write or self.learned_start):
            raise ValueError("write must be True where learned_start is False: the memory would stay empty")
        check_rates(self)


class GatedDeltaProductMixer(DeltaMixer):
    """Multi-head delta rule with several steps in a token."""

    def __init__(self, config: MemoryGatedDeltaProductConfig, layer_idx: int):
        heads = config.num_heads
        key_dim = config.key_head_dim or config.hidden_size // heads
        value_dim = config.value_head_dim or key_dim
        super().__init__(config, layer_idx, key_dim, value_dim, steps=config.num_householder, writes=config.write)
        self.decay_proj = nn.Linear(config.hidden_size, heads, bias=False) if config.forget_gate else None
        self.A_log, self.dt_bias = (
            nn.Parameter(torch.empty(heads, dtype=torch.float32)) if config.forget_gate else None for _ in range(2)
        )
        start = torch.empty(self.memory_shape, dtype=torch.float32) if config.learned_start else None
        self.start = None if start is None else nn.Parameter(start)
        self.fp32_parameters = tuple(n for n in ("A_log", "dt_bias", "start") if getattr(self, n) is not None)

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        config = self.config
        if self.A_log is not None:
            start_rates(self.A_log, config.decay_min, config.decay_max)
            start_time_steps(self.dt_bias, config.time_step_min, config.time_step_max, config.time_step_floor)
        if self.start is not None:
            init.normal_(self.start, std=self.memory_shape[2] ** -0.5)

    def initial_state(self, batch_size: int) -> State:
        """An empty memory or the learned one, and no inputs of the convolution."""
        state = super().initial_state(batch_size)
        if self.start is not None:
            state["memory"] = state["memory"] + self.start
        return state

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
        if state is None and self.start is not None:
            start = self.start.expand(len(hidden_states), *self.memory_shape)
        output, memory = self.remember(step, self.log_decay(hidden_states), None, start, lengths)
        return self.emit(output, hidden_states), self.join(memory, conv) if return_state else None

    def log_decay(self, hidden_states: Tensor) -> Tensor | None:
        """log a (B, T, H), in at least float32; None without decay."""
        if self.decay_proj is None:
            return None
        return softplus_log_decay(self.decay_proj(hidden_states), self.A_log, self.dt_bias)

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of the real parts over the heads; with a convolution also 0, since its buffer is shifted."""
        step, _ = self.step(hidden_states, None, None, False)
        log_decay, heads, key_dim = self.log_decay(hidden_states), *self.memory_shape[:2]
        decay = step.query.new_ones(*hidden_states.shape[:2], heads) if log_decay is None else log_decay.exp()
        probe, beta = (part.unflatten(1, (-1, self.steps)) for part in (step.probe, step.beta))
        spectrum = product_spectrum(beta.unsqueeze(-1) * probe, probe, decay.unsqueeze(-1).expand(-1, -1, -1, key_dim))
        return with_shift(spectrum, self.conv)


class MemoryGatedDeltaProductModel(MemoryModel):
    """Base model with Gated DeltaProduct."""

    config_class = MemoryGatedDeltaProductConfig
    mixer_class = GatedDeltaProductMixer


class MemoryGatedDeltaProductForCausalLM(MemoryForCausalLM):
    """Gated DeltaProduct with a language model head."""

    config_class = MemoryGatedDeltaProductConfig
    model_class = MemoryGatedDeltaProductModel


class MemoryGatedDeltaProductForTokenClassification(MemoryForTokenClassification):
    """Gated DeltaProduct with a head per position."""

    config_class = MemoryGatedDeltaProductConfig
    model_class = MemoryGatedDeltaProductModel
