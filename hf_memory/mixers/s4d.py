"""S4D: a diagonal state space per channel (Gu et al., 2022, sections 3 and 4).

    h_t = lambda h_{t-1} + u_t,    y_t = 2 Re(c . h_t) + D u_t,    o_t = GLU(W GELU(y_t))
    lambda = exp(dt A),    c = C (exp(dt A) - 1) / A,    A = -exp(log_A_real) + i A_imag

Symbols: u_t is one channel of the input; h_t holds one complex number for each of N/2 conjugate pairs; dt is a step per
channel; D a skip weight per channel. The discretisation is that of a zero-order hold, with input weights of one, as C
absorbs others.

Official code: state-spaces/s4, ``models/s4/s4d.py``. State: N real numbers per channel, D * N. Initial values are
S4D-Lin: A = -1/2 + i pi n for n = 0 ... N/2 - 1 (section 4), dt log-uniform between ``time_step_min`` and
``time_step_max``, C complex normal, D normal.

Deviations: the state is the sum of inputs without the factor of the hold, which stands in c, so it can be handed on;
the convolution is computed in chunks of time with a state between them, not by one FFT, and is the same sum.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.diagonal_ssm import diagonal_ssm, discretize


@strict
class MemoryS4DConfig(MemoryConfig):
    """Configuration of S4D.

    Attributes:
        state_size: Real numbers N of the state per channel; even, at least 2.
        time_step_min: Smallest initial time step.
        time_step_max: Largest initial time step.
        ssm_dropout: Dropout between the activation and the output map.
    """

    model_type: ClassVar[str] = "memory_s4d"

    state_size: int = 64
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    ssm_dropout: float = 0.0

    def validate_s4d(self) -> None:
        """Check state size, time steps and dropout."""
        if self.state_size < 2 or self.state_size % 2:
            raise ValueError(f"state_size must be even and at least 2, got {self.state_size}")
        if not 0 < self.time_step_min <= self.time_step_max:
            high = self.time_step_max
            raise ValueError(f"time_step_min must be in (0, time_step_max={high}], got {self.time_step_min}")
        if not 0.0 <= self.ssm_dropout < 1.0:
            raise ValueError(f"ssm_dropout must be in [0, 1), got {self.ssm_dropout}")


class S4DMixer(Mixer):
    """A diagonal state space per channel, mixed by a gated linear map."""

    fp32_parameters = ("log_dt", "log_A_real", "A_imag")
    slow_parameters = ("log_dt", "log_A_real", "A_imag")
    no_decay_parameters = ("D",)
    nan_reaches_back = True

    def __init__(self, config: MemoryS4DConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, pairs = config.hidden_size, config.state_size // 2
        self.log_dt = nn.Parameter(torch.empty(width, dtype=torch.float32))
        self.log_A_real = nn.Parameter(torch.empty(width, pairs, dtype=torch.float32))
        self.A_imag = nn.Parameter(torch.empty(width, pairs, dtype=torch.float32))
        self.C = nn.Parameter(torch.empty(width, pairs, 2))
        self.D = nn.Parameter(torch.empty(width))
        self.dropout = nn.Dropout(config.ssm_dropout)
        self.out_proj = mark_residual_output(nn.Linear(width, 2 * width))

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        low, high = math.log(self.config.time_step_min), math.log(self.config.time_step_max)
        init.uniform_(self.log_dt, low, high)
        init.constant_(self.log_A_real, math.log(0.5))
        pairs = torch.arange(self.A_imag.shape[1], dtype=torch.float32, device=self.A_imag.device)
        init.copy_(self.A_imag, (math.pi * pairs).expand_as(self.A_imag))
        # A complex number of unit variance has parts of variance one half.
        init.normal_(self.C, std=0.5**0.5)
        init.normal_(self.D)

    def initial_state(self, batch_size: int) -> State:
        """Zeros; real and imaginary parts stand in the last axis."""
        return {"ssm": self.state_tensor(batch_size, *self.C.shape)}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        eigenvalues, factor = self._discrete()
        weights = torch.view_as_complex(self.C.to(factor.real.dtype).contiguous()) * factor
        start = None if state is None else torch.view_as_complex(at_least_float32(state["ssm"]).contiguous())
        y, final = diagonal_ssm(hidden_states, eigenvalues, weights, start, lengths, return_state)
        y = y + self.D.to(y.dtype) * hidden_states
        output = F.glu(self.out_proj(self.dropout(F.gelu(y))), dim=-1)
        return output, {"ssm": torch.view_as_real(final)} if return_state else None

    def decays(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """abs(lambda), the same at all inputs."""
        return self._discrete()[0].abs().flatten().expand(*hidden_states.shape[:2], -1)

    def transition_spectrum(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The range of Re lambda, the same at all inputs."""
        real = self._discrete()[0].real
        return torch.stack([real.amin(), real.amax()]).expand(*hidden_states.shape[:2], 2)

    def _discrete(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Eigenvalues and input factors (D, N/2) in at least float32."""
        dtype = torch.promote_types(self.log_dt.dtype, torch.float32)
        return discretize(self.log_dt.to(dtype), self.log_A_real.to(dtype), self.A_imag.to(dtype))


class MemoryS4DModel(MemoryModel):
    """Base model with S4D."""

    config_class = MemoryS4DConfig
    mixer_class = S4DMixer


class MemoryS4DForCausalLM(MemoryForCausalLM):
    """S4D with a language model head."""

    config_class = MemoryS4DConfig
    model_class = MemoryS4DModel


class MemoryS4DForTokenClassification(MemoryForTokenClassification):
    """S4D with a head per position."""

    config_class = MemoryS4DConfig
    model_class = MemoryS4DModel
