"""sLSTM: the recurrent cell of xLSTM, with an exponential input gate, a normaliser and mixing within each head.

    (i, f, z, o)_t = W (x^c, x^c, x, x)_t + R h_{t-1} + b,                 x^c = SiLU(conv(x))
    c_t = sigmoid(f) c_{t-1} + e^i tanh(z),    n_t = sigmoid(f) n_{t-1} + e^i
    h_t = sigmoid(o) c_t / n_t,                y_t = norm(h_t)

Symbols: W and R are block-diagonal, a matrix for each of H heads; the norm is a layer norm of each head. Since the
gates see h, the transition is dense in a head and of any sign: unlike the linear recurrences this one can track states.

Source: Beck et al. (2024), "xLSTM: Extended long short-term memory", equations 8 to 18 and figure 9, the block without
its MLP, which is ``intermediate_size`` with ``mlp_gated`` here. Official code: NX-AI/xlstm,
``xlstm/blocks/slstm/layer.py``. State: e^-m c, e^-m n, the running maximum m and h, 4 D numbers, and D (W - 1) of the
convolution. Initial values are those of the official code: R = 0, W of standard deviation sqrt(2 / (5 D)), b_f from 5
down to -7 over the cells of a head, along a curve that depends on the depth of the layer, all other biases 0. The
authors take 4 heads. There is no output map, and the stream gets the normed outputs.

Deviations: none but a single layer, which counts as the first of many.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.mixers._gates import HeadNorm
from hf_memory.mixers._token_shift import depth
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import ShortConvolution, State, at_least_float32, join_state, split_state, with_shift
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.slstm import NO_EXPONENT, slstm, slstm_spectrum

_GATES, _INPUT_GATES = 4, 2  # blocks i, f, z, o, of which the first two see the convolution


@strict
class MemorySLSTMConfig(MemoryConfig):
    """Configuration of sLSTM.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``. Cells see those of their own head.
        conv_kernel: Width W of the short convolution before input and forget gate; 0 for none.
    """

    model_type: ClassVar[str] = "memory_slstm"

    num_heads: int = 2
    conv_kernel: int = 4

    def validate_slstm(self) -> None:
        """Check the width of the convolution."""
        if self.conv_kernel < 0:
            raise ValueError(f"conv_kernel must be at least 0, got {self.conv_kernel}")


class SLSTMMixer(Mixer):
    """Heads of cells with exponential gates."""

    fp32_parameters = ("gate_bias",)
    no_decay_parameters = ("weight_hh",)

    def __init__(self, config: MemorySLSTMConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, heads = config.hidden_size, config.num_heads
        size = width // heads
        kernel = config.conv_kernel
        self.conv = ShortConvolution(width, kernel, activation="silu") if kernel else None
        # The gates of a head lie side by side: adapters take parameters of up to three axes.
        self.weight_ih = nn.Parameter(torch.empty(heads, size, _GATES * size))
        self.weight_hh = nn.Parameter(torch.empty(heads, size, _GATES * size))
        self.gate_bias = nn.Parameter(torch.empty(heads, _GATES, size, dtype=torch.float32))
        self.head_norm = HeadNorm(width, config.norm_eps, bias=False)

    def reset_parameters(self) -> None:
        """The laws of the official code."""
        deep, _ = depth(self.config, self.layer_idx)
        size = self.gate_bias.shape[-1]
        ramp = torch.arange(size, dtype=torch.float32, device=self.gate_bias.device) / max(size - 1, 1)
        bias = torch.zeros_like(self.gate_bias)
        bias[:, 1] = 5 - 12 * ramp ** (0.3 + 1.3 * deep)
        init.copy_(self.gate_bias, bias)
        init.normal_(self.weight_ih, std=(2 / (5 * self.config.hidden_size)) ** 0.5)
        init.zeros_(self.weight_hh)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, and a maximum below all gates."""
        heads, _, size = self.gate_bias.shape
        cell, normalizer, maximum, hidden = (self.state_tensor(batch_size, heads, size) for _ in range(4))
        conv = self.conv.initial_state(batch_size) if self.conv is not None else None
        maximum = torch.full_like(maximum, NO_EXPONENT)
        return {
            "cell": cell,
            "normalizer": normalizer,
            "maximum": maximum,
            "hidden": hidden,
            **join_state({"conv": conv}),
        }

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        inputs, conv = self._inputs(hidden_states, state, lengths, return_state)
        names = ("cell", "normalizer", "maximum", "hidden")
        start = None if state is None else tuple(state[name] for name in names)
        # Without a state to return, padding may run on: outputs before it are the same.
        output, final = slstm(inputs, self._by_gate(self.weight_hh), start, lengths if return_state else None)
        output = self.head_norm(output.to(hidden_states.dtype))
        if not return_state:
            return output, None
        return output, {**dict(zip(names, final, strict=True)), **join_state({"conv": conv})}

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of (c, n, h), by its formula; with a convolution also 0, since its buffer is shifted."""
        inputs, _ = self._inputs(hidden_states, None, None, False)
        return with_shift(slstm_spectrum(inputs, self._by_gate(self.weight_hh)), self.conv)

    def _by_gate(self, weight: Tensor) -> Tensor:
        """A weight as (H, P, 4, P): head, input, gate, output."""
        return weight.unflatten(-1, (_GATES, -1))

    def _inputs(
        self, hidden_states: Tensor, state: State | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, State | None]:
        """W x + b (B, T, H, 4, P) in at least float32, and the state of the convolution."""
        weight = self._by_gate(self.weight_ih).to(hidden_states.dtype)
        sources, conv = [(hidden_states, weight)], None
        if self.conv is not None:
            mixed, conv = self.conv(hidden_states, split_state(state, "conv"), lengths, None, return_state)
            sources = [(mixed, weight[:, :, :_INPUT_GATES]), (hidden_states, weight[:, :, _INPUT_GATES:])]
        parts = [
            torch.einsum("bthq,hqgp->bthgp", source.unflatten(-1, (len(part), -1)), part) for source, part in sources
        ]
        return at_least_float32(torch.cat(parts, dim=-2)) + at_least_float32(self.gate_bias), conv


class MemorySLSTMModel(MemoryModel):
    """Base model with sLSTM."""

    config_class = MemorySLSTMConfig
    mixer_class = SLSTMMixer


class MemorySLSTMForCausalLM(MemoryForCausalLM):
    """sLSTM with a language model head."""

    config_class = MemorySLSTMConfig
    model_class = MemorySLSTMModel


class MemorySLSTMForTokenClassification(MemoryForTokenClassification):
    """sLSTM with a head per position."""

    config_class = MemorySLSTMConfig
    model_class = MemorySLSTMModel
