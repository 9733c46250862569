"""minGRU and minLSTM: gated recurrent cells whose gates see the input alone, so that they are linear in their state.

    minGRU:     h_t = (1 - z_t) h_{t-1} + z_t g(W_h x_t),    z_t = sigmoid(W_z x_t)                     (elementwise)
    minLSTM:    h_t = (f_t h_{t-1} + i_t g(W_h x_t)) / (f_t + i_t),    f_t, i_t = sigmoid(W_f x_t), sigmoid(W_i x_t)
    g(u) = u + 1/2 for u >= 0, else sigmoid(u)

Symbols: g keeps candidates, and so h, above 0; without it they are u. A state is a weighted mean of candidates.

Source: Feng et al. (2024), "Were RNNs all we needed?", section 3 and appendix B. State: h, ``expand`` * hidden_size
numbers. The eigenvalues of the transition are 1 - z_t, or f_t / (f_t + i_t), in (0, 1).

Deviations: h starts at 0; in the logarithms of the paper, which the scan here does not need, it could not. A width
other than that of the stream adds an output map.
"""

from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.diagonal_scan import diagonal_scan


@strict
class MemoryMinGRUConfig(MemoryConfig):
    """Configuration of minGRU and minLSTM.

    Attributes:
        cell: ``"gru"``, whose gate splits between old and new, or ``"lstm"``, with a gate for each.
        positive: Keep candidates above 0 by g.
        expand: Numbers of the state per channel of the residual stream; another number than 1 adds an output map.
    """

    model_type: ClassVar[str] = "memory_min_gru"

    cell: Literal["gru", "lstm"] = "gru"
    positive: bool = True
    expand: int = 1

    def validate_min_gru(self) -> None:
        """Check the width of the state."""
        if self.expand < 1:
            raise ValueError(f"expand must be at least 1, got {self.expand}")


class MinGRUMixer(Mixer):
    """A diagonal recurrence between the old state and a candidate."""

    def __init__(self, config: MemoryMinGRUConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, inner = config.hidden_size, config.expand * config.hidden_size
        self.size = inner
        self.in_proj = nn.Linear(width, (2 if config.cell == "gru" else 3) * inner, bias=False)
        self.out_proj = mark_residual_output(nn.Linear(inner, width, bias=False)) if inner != width else None

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
        candidate, balance = self._parts(hidden_states)
        if self.config.positive:
            candidate = torch.where(candidate >= 0, candidate + 0.5, torch.sigmoid(candidate))
        start = None if state is None else state["hidden"]
        decay, added = torch.sigmoid(balance), torch.sigmoid(-balance) * candidate
        hidden, final = diagonal_scan(decay, added, start, lengths, forget_gate=True)
        output = hidden.to(hidden_states.dtype)
        output = output if self.out_proj is None else self.out_proj(output)
        return output, {"hidden": final} if return_state else None

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of the shares of the old state over the channels."""
        decay = torch.sigmoid(self._parts(hidden_states)[1])
        return torch.stack((decay.amin(-1), decay.amax(-1)), dim=-1)

    def _parts(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates before g, and the numbers whose sigmoid is the share of the old state, in float32 or more."""
        candidate, *gates = at_least_float32(self.in_proj(hidden_states)).split(self.size, dim=-1)
        if self.config.cell == "gru":
            return candidate, -gates[0]
        forget, add = gates
        return candidate, F.logsigmoid(forget) - F.logsigmoid(add)  # f / (f + i) = sigmoid(log f - log i)


class MemoryMinGRUModel(MemoryModel):
    """Base model with minGRU or minLSTM."""

    config_class = MemoryMinGRUConfig
    mixer_class = MinGRUMixer


class MemoryMinGRUForCausalLM(MemoryForCausalLM):
    """minGRU or minLSTM with a language model head."""

    config_class = MemoryMinGRUConfig
    model_class = MemoryMinGRUModel


class MemoryMinGRUForTokenClassification(MemoryForTokenClassification):
    """minGRU or minLSTM with a head per position."""

    config_class = MemoryMinGRUConfig
    model_class = MemoryMinGRUModel
