"""The gated recurrent unit (Cho et al., 2014, equations 5 to 8), in the form of cuDNN and ``torch.nn.GRU``.

    r, z = sigmoid(W x_t + b + U h_{t-1} + b')
    n = tanh(W_n x_t + b_n + r * (U_n h_{t-1} + b'_n)),   h_t = (1 - z) * n + z * h_{t-1}

Symbols: x_t is the input, h_t the output and the state; weights stack the blocks r, z, n and have the layout and the
two biases of ``torch.nn.GRU``. The output is h_t, through a projection where ``cell_size`` is not ``hidden_size``.

State: ``hidden`` h, ``cell_size`` numbers. Initial values are uniform in +-1/sqrt(``cell_size``), but for the update
gate: its two biases sum to ``update_bias``, so that a unit starts by keeping its state, as an LSTM with forget bias 1.

Deviations: the reset gate multiplies U_n h + b'_n and not h, as in torch and unlike the paper; the update bias.
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
from hf_memory.ops.gru import gru, gru_spectrum


@strict
class MemoryGRUConfig(MemoryConfig):
    """Configuration of the gated recurrent unit.

    Attributes:
        cell_size: Width of the cell; 0 for ``hidden_size``. Another width adds an output projection.
        update_bias: Initial bias of the update gate z; None for the law of the other biases, as in torch.
    """

    model_type: ClassVar[str] = "memory_gru"

    cell_size: int = 0
    update_bias: float | None = 1.0

    def validate_gru(self) -> None:
        """Check the width of the cell."""
        check_cell_size(self)


class GRUMixer(CellMixer):
    """A gated recurrent unit."""

    num_blocks = 3

    @property
    def keeping_bias(self) -> float | None:
        """That of the update gate z."""
        return self.config.update_bias

    def run(self, hidden_states: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """One layer of units."""
        output, hidden = gru(hidden_states, *self.weights, None if state is None else state["hidden"], lengths)
        return output, {"hidden": hidden}

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of h, by its formula."""
        return gru_spectrum(hidden_states, *self.weights)


class MemoryGRUModel(MemoryModel):
    """Base model with the gated recurrent unit."""

    config_class = MemoryGRUConfig
    mixer_class = GRUMixer


class MemoryGRUForCausalLM(MemoryForCausalLM):
    """The gated recurrent unit with a language model head."""

    config_class = MemoryGRUConfig
    model_class = MemoryGRUModel


class MemoryGRUForTokenClassification(MemoryForTokenClassification):
    """The gated recurrent unit with a head per position."""

    config_class = MemoryGRUConfig
    model_class = MemoryGRUModel
