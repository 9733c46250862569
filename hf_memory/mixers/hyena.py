"""Hyena: long convolutions with implicit filters between gates (Poli et al., 2023, definition 3.1 and section 3.3).

    x^1 ... x^O, z^1 = short_conv(W u + b)
    z^{i+1} = h^i * (x^i z^i) + b^i (x^i z^i)   for i = 1 ... O - 1,        y = W_o (x^O z^O)

Symbols: O = ``order``; * is a causal convolution over all tokens so far; the filters h^i are the output of a small MLP
with sine activations on the position, under an exponential window (see :mod:`hf_memory.ops.implicit_filter`).

Official code: HazyResearch/safari, ``standalone_hyena.py``. State: there is none of fixed size. It is the history of
x^i z^i, min(T, max_position_embeddings - 1) * D numbers for each of O - 1 convolutions, and the last inputs of the
short convolution, (W - 1) * (O + 1) * D. A filter exists for ``max_position_embeddings`` tokens, and a longer sequence
raises. Initial values: b^i normal; filter MLP uniform in +-1 / sqrt(fan in), omega = ``filter_frequency``.

Deviations: features of the position are fixed (the official code trains them at a rate of 1e-5); one head.
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
from hf_memory.models.layers import ShortConvolution, State, join_state, mark_residual_output, split_state
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.implicit_filter import implicit_filter
from hf_memory.ops.long_convolution import count_tokens, long_convolution


@strict
class MemoryHyenaConfig(MemoryConfig):
    """Configuration of Hyena.

    Attributes:
        order: Number O of gates; O - 1 long convolutions.
        conv_kernel: Width W of the short convolution on all projections.
        filter_size: Width of the filter MLP.
        filter_layers: Hidden layers of the filter MLP after the first.
        filter_features: Features of a position, odd and at least 3: time, and as many cosines as sines.
        filter_frequency: Initial frequency omega of the sine activations. Poli et al. use 5 features and 10 for recall,
            33 and 14 for text; Arora et al. (2023) 3 and 1.
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
        for name, least in (("order", 2), ("conv_kernel", 1), ("filter_size", 1), ("filter_layers", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.filter_features < 3 or self.filter_features % 2 == 0:
            raise ValueError(f"filter_features must be odd and at least 3, got {self.filter_features}")


class HyenaMixer(Mixer):
    """Long convolutions with implicit filters between gates."""

    growing_state = True
    limited_length = True
    float32_tolerance = 1e-4
    no_decay_parameters = ("filter_bias",)

    def __init__(self, config: MemoryHyenaConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.filter_size
        self.in_proj = nn.Linear(width, (config.order + 1) * width)
        self.conv = ShortConvolution((config.order + 1) * width, config.conv_kernel)
        self.filter_mlp = nn.ModuleList(
            [
                nn.Linear(config.filter_features, size),
                *(nn.Linear(size, size) for _ in range(config.filter_layers)),
                nn.Linear(size, (config.order - 1) * width, bias=False),
            ]
        )
        self.filter_frequency = nn.Parameter(torch.empty(size))
        self.filter_bias = nn.Parameter(torch.empty(config.order - 1, width))
        self.out_proj = mark_residual_output(nn.Linear(width, width))
        self.slow_parameters = (
            "filter_frequency",
            *(f"filter_mlp.{name}" for name, _ in self.filter_mlp.named_parameters()),
        )

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        for linear in self.filter_mlp:
            bound = 1 / math.sqrt(linear.in_features)
            init.uniform_(linear.weight, -bound, bound)
            if linear.bias is not None:
                init.uniform_(linear.bias, -bound, bound)
        init.constant_(self.filter_frequency, self.config.filter_frequency)
        init.normal_(self.filter_bias)

    def initial_state(self, batch_size: int) -> State:
        """Empty histories."""
        return {
            **join_state({"conv": self.conv.initial_state(batch_size)}),
            **{f"history_{i}": self.state_tensor(batch_size, 0, self.config.hidden_size) for i in range(self._convs)},
            "num_tokens": self.state_tensor(batch_size, dtype=torch.int64),
        }

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
        state = state or self.initial_state(batch)
        num_past, longest = state["history_0"].shape[1], self.config.max_position_embeddings
        counts = count_tokens(state["num_tokens"], num_past, time, lengths, longest, "max_position_embeddings")
        projected, conv = self.conv(
            self.in_proj(hidden_states), split_state(state, "conv"), lengths, None, return_state
        )
        *gates, z = projected.chunk(self.config.order + 1, dim=-1)
        new = join_state({"conv": conv})
        for i, kernel in enumerate(self._filters(min(num_past + time, longest)).chunk(self._convs)):
            name = f"history_{i}"
            z, new[name] = long_convolution(gates[i] * z, kernel, state[name], lengths, return_state, longest - 1)
        output = self.out_proj(gates[-1] * z)
        return output, {**new, "num_tokens": counts} if return_state else None

    @property
    def _convs(self) -> int:
        return self.config.order - 1

    def _filters(self, num_taps: int) -> torch.Tensor:
        """The first taps of all filters ((O - 1) * D, W), with the biases in the first one."""
        weights = [linear.weight for linear in self.filter_mlp]
        biases = [linear.bias for linear in self.filter_mlp[:-1]]
        taps = implicit_filter(num_taps, self.config.max_position_embeddings, weights, biases, self.filter_frequency)
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
