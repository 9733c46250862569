"""Linear recurrent unit: a complex diagonal recurrence.

    h_t = lambda * h_{t-1} + exp(gamma_log) * (B x_t)             lambda = exp(-exp(nu_log) + i exp(theta_log))
    y_t = Re(C h_t) + D * x_t
    o_t = (W_o g_t) * sigmoid(W_g g_t)                            g_t = GELU(y_t)

Source: Orvieto et al. (2023), "Resurrecting recurrent neural networks for long sequences", sections 3.2 (diagonal
form), 3.3 (exponential parameters) and 3.4 (normalisation), with the block of figure 1.
Symbols: h_t holds N complex numbers; B (N, D) and C (D, N) are complex, D is a weight per channel; |lambda| < 1.

In float32 exp(-exp(nu_log)) rounds to 1 from nu_log = -18 down, and such a channel would never forget. So nu_log counts
as at least -15.2, where |lambda| = 1 - 2^-22, with the gradient that it has there, and training can lead it back.

Initial values (lemma 3.2, section 3.4): |lambda|^2 is uniform in [r_min^2, r_max^2], the phase uniform in
(0, max_phase], exp(gamma_log) = sqrt(1 - |lambda|^2) and learned from there; the parts of B have variance 1 / (2 D),
those of C 1 / N, and D is standard normal. For long memories the authors take r_min = 0.9, r_max = 0.999 and
max_phase = pi / 10.

Reference code: NicolasZucchet/minimal-LRU, whose readout Re(C h) has no factor 2. State: N complex, 2 N numbers.
Deviations: complex weights are stored as two real ones, so that casting a model keeps both parts; the block around the
mixer normalises first and has no batch norm, which would look at the future.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.diagonal_scan import diagonal_scan

MIN_RATE = 2.0**-22
"""Least -log |lambda|: four times the distance of 1 from the next lower number of float32, for cos and sin round."""


@strict
class MemoryLRUConfig(MemoryConfig):
    """Configuration of the linear recurrent unit.

    Attributes:
        state_size: Complex numbers N of the state; 0 for ``hidden_size``.
        r_min: Smallest initial |lambda|.
        r_max: Largest initial |lambda|, at most 1.
        max_phase: Largest initial phase of lambda, in radians.
        glu: Pass the output through GELU and a gated linear map; False leaves y_t.
    """

    model_type: ClassVar[str] = "memory_lru"

    state_size: int = 0
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 6.283
    glu: bool = True

    def validate_lru(self) -> None:
        """Check the size of the state and the ring of the eigenvalues."""
        if self.state_size < 0:
            raise ValueError(f"state_size must be at least 1, or 0 for hidden_size, got {self.state_size}")
        if not 0.0 <= self.r_min < self.r_max <= 1.0:
            raise ValueError(f"r_min and r_max must hold 0 <= r_min < r_max <= 1, got {self.r_min} and {self.r_max}")
        if not 0.0 < self.max_phase <= 2 * math.pi:
            raise ValueError(f"max_phase must be in (0, 2 pi], got {self.max_phase}")


class LRUMixer(Mixer):
    """A complex diagonal recurrence with a gated output."""

    fp32_parameters = ("nu_log", "theta_log", "gamma_log")
    slow_parameters = ("nu_log", "theta_log", "gamma_log", "B_re", "B_im")
    no_decay_parameters = ("D",)

    def __init__(self, config: MemoryLRUConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.state_size or config.hidden_size
        self.nu_log = nn.Parameter(torch.empty(size, dtype=torch.float32))
        self.theta_log = nn.Parameter(torch.empty(size, dtype=torch.float32))
        self.gamma_log = nn.Parameter(torch.empty(size, dtype=torch.float32))
        self.B_re = nn.Parameter(torch.empty(size, width))
        self.B_im = nn.Parameter(torch.empty(size, width))
        self.C_re = nn.Parameter(torch.empty(width, size))
        self.C_im = nn.Parameter(torch.empty(width, size))
        self.D = nn.Parameter(torch.empty(width))
        self.out_proj = mark_residual_output(nn.Linear(width, width)) if config.glu else None
        self.gate_proj = nn.Linear(width, width) if config.glu else None

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        size, width = self.B_re.shape
        low, high = self.config.r_min**2, self.config.r_max**2
        # Open intervals, drawn in float64: |lambda| = 1 or a phase of 0 would have no logarithm.
        radius, phase = torch.rand(2, size, dtype=torch.float64, device=self.nu_log.device).clamp(1e-7, 1 - 1e-7)
        squared = radius * (high - low) + low
        init.copy_(self.nu_log, torch.log(-0.5 * squared.log()))
        init.copy_(self.theta_log, torch.log(phase * self.config.max_phase))
        init.copy_(self.gamma_log, 0.5 * torch.log1p(-squared))
        for part in (self.B_re, self.B_im):
            init.normal_(part, std=(2 * width) ** -0.5)
        for part in (self.C_re, self.C_im):
            init.normal_(part, std=size**-0.5)
        init.normal_(self.D)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, for the real and the imaginary part."""
        return {part: self.state_tensor(batch_size, len(self.nu_log)) for part in ("real", "imag")}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        dtype = hidden_states.dtype
        decay = self._eigenvalues()
        start = None if state is None else torch.complex(*(at_least_float32(state[name]) for name in ("real", "imag")))
        # Both parts of each number stand side by side, so that real products become complex numbers without a copy.
        gain = self.gamma_log.to(decay.real.dtype).exp()[:, None, None]
        weight = (torch.stack((self.B_re, self.B_im), dim=1) * gain).flatten(0, 1).to(dtype)
        drive = F.linear(hidden_states, weight).to(decay.real.dtype).unflatten(-1, (-1, 2))
        states, final = diagonal_scan(decay[None, None], torch.view_as_complex(drive), start, lengths)
        readout = torch.stack((self.C_re, -self.C_im), dim=-1).flatten(1).to(dtype)
        output = F.linear(torch.view_as_real(states).flatten(-2).to(dtype), readout) + self.D.to(dtype) * hidden_states
        if self.out_proj is not None and self.gate_proj is not None:
            activated = F.gelu(output)
            output = self.out_proj(activated) * self.gate_proj(activated).sigmoid()
        if not return_state:
            return output, None
        return output, {"real": final.real.contiguous(), "imag": final.imag.contiguous()}

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of Re lambda, the same at all inputs: as a real map the recurrence has lambda and its conjugate."""
        real = self._eigenvalues().real
        return torch.stack((real.amin(), real.amax())).expand(*hidden_states.shape[:2], 2)

    def _eigenvalues(self) -> Tensor:
        """The numbers lambda (N,), complex in at least single precision."""
        dtype = torch.promote_types(self.nu_log.dtype, torch.float32)
        nu_log = self.nu_log.to(dtype)
        # The gradient is that at the bound: one of zero would hold a channel there for good.
        nu_log = nu_log + (nu_log.detach().clamp(min=math.log(MIN_RATE)) - nu_log.detach())
        return torch.polar(torch.exp(-nu_log.exp()), self.theta_log.to(dtype).exp())


class MemoryLRUModel(MemoryModel):
    """Base model with the linear recurrent unit."""

    config_class = MemoryLRUConfig
    mixer_class = LRUMixer


class MemoryLRUForCausalLM(MemoryForCausalLM):
    """The linear recurrent unit with a language model head."""

    config_class = MemoryLRUConfig
    model_class = MemoryLRUModel


class MemoryLRUForTokenClassification(MemoryForTokenClassification):
    """The linear recurrent unit with a head per position."""

    config_class = MemoryLRUConfig
    model_class = MemoryLRUModel
