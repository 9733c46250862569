"""The simple recurrent net (Elman, 1990).

    h_t = phi(W x_t + b + U h_{t-1} + b')

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
from torch import Tensor
from transformers import initialization as init

from hf_memory.mixers._cells import CellMixer, check_cell_size
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State
from hf_memory.models.modeling import MemoryModel
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
        check_cell_size(self)


class RNNMixer(CellMixer):
    """A simple recurrent net."""

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(size), or a recurrent weight that keeps the norm of the state and no biases."""
        if self.config.recurrent_init == "uniform":
            super().reset_parameters()
            return
        bound = self.size**-0.5
        init.uniform_(self.weight_ih, -bound, bound)
        draw = init.orthogonal_ if self.config.recurrent_init == "orthogonal" else init.eye_
        draw(self.weight_hh)
        init.zeros_(self.bias_ih)
        init.zeros_(self.bias_hh)

    def run(self, hidden_states: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """One layer of the net."""
        start = None if state is None else state["hidden"]
        nonlinearity = self.config.nonlinearity
        output, hidden = elman(hidden_states, *self.weights, start, lengths, nonlinearity=nonlinearity)
        return output, {"hidden": hidden}

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of h, by its formula."""
        return elman_spectrum(hidden_states, *self.weights, nonlinearity=self.config.nonlinearity)


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
