"""HGRN2: linear attention whose keys are what its forget gates let go, with a lower bound that rises with the depth.

    S_t = diag(f_t) S_{t-1} + (1 - f_t) v_t^T,    o_t = S_t^T q_t / sqrt(K),    y_t = W_o RMS(o_t)
    f_t = l + (1 - l) sigmoid(W_f x_t),    q_t = SiLU(W_q x_t),    v_t = W_i x_t

Symbols: f_t has one number for each of the K key channels of a head; l is the lower bound of a channel in this layer.
The norm is over all heads together.

Source: Qin et al. (2024), "HGRN2: gated linear RNNs with state expansion", equation 7; Qin et al. (2023),
"Hierarchically gated recurrent neural network", section 3.3, for the bound. Official code: OpenNLPLab/HGRN2;
fla-org/flash-linear-attention, ``fla/layers/hgrn2.py``, from which the scale of q is. State: S, D K numbers with K = D
/ H, and 3 D (W - 1) where there is a convolution. The eigenvalues of the transition are the f_t, in (l, 1). Initial
values: l = layer / number of layers.

Deviations: each layer learns its own bounds, as sigmoids of parameters, and the first has none, where the authors take
cumulative sums of a softmax over the layers: a mixer knows no other layer, and the values at the start are the same.
The authors take K = 128. Beyond the paper: a short convolution with SiLU on all three, and a gate SiLU(W_g x), as
switches.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import decay_spectrum
from hf_memory.mixers._linear import LinearMixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import RMSNorm, State, at_least_float32, with_shift
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.gated_linear_attention import gated_linear_attention


@strict
class MemoryHGRN2Config(MemoryConfig):
    """Configuration of HGRN2.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        lower_bounds: Bound forget gates from below in all layers but the first.
        conv_kernel: Width W of a short convolution on queries, gates and values; 0 for none.
        gate: Multiply the normed outputs with SiLU(W_g x).
    """

    model_type: ClassVar[str] = "memory_hgrn2"

    num_heads: int = 2
    lower_bounds: bool = True
    conv_kernel: int = 0
    gate: bool = False

    def validate_hgrn2(self) -> None:
        """Check the convolution."""
        if self.conv_kernel < 0:
            raise ValueError(f"conv_kernel must be at least 0, got {self.conv_kernel}")


class HGRN2Mixer(LinearMixer):
    """Multi-head linear attention with keys tied to the decays."""

    def __init__(self, config: MemoryHGRN2Config, layer_idx: int):
        width, heads = config.hidden_size, config.num_heads
        super().__init__(config, layer_idx, width, (heads, width // heads, width // heads))
        self.norm = RMSNorm(width, config.norm_eps)
        self.bound = None
        if config.lower_bounds and layer_idx:
            self.fp32_parameters = ("bound",)
            self.bound = nn.Parameter(torch.empty(width, dtype=torch.float32))

    def reset_parameters(self) -> None:
        """Bounds that rise with the depth."""
        if self.bound is not None:
            share = self.layer_idx / max(self.config.num_hidden_layers, self.layer_idx + 1)
            init.constant_(self.bound, math.log(share / (1 - share)))

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        (query, forget, value), conv = self.project(hidden_states, state, lengths, return_state)
        log_decay, key = self._gates(forget)
        output, memory = gated_linear_attention(
            F.silu(query) * query.shape[-1] ** -0.5,
            key,
            value,
            log_decay,
            initial_state=None if state is None else state["memory"],
            lengths=lengths,
        )
        output = self.norm(output.flatten(-2).to(hidden_states.dtype))
        return self.emit(output.unflatten(-1, (self.config.num_heads, -1)), hidden_states), (
            self.join(memory, conv) if return_state else None
        )

    def _gates(self, forget: Tensor) -> tuple[Tensor, Tensor]:
        """log f and the keys 1 - f (B, T, H, K), in at least float32 and without a difference of numbers near 1."""
        forget = at_least_float32(forget)
        if self.bound is None:
            return F.logsigmoid(forget), torch.sigmoid(-forget)
        bound = at_least_float32(self.bound).unflatten(0, (self.config.num_heads, -1))
        log_decay = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + F.logsigmoid(forget))
        return log_decay, torch.sigmoid(-bound) * torch.sigmoid(-forget)

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of f over the channels; with a convolution also 0, since its buffer is shifted."""
        (_, forget, _), _ = self.project(hidden_states, None, None, False)
        return with_shift(decay_spectrum(self._gates(forget)[0]), self.conv)


class MemoryHGRN2Model(MemoryModel):
    """Base model with HGRN2."""

    config_class = MemoryHGRN2Config
    mixer_class = HGRN2Mixer


class MemoryHGRN2ForCausalLM(MemoryForCausalLM):
    """HGRN2 with a language model head."""

    config_class = MemoryHGRN2Config
    model_class = MemoryHGRN2Model


class MemoryHGRN2ForTokenClassification(MemoryForTokenClassification):
    """HGRN2 with a head per position."""

    config_class = MemoryHGRN2Config
    model_class = MemoryHGRN2Model
