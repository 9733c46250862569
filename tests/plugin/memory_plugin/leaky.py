"""A leaky integrator: each channel forgets at a rate that it has learned.

    h_t = a h_{t-1} + (1 - a) W x_t,    y_t = V h_t,    a = sigmoid(logit)

State: h, ``hidden_size`` numbers. Source: the plugin of the tests (2026).
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import initialization as init

from hf_memory import MemoryConfig, Mixer
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.ops.diagonal_scan import diagonal_scan

from ._decays import decay_of


@strict
class MemoryLeakyConfig(MemoryConfig):
    """Configuration of the leaky integrator.

    Attributes:
        slowest: Largest initial logit of a decay; the smallest one is 0.
    """

    model_type: ClassVar[str] = "memory_leaky"

    slowest: float = 4.0


class LeakyMixer(Mixer):
    """A real diagonal recurrence with constant decays."""

    fp32_parameters = ("logit",)

    def __init__(self, config: MemoryLeakyConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.logit = nn.Parameter(torch.empty(config.hidden_size, dtype=torch.float32))
        self.in_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.out_proj = mark_residual_output(nn.Linear(config.hidden_size, config.hidden_size, bias=False))

    def reset_parameters(self) -> None:
        """Logits at equal distances."""
        init.copy_(self.logit, torch.linspace(0, self.config.slowest, len(self.logit)))

    def initial_state(self, batch_size: int) -> State:
        """Zeros."""
        return {"hidden": self.state_tensor(batch_size, len(self.logit))}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        decay = decay_of(self.logit)[None, None]
        drive = (1 - decay) * self.in_proj(hidden_states).to(decay.dtype)
        hidden, final = diagonal_scan(decay, drive, None if state is None else state["hidden"], lengths)
        output = self.out_proj(hidden.to(hidden_states.dtype))
        return output, {"hidden": final} if return_state else None

    def transition_spectrum(self, hidden_states):
        """The decays, the same at all inputs."""
        decay = decay_of(self.logit.detach())
        return torch.stack((decay.amin(), decay.amax())).expand(*hidden_states.shape[:2], 2)
