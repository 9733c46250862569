"""The long short-term memory (Hochreiter and Schmidhuber, 1997), with the forget gate of Gers et al. (2000).

    i, f, o = sigmoid(W x_t + b + U h_{t-1} + b'),   g = tanh(W_g x_t + b_g + U_g h_{t-1} + b'_g)
    c_t = f * c_{t-1} + i * g,   h_t = o * tanh(c_t)

Symbols: x_t is the input, h_t the output and c_t the cell; weights stack the blocks i, f, g, o and have the layout and
the two biases of ``torch.nn.LSTM``. The output is h_t, through a projection where ``cell_size`` is not ``hidden_size``.

State: ``hidden`` h and ``cell`` c, 2 * ``cell_size`` numbers. Initial values are uniform in +-1/sqrt(``cell_size``),
but for the forget gate: its two biases sum to ``forget_bias`` (Jozefowicz et al., 2015, recommend 1).

Deviations: none but the forget bias, which torch draws as the others.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor

from hf_memory.mixers._cells import CellMixer, check_cell_size
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.lstm import lstm, lstm_spectrum


@strict
class MemoryLSTMConfig(MemoryConfig):
    """Configuration of the long short-term memory.

    Attributes:
        cell_size: Width of the cell; 0 for ``hidden_size``. Another width adds an output projection.
        forget_bias: Initial bias of the forget gate; None for the law of the other biases, as in torch.
    """

    model_type: ClassVar[str] = "memory_lstm"

    cell_size: int = 0
    forget_bias: float | None = 1.0

    def validate_lstm(self) -> None:
        """Check the width of the cell."""
        check_cell_size(self)


class LSTMMixer(CellMixer):
    """A long short-term memory on torch's own kernels."""

    num_blocks = 4
    state_names = ("hidden", "cell")

    @property
    def keeping_bias(self) -> float | None:
        """That of the forget gate f."""
        return self.config.forget_bias

    def run(self, hidden_states: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """One layer of cells."""
        start = None if state is None else (state["hidden"], state["cell"])
        output, (hidden, cell) = lstm(hidden_states, *self.weights, start, lengths)
        return output, {"hidden": hidden, "cell": cell}

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of (h, c), by its formula."""
        return lstm_spectrum(hidden_states, *self.weights)


class MemoryLSTMModel(MemoryModel):
    """Base model with the long short-term memory."""

    config_class = MemoryLSTMConfig
    mixer_class = LSTMMixer


class MemoryLSTMForCausalLM(MemoryForCausalLM):
    """The long short-term memory with a language model head."""

    config_class = MemoryLSTMConfig
    model_class = MemoryLSTMModel


class MemoryLSTMForTokenClassification(MemoryForTokenClassification):
    """The long short-term memory with a head per position."""

    config_class = MemoryLSTMConfig
    model_class = MemoryLSTMModel
