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
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
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
        if self.cell_size < 0:
            raise ValueError(f"cell_size must be at least 1, or 0 for hidden_size, got {self.cell_size}")


class LSTMMixer(Mixer):
    """A long short-term memory on torch's own kernels."""

    def __init__(self, config: MemoryLSTMConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.cell_size or config.hidden_size
        self.size = size
        self.weight_ih = nn.Parameter(torch.empty(4 * size, width))
        self.weight_hh = nn.Parameter(torch.empty(4 * size, size))
        self.bias_ih = nn.Parameter(torch.empty(4 * size))
        self.bias_hh = nn.Parameter(torch.empty(4 * size))
        self.out_proj = mark_residual_output(nn.Linear(size, width)) if size != width else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(size); the forget gate starts with the bias of the config."""
        bound = self.size**-0.5
        for weight in (self.weight_ih, self.weight_hh):
            init.uniform_(weight, -bound, bound)
        for bias, forget in ((self.bias_ih, self.config.forget_bias), (self.bias_hh, 0.0)):
            drawn = torch.empty_like(bias).uniform_(-bound, bound)
            if self.config.forget_bias is not None:
                drawn[self.size : 2 * self.size] = forget
            init.copy_(bias, drawn)

    def initial_state(self, batch_size: int) -> State:
        """Zeros for outputs and cells."""
        return {name: self.state_tensor(batch_size, self.size) for name in ("hidden", "cell")}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        start = None if state is None else (state["hidden"], state["cell"])
        # Without a state to return, padding may run on: outputs before it are the same.
        output, (hidden, cell) = lstm(hidden_states, *self._weights(), start, lengths if return_state else None)
        if self.out_proj is not None:
            output = self.out_proj(output)
        return output, {"hidden": hidden, "cell": cell} if return_state else None

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of (h, c), by its formula."""
        return lstm_spectrum(hidden_states, *self._weights())

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


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
