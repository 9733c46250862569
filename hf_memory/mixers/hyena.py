"""Hyena: long convolutions with implicit filters between gates (Poli et al., 2023, sections 3.1 and 3.3).

    x^1 ... x^O, z^1 = short_conv(W u + b)
    z^{i+1} = h^i * (x^i z^i) + b^i (x^i z^i)   for i = 1 ... O - 1,        y = W_o (x^O z^O)

Symbols: O = ``order``; * is a causal convolution over all tokens so far; the filters h^i are the output of a small MLP
with sine activations on the position, under an exponential window (see :mod:`hf_memory.ops.implicit_filter`).

The operator is that of the official code: O - 1 convolutions, with a gate before each and one after the last.
Definition 3.1 of the paper has O convolutions, with a gate after each and none before the first.

Official code: HazyResearch/safari, ``standalone_hyena.py``. State: there is none of fixed size. It is the history of
x^i z^i, min(T, max_position_embeddings - 1) * D numbers for each of O - 1 convolutions, and the last inputs of the
short convolution, (W - 1) * (O + 1) * D. A filter exists for ``max_position_embeddings`` tokens, and a longer sequence
raises. Initial values: b^i normal; filter MLP uniform in +-1 / sqrt(fan in), omega = ``filter_frequency``.

Deviations: features of the position are fixed (the official code trains them at a rate of 1e-5); one head.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._filter_mlp import filter_mlp, reset_filter_mlp, validate_filter
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import ShortConvolution, State, join_state, mark_residual_output, split_state
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.implicit_filter import implicit_filter
from hf_memory.ops.long_convolution import count_tokens, long_convolution


@strict
class MemoryHyenaConfig(MemoryConfig):
    """Configuration of Hyena.

    ``max_position_embeddings`` is the length that the filters are built for, and so a part of the trained function:
    another length is another filter, and one far above that of the rows starts almost flat. Set it to the longest
    sequence that the model is to be trained or evaluated on.

    Attributes:
        order: Number O of gates; O - 1 long convolutions.
        conv_kernel: Width W of the short convolution on all projections.
        filter_size: Width of the filter MLP.
        filter_layers: Hidden layers of the filter MLP after the first.
        filter_features: Features of a position, odd and at least 3: time, and as many cosines as sines.
        filter_frequency: Initial frequency omega of the sine activations. Poli et al. use 5 features and 10 for recall,
            33 and 14 for text. For MQAR, Arora et al. (2023) use 3 and 1.
    """

    model_type: ClassVar[str] = "memory_hyena"

    order: int = 2
    conv_kernel: int = 3
    filter_size: int = 64
    filter_layers: int = 2
    filter_features: int = 5
    filter_frequency: float = 10.0

    def validate_hyena(self) -> None:
        """Check order, kernel and filter."""
        for name, least in (("order", 2), ("conv_kernel", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        validate_filter(self.filter_size, self.filter_layers, self.filter_features)

    @property
    def limited_length(self) -> bool:
        """See :class:`MemoryConfig`: the filters are built for a length."""
        return True


class HyenaMixer(Mixer):
    """Long convolutions with implicit filters between gates."""

    growing_state = True
    limited_length = True
    float32_tolerance = 1e-4
    nan_reaches_back = True
    fp32_parameters = ("filter_frequency",)
    fp32_modules = ("filter_mlp",)
    no_decay_parameters = ("filter_bias",)

    def __init__(self, config: MemoryHyenaConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.filter_size
        self.in_proj = nn.Linear(width, (config.order + 1) * width)
        self.conv = ShortConvolution((config.order + 1) * width, config.conv_kernel)
        self.filter_mlp = filter_mlp(config.filter_features, size, config.filter_layers, self._convs * width)
        self.filter_frequency = nn.Parameter(torch.empty(size, dtype=torch.float32))
        self.filter_bias = nn.Parameter(torch.empty(config.order - 1, width))
        self.out_proj = mark_residual_output(nn.Linear(width, width))
        self.slow_parameters = (
            "filter_frequency",
            *(f"filter_mlp.{name}" for name, _ in self.filter_mlp.named_parameters()),
        )

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        reset_filter_mlp(self.filter_mlp)
        init.constant_(self.filter_frequency, self.config.filter_frequency)
        init.normal_(self.filter_bias)

    def initial_state(self, batch_size: int) -> State:
        """Empty histories."""
        return {**join_state({"conv": self.conv.initial_state(batch_size)}), **self._histories(batch_size)}

    def state_size(self, length: int | None = None) -> int:
        """Numbers held after ``length`` tokens. Raises a ``ValueError`` without a length."""
        if length is None:
            raise ValueError("length: the state of Hyena grows, so its size needs a length")
        columns = min(length, self.config.max_position_embeddings - 1)
        return self._convs * columns * self.config.hidden_size + self.conv.state_size()

    def reset_state(self, state: State, mask: torch.Tensor) -> State:
        """Zeros in the rows where ``mask`` (B,) is True: what was never there adds nothing."""
        return {name: leaf.masked_fill(mask.view(-1, *[1] * (leaf.dim() - 1)), 0) for name, leaf in state.items()}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`. A ``ValueError`` past ``max_position_embeddings``."""
        batch, time, _ = hidden_states.shape
        past = state or self._histories(batch)
        num_past, longest = past["history_0"].shape[1], self.config.max_position_embeddings
        counts = count_tokens(past["num_tokens"], num_past, time, lengths, longest, "max_position_embeddings")
        projected, conv = self.conv(
            self.in_proj(hidden_states), split_state(state, "conv"), lengths, None, return_state
        )
        *gates, z = projected.chunk(self.config.order + 1, dim=-1)
        new = join_state({"conv": conv})
        for i, kernel in enumerate(self._filters(min(num_past + time, longest)).chunk(self._convs)):
            name = f"history_{i}"
            z, new[name] = long_convolution(gates[i] * z, kernel, past[name], lengths, return_state, longest - 1)
        output = self.out_proj(gates[-1] * z)
        return output, {**new, "num_tokens": counts} if return_state else None

    @property
    def _convs(self) -> int:
        return self.config.order - 1

    def _histories(self, batch_size: int) -> State:
        """What the long convolutions remember before the first token; the short one knows its own beginning."""
        return {
            **{f"history_{i}": self.state_tensor(batch_size, 0, self.config.hidden_size) for i in range(self._convs)},
            "num_tokens": self.state_tensor(batch_size, dtype=torch.int64),
        }

    def _filters(self, num_taps: int) -> torch.Tensor:
        """The first taps of all filters ((O - 1) * D, W), with the biases in the first one."""
        longest, features = self.config.max_position_embeddings, self.config.filter_features
        taps = implicit_filter(num_taps, longest, features, self.filter_mlp, self.filter_frequency)
        return taps + F.pad(self.filter_bias.to(taps.dtype).view(-1, 1), (0, num_taps - 1))


class MemoryHyenaModel(MemoryModel):
    """Base model with Hyena."""

    config_class = MemoryHyenaConfig
    mixer_class = HyenaMixer


class MemoryHyenaForCausalLM(MemoryForCausalLM):
    """Hyena with a language model head."""

    config_class = MemoryHyenaConfig
    model_class = MemoryHyenaModel


class MemoryHyenaForTokenClassification(MemoryForTokenClassification):
    """Hyena with a head per position."""

    config_class = MemoryHyenaConfig
    model_class = MemoryHyenaModel
