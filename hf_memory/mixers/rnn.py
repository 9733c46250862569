"""The simple recurrent net (Elman, 1990): h_t = phi(W x_t + b + U h_{t-1} + b').

Symbols: x_t is the input, h_t the output and the state, phi is tanh or ReLU; weights have the layout and the two biases
of ``torch.nn.RNN``. The output is h_t, through a projection where ``cell_size`` is not ``hidden_size``.

State: ``hidden`` h, ``cell_size`` numbers. Initial values are those of torch, uniform in +-1/sqrt(``cell_size``). For
long memory ``recurrent_init`` starts U as an orthogonal matrix or as the identity (Le et al., 2015, with ReLU), and
then the biases at 0.

Deviations: none.
"""

from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.elman import elman, elman_spectrum


@strict
class MemoryRNNConfig(MemoryConfig):
    """Configuration of the simple recurrent net.

    Attributes:
        cell_size: Width of the cell; 0 for ``hidden_size``. Another width adds an output projection.
        nonlinearity: phi.
        recurrent_init: Initial law of the recurrent weight.
    """

    model_type: ClassVar[str] = "memory_rnn"

    cell_size: int = 0
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    recurrent_init: Literal["uniform", "orthogonal", "identity"] = "uniform"

    def validate_rnn(self) -> None:
        """Check the width of the cell."""
        if self.cell_size < 0:
            raise ValueError(f"cell_size must be at least 1, or 0 for hidden_size, got {self.cell_size}")


class RNNMixer(Mixer):
    """A simple recurrent net."""

    def __init__(self, config: MemoryRNNConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.cell_size or config.hidden_size
        self.size = size
        self.weight_ih = nn.Parameter(torch.empty(size, width))
        self.weight_hh = nn.Parameter(torch.empty(size, size))
        self.bias_ih = nn.Parameter(torch.empty(size))
        self.bias_hh = nn.Parameter(torch.empty(size))
        self.out_proj = mark_residual_output(nn.Linear(size, width)) if size != width else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(size), or a recurrent weight that keeps the norm of the state and no biases."""
        bound = self.size**-0.5
        init.uniform_(self.weight_ih, -bound, bound)
        if self.config.recurrent_init == "uniform":
            for tensor in (self.weight_hh, self.bias_ih, self.bias_hh):
                init.uniform_(tensor, -bound, bound)
            return
        draw = init.orthogonal_ if self.config.recurrent_init == "orthogonal" else init.eye_
        draw(self.weight_hh)
        init.zeros_(self.bias_ih)
        init.zeros_(self.bias_hh)

    def initial_state(self, batch_size: int) -> State:
        """Zeros."""
        return {"hidden": self.state_tensor(batch_size, self.size)}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        start = None if state is None else state["hidden"]
        nonlinearity = self.config.nonlinearity
        output, hidden = elman(hidden_states, *self._weights(), start, lengths, nonlinearity=nonlinearity)
        if self.out_proj is not None:
            output = self.out_proj(output)
        return output, {"hidden": hidden} if return_state else None

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of h, by its formula."""
        return elman_spectrum(hidden_states, *self._weights(), nonlinearity=self.config.nonlinearity)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


class MemoryRNNModel(MemoryModel):
    """Base model with the simple recurrent net."""

    config_class = MemoryRNNConfig
    mixer_class = RNNMixer


class MemoryRNNForCausalLM(MemoryForCausalLM):
    """The simple recurrent net with a language model head."""

    config_class = MemoryRNNConfig
    model_class = MemoryRNNModel


class MemoryRNNForTokenClassification(MemoryForTokenClassification):
    """The simple recurrent net with a head per position."""

    config_class = MemoryRNNConfig
    model_class = MemoryRNNModel
