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
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
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
        if self.cell_size < 0:
            raise ValueError(f"cell_size must be at least 1, or 0 for hidden_size, got {self.cell_size}")


class GRUMixer(Mixer):
    """A gated recurrent unit."""

    def __init__(self, config: MemoryGRUConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.cell_size or config.hidden_size
        self.size = size
        self.weight_ih = nn.Parameter(torch.empty(3 * size, width))
        self.weight_hh = nn.Parameter(torch.empty(3 * size, size))
        self.bias_ih = nn.Parameter(torch.empty(3 * size))
        self.bias_hh = nn.Parameter(torch.empty(3 * size))
        self.out_proj = mark_residual_output(nn.Linear(size, width)) if size != width else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(size); the update gate starts with the bias of the config."""
        bound = self.size**-0.5
        for weight in (self.weight_ih, self.weight_hh):
            init.uniform_(weight, -bound, bound)
        for bias, update in ((self.bias_ih, self.config.update_bias), (self.bias_hh, 0.0)):
            drawn = torch.empty_like(bias).uniform_(-bound, bound)
            if self.config.update_bias is not None:
                drawn[self.size : 2 * self.size] = update
            init.copy_(bias, drawn)

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
        output, hidden = gru(hidden_states, *self._weights(), start, lengths)
        if self.out_proj is not None:
            output = self.out_proj(output)
        return output, {"hidden": hidden} if return_state else None

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of the Jacobian of h, by its formula."""
        return gru_spectrum(hidden_states, *self._weights())

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


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
