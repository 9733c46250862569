"""BaseConv: a gated convolution, the smallest of its family (Arora et al., 2023, "Zoology", section 4).

    o_t = (h * u + c)_t (W u_t + b) + u_t

Symbols: * is a causal depthwise convolution with the filter h. ``conv_kernel`` sets its width; 0 makes it as long as
the sequence, with an implicit filter like Hyena's (see :mod:`hf_memory.ops.implicit_filter`) and, in place of c, u_t.
The last term is the layer's own skip connection, beside that of the block.

Where ``expand`` E is given, the convolution and the gate have E * D channels, between two linear maps, as in the layer
of the released Based models (Arora et al., 2024), which has E = 2, SiLU and no skip connection:

    o_t = W_o (silu((h * (W_i u + b_i) + c)_t) (W u_t + b)) + b_o

Official code: HazyResearch/zoology, ``mixers/base_conv.py``; with ``expand``, HazyResearch/based,
``models/mixers/base_conv.py``. State: the last W - 1 inputs of the convolution, (W - 1) * max(E, 1) * D. With a long
filter it is the history, min(T, max_position_embeddings - 1) * max(E, 1) * D; that filter exists for
``max_position_embeddings`` tokens, and a longer sequence raises. Initial values: filter MLP uniform in
+-1 / sqrt(fan in), omega = ``filter_frequency``.

Deviations: the long filter is that of the first release of the official code; later ones have one hidden layer with
ReLU, a bias in the last layer and no window. The official model overwrites the initial values of the filter MLP with
normal ones, and decays its weights. The released Based layer has no c where it runs without its CUDA kernel.
"""

from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._filter_mlp import filter_mlp, reset_filter_mlp, validate_filter
from hf_memory.models.configuration import MemoryConfig, later_field
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import ShortConvolution, State, join_state, mark_residual_output, split_state
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.implicit_filter import implicit_filter
from hf_memory.ops.long_convolution import count_tokens, long_convolution


@strict
class MemoryBaseConvConfig(MemoryConfig):
    """Configuration of BaseConv.

    With a long filter, ``max_position_embeddings`` is the length that it is built for, and so a part of the trained
    function: another length is another filter, and one far above that of the rows starts almost flat. Set it to the
    longest sequence that the model is to be trained or evaluated on.

    Attributes:
        conv_kernel: Width W of the filter; 0 for one of ``max_position_embeddings`` taps.
        skip: Add the input to the output.
        filter_size: Width of the MLP of a long filter.
        filter_layers: Its hidden layers after the first.
        filter_features: Features of a position, odd and at least 3: time, and as many cosines as sines.
        filter_frequency: Initial frequency omega of its sine activations.
        expand: Channels of convolution and gate over ``hidden_size``, with a linear map before the convolution and one
            after the product; 0 for neither map.
        conv_activation: Activation after the convolution.
    """

    model_type: ClassVar[str] = "memory_base_conv"

    conv_kernel: int = 3
    skip: bool = True
    filter_size: int = 16
    filter_layers: int = 2
    filter_features: int = 3
    filter_frequency: float = 1.0
    expand: int = later_field(0)
    conv_activation: Literal["none", "silu"] = later_field("none")

    def validate_base_conv(self) -> None:
        """Check kernel, width and filter."""
        for name in ("conv_kernel", "expand"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        validate_filter(self.filter_size, self.filter_layers, self.filter_features)

    @property
    def limited_length(self) -> bool:
        """See :class:`MemoryConfig`: a long filter is built for a length."""
        return self.conv_kernel == 0 or self.position_embedding == "learned"


class BaseConvMixer(Mixer):
    """A gated convolution."""

    def __init__(self, config: MemoryBaseConvConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.width, size = max(config.expand, 1) * config.hidden_size, config.filter_size
        self.in_proj = nn.Linear(config.hidden_size, self.width) if config.expand else None
        self.gate_proj = nn.Linear(config.hidden_size, self.width)
        self.out_proj = mark_residual_output(nn.Linear(self.width, config.hidden_size)) if config.expand else None
        self.activation = None if config.conv_activation == "none" else config.conv_activation
        kernel = config.conv_kernel
        self.conv = ShortConvolution(self.width, kernel, self.activation) if kernel else None
        self.growing_state = self.limited_length = self.conv is None
        if self.conv is not None:
            return
        self.float32_tolerance = 1e-4
        self.filter_mlp = filter_mlp(config.filter_features, size, config.filter_layers, self.width)
        self.filter_frequency = nn.Parameter(torch.empty(size, dtype=torch.float32))
        self.fp32_modules, self.fp32_parameters = ("filter_mlp",), ("filter_frequency",)
        self.no_decay_parameters = tuple(f"filter_mlp.{name}" for name, _ in self.filter_mlp.named_parameters())

    def reset_parameters(self) -> None:
        """The laws of a long filter, named in the module's docstring."""
        if self.conv is None:
            reset_filter_mlp(self.filter_mlp)
            init.constant_(self.filter_frequency, self.config.filter_frequency)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, or an empty history."""
        if self.conv is not None:
            return join_state({"conv": self.conv.initial_state(batch_size)})
        return {
            "history": self.state_tensor(batch_size, 0, self.width),
            "num_tokens": self.state_tensor(batch_size, dtype=torch.int64),
        }

    def state_size(self, length: int | None = None) -> int:
        """Numbers held after ``length`` tokens. Raises a ``ValueError`` for a long filter without a length."""
        if self.conv is not None:
            return self.conv.state_size()
        if length is None:
            raise ValueError("length: the state of BaseConv with a long filter grows, so its size needs a length")
        return min(length, self.config.max_position_embeddings - 1) * self.width

    def reset_state(self, state: State, mask: torch.Tensor) -> State:
        """Zeros in the rows where ``mask`` (B,) is True: what was never there adds nothing."""
        return {name: leaf.masked_fill(mask.view(-1, *[1] * (leaf.dim() - 1)), 0) for name, leaf in state.items()}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`. A long filter raises past ``max_position_embeddings``."""
        inputs = hidden_states if self.in_proj is None else self.in_proj(hidden_states)
        if self.conv is not None:
            convolved, conv = self.conv(inputs, split_state(state, "conv"), lengths, None, return_state)
            new = join_state({"conv": conv})
        else:
            convolved, new = self._convolve(inputs, state, lengths, return_state)
        output = convolved * self.gate_proj(hidden_states)
        output = output if self.out_proj is None else self.out_proj(output)
        return output + hidden_states if self.config.skip else output, new if return_state else None

    def _convolve(self, inputs, state, lengths, return_state):
        """The convolution with a long filter, and the new history."""
        state = state or self.initial_state(inputs.shape[0])
        time, num_past, longest = inputs.shape[1], state["history"].shape[1], self.config.max_position_embeddings
        counts = count_tokens(state["num_tokens"], num_past, time, lengths, longest, "max_position_embeddings")
        num_taps, features = min(num_past + time, longest), self.config.filter_features
        kernel = implicit_filter(num_taps, longest, features, self.filter_mlp, self.filter_frequency)
        output, history = long_convolution(inputs, kernel, state["history"], lengths, return_state, longest - 1)
        output = output + inputs
        return F.silu(output) if self.activation else output, {"history": history, "num_tokens": counts}

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
