"""The non-saturating recurrent unit (Chandar et al., 2019), after its published code.

    h_t = relu(norm(W x_t + b + U [h_{t-1}, m_{t-1}])),   y_t = h_t
    m_t = m_{t-1} + reduce_i (alpha_i v^a_i - beta_i v^b_i)

Symbols: gains alpha, beta (k heads) and directions are linear in [h_t, m_{t-1}]; v_i are the k rows of M numbers of an
outer product of two vectors of side sqrt(k M), each divided by its 5-norm; see :mod:`hf_memory.ops.nru`. The memory has
M = k * ceil(sqrt(hidden_size / k))^2 numbers unless given, at least ``hidden_size``; k M must be a square.

Official code: apsarath/NRU. State: ``hidden`` h and ``memory`` m, ``hidden_size`` + M numbers, both unbounded. Initial
values are those of linear layers in torch, uniform in +-1/sqrt(inputs), where h_t has the inputs x, h and m.

Horizon: nothing bounds the state. Gains grow with it, and so it grows exponentially: with the initial weights and
inputs of unit variance, at width 64, it passes 2^23 after 300 to 600 tokens, from where float32 rounds away what an
input of size one adds, and leaves float32 after 1,800 tokens or more (1,100 with ``layer_norm``), from where outputs
are infinite or no numbers. :meth:`NRUMixer.unresolved_rows` tells. Training can move the horizon either way.

Deviations: the paper sums over the heads, its code takes the mean, which is the default here; a 5-norm counts as at
least 1e-6, where the code allows 1e-12 and gradients grow as its inverse. Gradients need clipping (the authors clip at
1 to 5).
"""

import math
from typing import Any, ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.nru import nru, nru_spectrum


@strict
class MemoryNRUConfig(MemoryConfig):
    """Configuration of the non-saturating recurrent unit.

    Attributes:
        num_memory_heads: Writing heads, and as many erasing ones: k.
        memory_size: Numbers M of the memory, k * M a square; 0 for k * ceil(sqrt(hidden_size / k))^2.
        reduce: How the heads are joined.
        layer_norm: Layer norm before the ReLU of h.
        relu_gains: Pass the gains through a ReLU.
        relu_directions: Pass the directions through a ReLU.
    """

    model_type: ClassVar[str] = "memory_nru"

    num_memory_heads: int = 4
    memory_size: int = 0
    reduce: Literal["mean", "sum"] = "mean"
    layer_norm: bool = False
    relu_gains: bool = False
    relu_directions: bool = False

    def validate_memory(self) -> None:
        """Check that the directions can be an outer product."""
        if self.num_memory_heads < 1:
            raise ValueError(f"num_memory_heads must be at least 1, got {self.num_memory_heads}")
        if self.memory_size < 0:
            raise ValueError(f"memory_size must be at least 1, or 0 for the default, got {self.memory_size}")
        numbers = self.num_memory_heads * self.memory_size
        if math.isqrt(numbers) ** 2 != numbers:
            raise ValueError(
                f"memory_size times num_memory_heads must be a square, got {self.memory_size} * "
                f"{self.num_memory_heads}; with {self.num_memory_heads} heads {self.default_memory_size()} would do"
            )

    def default_memory_size(self) -> int:
        """k * ceil(sqrt(hidden_size / k))^2."""
        heads = self.num_memory_heads
        root = math.isqrt(-(-self.hidden_size // heads) - 1) + 1  # the ceiling, in integers
        return heads * root**2


class NRUMixer(Mixer):
    """A non-saturating recurrent unit."""

    no_decay_parameters = ("norm_weight", "norm_bias")

    def __init__(self, config: MemoryNRUConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, heads = config.hidden_size, config.num_memory_heads
        memory = config.memory_size or config.default_memory_size()
        gates = 2 * heads + 4 * math.isqrt(heads * memory)
        self.sizes = {"hidden": width, "memory": memory}
        self.weight_ih = nn.Parameter(torch.empty(width, width))
        self.bias_ih = nn.Parameter(torch.empty(width))
        self.weight_hh = nn.Parameter(torch.empty(width, width + memory))
        self.weight_memory = nn.Parameter(torch.empty(gates, width + memory))
        self.bias_memory = nn.Parameter(torch.empty(gates))
        self.norm_weight = nn.Parameter(torch.empty(width)) if config.layer_norm else None
        self.norm_bias = nn.Parameter(torch.empty(width)) if config.layer_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(inputs); the layer norm starts as the identity."""
        both = self.weight_hh.shape[1]
        for inputs, tensors in (
            (both + self.weight_ih.shape[1], (self.weight_ih, self.bias_ih, self.weight_hh)),
            (both, (self.weight_memory, self.bias_memory)),
        ):
            for tensor in tensors:
                init.uniform_(tensor, -(inputs**-0.5), inputs**-0.5)
        if self.norm_weight is not None:
            init.ones_(self.norm_weight)
            init.zeros_(self.norm_bias)

    def initial_state(self, batch_size: int) -> State:
        """Zeros for hidden state and memory."""
        return {name: self.state_tensor(batch_size, size) for name, size in self.sizes.items()}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        start = None if state is None else (state["hidden"], state["memory"])
        output, (hidden, memory) = nru(
            hidden_states, *self._weights(), initial_state=start, lengths=lengths, **self._options()
        )
        return output, {"hidden": hidden, "memory": memory} if return_state else None

    @staticmethod
    def unresolved_rows(state: State) -> Tensor:
        """Rows (B,) whose results mean nothing any more: their state is so large that it rounds away an input.

        True where a number of the state is above 1 / eps of its dtype, 2^23 in float32, or is none.
        """
        within = [(leaf.abs() <= 1 / torch.finfo(leaf.dtype).eps).all(-1) for leaf in state.values()]
        return ~torch.stack(within).all(0)

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of (h, m), by automatic differentiation."""
        return nru_spectrum(hidden_states, *self._weights(), **self._options())

    def _weights(self) -> tuple[Tensor | None, ...]:
        return (
            self.weight_ih,
            self.bias_ih,
            self.weight_hh,
            self.weight_memory,
            self.bias_memory,
            self.norm_weight,
            self.norm_bias,
        )

    def _options(self) -> dict[str, Any]:
        config = self.config
        return {
            "num_heads": config.num_memory_heads,
            "reduce": config.reduce,
            "relu_gains": config.relu_gains,
            "relu_directions": config.relu_directions,
        }


class MemoryNRUModel(MemoryModel):
    """Base model with the non-saturating recurrent unit."""

    config_class = MemoryNRUConfig
    mixer_class = NRUMixer


class MemoryNRUForCausalLM(MemoryForCausalLM):
    """The non-saturating recurrent unit with a language model head."""

    config_class = MemoryNRUConfig
    model_class = MemoryNRUModel


class MemoryNRUForTokenClassification(MemoryForTokenClassification):
    """The non-saturating recurrent unit with a head per position."""

    config_class = MemoryNRUConfig
    model_class = MemoryNRUModel
