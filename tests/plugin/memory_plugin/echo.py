"""An echo: each channel hears a share of the last token.

    y_t = V (a x_t + (1 - a) x_{t-1}),    a = sigmoid(logit)

State: the last token's x, ``hidden_size`` numbers. Source: the plugin of the tests (2026).
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import initialization as init

from hf_memory import MemoryConfig, Mixer
from hf_memory.models.layers import mark_residual_output

from ._gates import share_of


@strict
class MemoryEchoConfig(MemoryConfig):
    """Configuration of the echo.

    Attributes:
        loudest: Largest initial logit of a share; the smallest one is 0.
    """

    model_type: ClassVar[str] = "memory_echo"

    loudest: float = 4.0


class EchoMixer(Mixer):
    """A convolution of width two with weights that sum to one."""

    fp32_parameters = ("logit",)

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.logit = nn.Parameter(torch.empty(config.hidden_size, dtype=torch.float32))
        self.out_proj = mark_residual_output(nn.Linear(config.hidden_size, config.hidden_size, bias=False))

    def reset_parameters(self):
        """Logits at equal distances."""
        init.copy_(self.logit, torch.linspace(0, self.config.loudest, len(self.logit)))

    def initial_state(self, batch_size):
        """Zeros."""
        return {"last": self.state_tensor(batch_size, len(self.logit))}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        state = state or self.initial_state(len(hidden_states))
        line = torch.cat((state["last"][:, None].to(hidden_states.dtype), hidden_states), dim=1)
        share = share_of(self.logit, hidden_states.dtype)
        output = self.out_proj(share * line[:, 1:] + (1 - share) * line[:, :-1])
        ends = torch.full((len(line),), line.shape[1] - 1, device=line.device) if lengths is None else lengths
        last = line[torch.arange(len(line), device=line.device), ends].to(state["last"].dtype)
        return output, {"last": last} if return_state else None

    def transition_spectrum(self, hidden_states):
        """Zero: what was heard once is not heard again."""
        return hidden_states.new_zeros(*hidden_states.shape[:2], 2)
