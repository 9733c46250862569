"""What the nonlinear recurrent cells share: the weights of torch's own layers, their initial law, the way of a state.

A cell of G blocks (gates and candidates) of N numbers holds an input weight (G N, D), a recurrent weight (G N, N) and
two biases (G N,), with a projection from N to D where the two differ.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.models.modeling import Mixer


def check_cell_size(config: MemoryConfig) -> None:
    """Raise a ``ValueError`` unless the cell has a width, or 0 for that of the stream."""
    if config.cell_size < 0:
        raise ValueError(f"cell_size must be at least 1, or 0 for hidden_size, got {config.cell_size}")


class CellMixer(Mixer):
    """A cell with the weights of ``torch.nn.RNN``, ``GRU`` or ``LSTM``; a subclass says how it runs.

    The config has a field ``cell_size``.
    """

    num_blocks: ClassVar[int] = 1
    """Blocks that are stacked in the weights."""
    state_names: ClassVar[tuple[str, ...]] = ("hidden",)
    """Leaves of the state, each (B, N)."""

    def __init__(self, config: MemoryConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.cell_size or config.hidden_size
        rows = self.num_blocks * size
        self.size = size
        self.weight_ih = nn.Parameter(torch.empty(rows, width))
        self.weight_hh = nn.Parameter(torch.empty(rows, size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))
        self.out_proj = mark_residual_output(nn.Linear(size, width)) if size != width else None
        self.reset_parameters()

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Input weight, recurrent weight, input bias, recurrent bias, as the operations take them."""
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    @property
    def keeping_bias(self) -> float | None:
        """What the two biases of the second block, the gate that keeps the state, sum to; None for the common law."""
        return None

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(N), but for the biases of the gate that keeps the state where they have a law."""
        bound = self.size**-0.5
        for weight in (self.weight_ih, self.weight_hh):
            init.uniform_(weight, -bound, bound)
        for bias, value in ((self.bias_ih, self.keeping_bias), (self.bias_hh, 0.0)):
            drawn = torch.empty_like(bias).uniform_(-bound, bound)
            if self.keeping_bias is not None:
                drawn[self.size : 2 * self.size] = value
            init.copy_(bias, drawn)

    def initial_state(self, batch_size: int) -> State:
        """Zeros."""
        return {name: self.state_tensor(batch_size, self.size) for name in self.state_names}

    def run(self, hidden_states: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Outputs of the cell (B, T, N) and its state at the lengths (B,), from inputs (B, T, D) and a state."""
        raise TypeError(f"{type(self).__name__} does not define run")

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        # Without a state to return, padding may run on: outputs before it are the same.
        output, final = self.run(hidden_states, state, lengths if return_state else None)
        if self.out_proj is not None:
            output = self.out_proj(output)
        return output, final if return_state else None
