"""A leaky integrator: each channel forgets at a rate that it has learned.

    h_t = a h_{t-1} + (1 - a) W x_t,    y_t = V h_t,    a = sigmoid(logit)

State: h, ``hidden_size`` numbers. Source: leaky integrator units (Jaeger et al., 2007), here without a nonlinearity.

A mixer in a file of its own, which every command takes::

    hf-memory train --include leaky.py --mixer leaky --task bit_parity --smoke
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import initialization as init

from hf_memory import MemoryConfig, Mixer
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.ops.diagonal_scan import diagonal_scan


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

    @property
    def decay(self) -> torch.Tensor:
        """The decays a, in at least float32."""
        return self.logit.to(torch.promote_types(self.logit.dtype, torch.float32)).sigmoid()

    def forward(
        self,
        hidden_states: torch.Tensor,
        state: State | None = None,
        lengths: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[torch.Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        decay = self.decay[None, None]
        drive = (1 - decay) * self.in_proj(hidden_states).to(decay.dtype)
        hidden, final = diagonal_scan(decay, drive, None if state is None else state["hidden"], lengths)
        output = self.out_proj(hidden.to(hidden_states.dtype))
        return output, {"hidden": final} if return_state else None

    def transition_spectrum(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The decays, the same at all inputs."""
        decay = self.decay.detach()
        return torch.stack((decay.amin(), decay.amax())).expand(*hidden_states.shape[:2], 2)
