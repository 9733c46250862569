"""Quasi-LSTM: an LSTM whose gates see the input only, so that its cell is a linear recurrence.

    f_t = sigmoid(W_f x_t + b_f + 1),    i_t = sigmoid(W_i x_t + b_i),    z_t = tanh(W_z x_t + b_z)
    c_t = f_t * c_{t-1} + i_t * z_t
    y_t = W_y (sigmoid(W_o x_t + b_o) * tanh(c_t)) + b_y

Source: Stanic et al. (2023), "The Languini Kitchen", the quasi-LSTM of their recurrent baseline, after Bradbury et al.
(2017), "Quasi-recurrent neural networks", equation 5. Official code: languini-kitchen. State: the cell c, N numbers.

Initial values: weights N(0, initializer_range), biases 0; the 1 in the forget gate is a constant and not a bias.
Deviations: the official code splits the cell into heads, which do not interact and are one cell here; it works in
blocks with 1e-8 inside of a logarithm and at one fixed length, where the scan here is exact at any length. b_y, which
it has, is left out unless ``output_bias``.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from hf_memory.mixers._cells import check_cell_size
from hf_memory.models.configuration import MemoryConfig, later_field
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.diagonal_scan import diagonal_scan


@strict
class MemoryQLSTMConfig(MemoryConfig):
    """Configuration of the quasi-LSTM.

    Attributes:
        cell_size: Width N of the cell; 0 for ``hidden_size``.
        forget_bias: Constant added inside of the forget gate.
        output_bias: Bias b_y of the output map, as in the official code; it starts at 0.
    """

    model_type: ClassVar[str] = "memory_qlstm"

    cell_size: int = 0
    forget_bias: float = 1.0
    output_bias: bool = later_field(False)

    def validate_qlstm(self) -> None:
        """Check the width of the cell."""
        check_cell_size(self)


class QLSTMMixer(Mixer):
    """Gates from the input, a linear cell, and an output map."""

    def __init__(self, config: MemoryQLSTMConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.cell_size = config.cell_size or config.hidden_size
        self.in_proj = nn.Linear(config.hidden_size, 4 * self.cell_size)
        self.out_proj = mark_residual_output(nn.Linear(self.cell_size, config.hidden_size, bias=config.output_bias))

    def initial_state(self, batch_size: int) -> State:
        """An empty cell."""
        return {"cell": self.state_tensor(batch_size, self.cell_size)}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        forget, write, value, output = self.in_proj(hidden_states).chunk(4, dim=-1)
        start = None if state is None else state["cell"]
        written = write.sigmoid() * value.tanh()
        cells, final = diagonal_scan(self._forget_gate(forget), written, start, lengths, forget_gate=True)
        hidden = self.out_proj(output.sigmoid() * cells.tanh())
        return hidden, {"cell": final} if return_state else None

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of the forget gates: the cell's transition is diagonal."""
        forget = self._forget_gate(self.in_proj(hidden_states)[..., : self.cell_size])
        return torch.stack((forget.amin(-1), forget.amax(-1)), dim=-1)

    def _forget_gate(self, inputs: Tensor) -> Tensor:
        """The gate in at least float32: in bfloat16 a gate near one would forget nothing at all."""
        inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        return torch.sigmoid(inputs + self.config.forget_bias)


class MemoryQLSTMModel(MemoryModel):
    """Base model with the quasi-LSTM."""

    config_class = MemoryQLSTMConfig
    mixer_class = QLSTMMixer


class MemoryQLSTMForCausalLM(MemoryForCausalLM):
    """The quasi-LSTM with a language model head."""

    config_class = MemoryQLSTMConfig
    model_class = MemoryQLSTMModel


class MemoryQLSTMForTokenClassification(MemoryForTokenClassification):
    """The quasi-LSTM with a head per position."""

    config_class = MemoryQLSTMConfig
    model_class = MemoryQLSTMModel
