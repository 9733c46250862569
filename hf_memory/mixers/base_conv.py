"""BaseConv: a gated convolution, the smallest of its family (Arora et al., 2023, "Zoology", section 4).

    o_t = (h * u + c)_t (W u_t + b) + u_t

Symbols: * is a causal depthwise convolution with the filter h. ``conv_kernel`` sets its width; 0 makes it as long as
the sequence, with an implicit filter like Hyena's (see :mod:`hf_memory.ops.implicit_filter`) and, in place of c, d u
with one weight d per channel. The last term is the layer's own skip connection, beside that of the block.

Official code: HazyResearch/zoology, ``mixers/base_conv.py``. State: the last W - 1 inputs, (W - 1) * D. With a long
filter it is the history, min(T, max_position_embeddings - 1) * D; that filter exists for ``max_position_embeddings``
tokens, and a longer sequence raises. Initial values: d = 1; filter MLP uniform in +-1 / sqrt(fan in), omega =
``filter_frequency``.

Deviations: d is learned; features of the position are fixed.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import ShortConvolution, State, join_state, split_state
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.implicit_filter import implicit_filter
from hf_memory.ops.long_convolution import count_tokens, long_convolution


@strict
class MemoryBaseConvConfig(MemoryConfig):
    """Configuration of BaseConv.

    Attributes:
        conv_kernel: Width W of the filter; 0 for one of ``max_position_embeddings`` taps.
        skip: Add the input to the product.
        filter_size: Width of the MLP of a long filter.
        filter_layers: Its hidden layers after the first.
        filter_features: Features of a position, odd and at least 3: time, and as many cosines as sines.
        filter_frequency: Initial frequency omega of its sine activations.
    """

    model_type: ClassVar[str] = "memory_base_conv"

    conv_kernel: int = 3
    skip: bool = True
    filter_size: int = 16
    filter_layers: int = 2
    filter_features: int = 3
    filter_frequency: float = 1.0

    def validate_base_conv(self) -> None:
        """Check kernel and filter."""
        for name, least in (("conv_kernel", 0), ("filter_size", 1), ("filter_layers", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.filter_features < 3 or self.filter_features % 2 == 0:
            raise ValueError(f"filter_features must be odd and at least 3, got {self.filter_features}")


class BaseConvMixer(Mixer):
    """A gated convolution."""

    def __init__(self, config: MemoryBaseConvConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.filter_size
        self.gate_proj = nn.Linear(width, width)
        self.conv = ShortConvolution(width, config.conv_kernel) if config.conv_kernel else None
        self.growing_state = self.limited_length = self.conv is None
        if self.conv is not None:
            return
        self.float32_tolerance = 1e-4
        self.filter_mlp = nn.ModuleList(
            [
                nn.Linear(config.filter_features, size),
                *(nn.Linear(size, size) for _ in range(config.filter_layers)),
                nn.Linear(size, width, bias=False),
            ]
        )
        self.filter_frequency = nn.Parameter(torch.empty(size))
        self.filter_bias = nn.Parameter(torch.empty(width))
        self.slow_parameters = (
            "filter_frequency",
            *(f"filter_mlp.{name}" for name, _ in self.filter_mlp.named_parameters()),
        )

    def reset_parameters(self) -> None:
        """The laws of a long filter, named in the module's docstring."""
        if self.conv is not None:
            return
        for linear in self.filter_mlp:
            bound = 1 / math.sqrt(linear.in_features)
            init.uniform_(linear.weight, -bound, bound)
            if linear.bias is not None:
                init.uniform_(linear.bias, -bound, bound)
        init.constant_(self.filter_frequency, self.config.filter_frequency)
        init.ones_(self.filter_bias)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, or an empty history."""
        if self.conv is not None:
            return join_state({"conv": self.conv.initial_state(batch_size)})
        return {
            "history": self.state_tensor(batch_size, 0, self.config.hidden_size),
            "num_tokens": self.state_tensor(batch_size, dtype=torch.int64),
        }

    def state_size(self, length: int | None = None) -> int:
        """Numbers held after ``length`` tokens. Raises a ``ValueError`` for a long filter without a length."""
        if self.conv is not None:
            return self.conv.state_size()
        if length is None:
            raise ValueError("length: the state of BaseConv with a long filter grows, so its size needs a length")
        return min(length, self.config.max_position_embeddings - 1) * self.config.hidden_size

    def reset_state(self, state: State, mask: torch.Tensor) -> State:
        """Zeros in the rows where ``mask`` (B,) is True: what was never there adds nothing."""
        return {name: leaf.masked_fill(mask.view(-1, *[1] * (leaf.dim() - 1)), 0) for name, leaf in state.items()}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`. A long filter raises past ``max_position_embeddings``."""
        if self.conv is not None:
            convolved, conv = self.conv(hidden_states, split_state(state, "conv"), lengths, None, return_state)
            new = join_state({"conv": conv})
        else:
            convolved, new = self._convolve(hidden_states, state, lengths, return_state)
        output = convolved * self.gate_proj(hidden_states)
        return output + hidden_states if self.config.skip else output, new if return_state else None

    def _convolve(self, hidden_states, state, lengths, return_state):
        """The convolution with a long filter, and the new history."""
        state = state or self.initial_state(hidden_states.shape[0])
        time, num_past, longest = hidden_states.shape[1], state["history"].shape[1], self.config.max_position_embeddings
        counts = count_tokens(state["num_tokens"], num_past, time, lengths, longest, "max_position_embeddings")
        weights = [linear.weight for linear in self.filter_mlp]
        biases = [linear.bias for linear in self.filter_mlp[:-1]]
        taps = implicit_filter(min(num_past + time, longest), longest, weights, biases, self.filter_frequency)
        kernel = taps + F.pad(self.filter_bias.to(taps.dtype).unsqueeze(1), (0, taps.shape[1] - 1))
        convolved, history = long_convolution(
            hidden_states, kernel, state["history"], lengths, return_state, longest - 1
        )
        return convolved, {"history": history, "num_tokens": counts}

    def transition_spectrum(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Zeros, since a buffer of the last inputs is shifted; None with a long filter."""
        return None if self.growing_state else hidden_states.new_zeros(*hidden_states.shape[:2], 2)


class MemoryBaseConvModel(MemoryModel):
    """Base model with BaseConv."""

    config_class = MemoryBaseConvConfig
    mixer_class = BaseConvMixer


class MemoryBaseConvForCausalLM(MemoryForCausalLM):
    """BaseConv with a language model head."""

    config_class = MemoryBaseConvConfig
    model_class = MemoryBaseConvModel


class MemoryBaseConvForTokenClassification(MemoryForTokenClassification):
    """BaseConv with a head per position."""

    config_class = MemoryBaseConvConfig
    model_class = MemoryBaseConvModel
