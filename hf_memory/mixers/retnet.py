"""RetNet: linear attention with rotated keys and queries, whose heads forget at fixed rates.

    S_t = g_h S_{t-1} + R_t k_t v_t^T / sqrt(K),    o_t = S_t^T R_t q_t        per head
    y_t = W_o (RMS(o_t) SiLU(W_g x_t)),    g_h = 1 - 2^(-5 - h),    h = 0 ... H - 1

Symbols: q, k, v are maps of the input to H heads; R_t turns pairs of channels by angles that grow with the position t,
so that a product of a query and a key depends on their distance alone; values are ``expand`` times as wide as keys.

Source: Sun et al. (2023), "Retentive network: a successor to transformer for large language models", equations 3 to 8.
Official code: microsoft/torchscale; fla-org/flash-linear-attention, ``fla/layers/multiscale_retention.py``. State: S,
H K V numbers, and (2 + ``expand``) D (W - 1) where there is a convolution; the angle follows from the position. The
eigenvalues of the transition are the g_h.

Deviations: angles in the half-split layout with frequencies theta^(-2i / K), and a norm with a weight, as in the code
of fla; torchscale turns neighbours, and its frequencies end at 1 / theta. Its divisions of the weights by their sums
are left out, since the norm undoes them. The law of all maps is that of the package. Beyond the paper: a short
convolution with SiLU on q, k and v, and no gate, as switches.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor

from hf_memory.mixers._gates import decay_spectrum
from hf_memory.mixers._linear import NormedMixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, with_shift
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.gated_linear_attention import gated_linear_attention
from hf_memory.ops.rotation import rotate


@strict
class MemoryRetnetConfig(MemoryConfig):
    """Configuration of RetNet.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        expand: Width of the values of all heads, in widths of the residual stream.
        rope_theta: Base of the frequencies; 0 for no rotation.
        conv_kernel: Width W of a short convolution on queries, keys and values; 0 for none.
        gate: Multiply the normed outputs with SiLU(W_g x).
    """

    model_type: ClassVar[str] = "memory_retnet"

    num_heads: int = 2
    expand: int = 2
    rope_theta: float = 10_000.0
    conv_kernel: int = 0
    gate: bool = True

    def validate_retnet(self) -> None:
        """Check sizes and frequencies."""
        for name, least in (("expand", 1), ("conv_kernel", 0), ("rope_theta", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


class RetnetMixer(NormedMixer):
    """Multi-scale retention."""

    def __init__(self, config: MemoryRetnetConfig, layer_idx: int):
        width, heads = config.hidden_size, config.num_heads
        shape = (heads, width // heads, config.expand * width // heads)
        super().__init__(config, layer_idx, width, shape, config.expand * width)

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
        query, key = at_least_float32(query), at_least_float32(key) * key.shape[-1] ** -0.5
        if self.config.rope_theta:
            if position_ids is None:
                position_ids = torch.arange(key.shape[1], device=key.device).expand(key.shape[:2])
            query, key = (rotate(part, position_ids, self.config.rope_theta) for part in (query, key))
        output, memory = gated_linear_attention(
            query,
            key,
            value,
            self._log_decay(hidden_states),
            initial_state=None if state is None else state["memory"],
            lengths=lengths,
        )
        return self.emit(output, hidden_states), self.join(memory, conv) if return_state else None

    def _log_decay(self, hidden_states: Tensor) -> Tensor:
        """log g (B, T, H) in at least float32, the same at each step."""
        heads = torch.arange(self.config.num_heads, device=hidden_states.device)
        log_decay = torch.log1p(-(2.0 ** (-5.0 - at_least_float32(heads.to(hidden_states.dtype)))))
        return log_decay.expand(*hidden_states.shape[:2], -1)

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The smallest and the largest g; with a convolution also 0, since its buffer is shifted."""
        return with_shift(decay_spectrum(self._log_decay(hidden_states)), self.conv)


class MemoryRetnetModel(MemoryModel):
    """Base model with RetNet."""

    config_class = MemoryRetnetConfig
    mixer_class = RetnetMixer


class MemoryRetnetForCausalLM(MemoryForCausalLM):
    """RetNet with a language model head."""

    config_class = MemoryRetnetConfig
    model_class = MemoryRetnetModel


class MemoryRetnetForTokenClassification(MemoryForTokenClassification):
    """RetNet with a head per position."""

    config_class = MemoryRetnetConfig
    model_class = MemoryRetnetModel
