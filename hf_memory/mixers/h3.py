"""H3: a shift and a diagonal state space between multiplicative gates (Fu et al., 2023, section 3.1 and algorithm 1).

    q, k, v = W u + b
    k'_t = sum_{i<S} s_i k_{t-i} + D_s k_t                                        shift state space, per channel
    h_t  = lambda h_{t-1} + (k'_t v_t^T),    y_t = 2 Re(c . h_t) + D (k'_t v_t^T)   diagonal state space, per head
    o_t  = W_o (q_t y_t)                                                          per head, (1, P) x (P, P)

Symbols: heads have P = ``head_dim`` channels, so each carries P * P products k'_i v_j through one diagonal state space
with N/2 conjugate pairs; s are the S taps of the shift state space, whose state is the last inputs.
lambda = (1 + dt A / 2) / (1 - dt A / 2), c = C B dt / (1 - dt A / 2): the bilinear discretisation.

Official code: HazyResearch/H3, and H3 in HazyResearch/zoology. State: P * D * N numbers of the diagonal part and the
last S - 1 keys, (S - 1) * D. Initial values: A = -1/2 + i pi n, dt log-uniform per head, B = 1, C complex normal, s
uniform in +-1 / sqrt(S), the law of a convolution with S taps, and D and D_s normal.

Deviations: the input map of the shift state space is fixed to the first unit vector, as in the paper, so its kernel is
s; A and B are one per head, not shared by all; both parts start from the state that they are given. Channels stand head
by head before W_o, as they do in q, k and v. In the official code they stand there by their number within the head, so
where P > 1 the columns of its W_o are those of this one, rearranged.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.diagonal_ssm import diagonal_ssm, discretize
from hf_memory.ops.long_convolution import long_convolution


@strict
class MemoryH3Config(MemoryConfig):
    """Configuration of H3.

    Attributes:
        state_size: Real numbers N per product in the diagonal state space; even, at least 2.
        shift_size: Taps S of the shift state space; 0 for as many as ``state_size``.
        head_dim: Channels P per head; divides ``hidden_size``.
        time_step_min: Smallest initial time step.
        time_step_max: Largest initial time step.
    """

    model_type: ClassVar[str] = "memory_h3"

    state_size: int = 64
    shift_size: int = 0
    head_dim: int = 1
    time_step_min: float = 0.001
    time_step_max: float = 0.1

    def validate_h3(self) -> None:
        """Check state size, taps, heads and time steps."""
        if self.state_size < 2 or self.state_size % 2:
            raise ValueError(f"state_size must be even and at least 2, got {self.state_size}")
        if self.shift_size < 0:
            raise ValueError(f"shift_size must be at least 1, or 0 for state_size, got {self.shift_size}")
        if self.head_dim < 1 or self.hidden_size % self.head_dim:
            raise ValueError(f"head_dim must divide hidden_size={self.hidden_size}, got {self.head_dim}")
        if not 0 < self.time_step_min <= self.time_step_max:
            high = self.time_step_max
            raise ValueError(f"time_step_min must be in (0, time_step_max={high}], got {self.time_step_min}")


class H3Mixer(Mixer):
    """Shift and diagonal state spaces between multiplicative gates."""

    fp32_parameters = ("log_dt", "log_A_real", "A_imag")
    slow_parameters = ("log_dt", "log_A_real", "A_imag", "B")
    no_decay_parameters = ("D", "shift_D")
    float32_tolerance = 1e-4
    nan_reaches_back = True

    def __init__(self, config: MemoryH3Config, layer_idx: int):
        super().__init__(config, layer_idx)
        width, pairs = config.hidden_size, config.state_size // 2
        heads = width // config.head_dim
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.shift_taps = nn.Parameter(torch.empty(width, config.shift_size or config.state_size))
        self.shift_D = nn.Parameter(torch.empty(width))
        self.log_dt = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.log_A_real = nn.Parameter(torch.empty(heads, pairs, dtype=torch.float32))
        self.A_imag = nn.Parameter(torch.empty(heads, pairs, dtype=torch.float32))
        self.B = nn.Parameter(torch.empty(heads, pairs, 2))
        self.C = nn.Parameter(torch.empty(heads, pairs, 2))
        self.D = nn.Parameter(torch.empty(heads))
        self.out_proj = mark_residual_output(nn.Linear(width, width))

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        low, high = math.log(self.config.time_step_min), math.log(self.config.time_step_max)
        init.uniform_(self.log_dt, low, high)
        init.constant_(self.log_A_real, math.log(0.5))
        pairs = torch.arange(self.A_imag.shape[1], dtype=torch.float32, device=self.A_imag.device)
        init.copy_(self.A_imag, (math.pi * pairs).expand_as(self.A_imag))
        init.copy_(self.B, torch.tensor([1.0, 0.0], device=self.B.device).expand_as(self.B))
        # A complex number of unit variance has parts of variance one half.
        init.normal_(self.C, std=0.5**0.5)
        bound = 1 / math.sqrt(self.shift_taps.shape[1])
        init.uniform_(self.shift_taps, -bound, bound)
        for parameter in (self.D, self.shift_D):
            init.normal_(parameter)

    def initial_state(self, batch_size: int) -> State:
        """Zeros; real and imaginary parts stand in the last axis."""
        width, taps = self.shift_taps.shape
        head_dim = self.config.head_dim
        return {
            "keys": self.state_tensor(batch_size, taps - 1, width),
            "ssm": self.state_tensor(batch_size, head_dim, head_dim, *self.C.shape),
        }

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        batch, time, width = hidden_states.shape
        keys = (state or self.initial_state(batch))["keys"]
        query, key, value = self.qkv_proj(hidden_states).chunk(3, dim=-1)
        shifted, keys = long_convolution(key, self.shift_taps, keys, lengths, return_state)
        key = shifted + self.shift_D.to(key.dtype) * key
        # (P, B, T, H) each, and the P * P products of a head before the rows: they share its state space as rows do.
        query, key, value = (
            part.unflatten(-1, (-1, self.config.head_dim)).movedim(-1, 0).contiguous() for part in (query, key, value)
        )
        y, ssm = self._diagonal(key.unsqueeze(1) * value, state["ssm"] if state else None, lengths, return_state)
        output = (query.unsqueeze(1) * y).sum(0).movedim(0, -1).reshape(batch, time, width)
        return self.out_proj(output), {"keys": keys, "ssm": ssm} if return_state else None

    def _diagonal(self, products, state, lengths, return_state):
        """The diagonal state space on products (P, P, B, T, H)."""
        eigenvalues, factor = self._discrete()
        C, B = (torch.view_as_complex(tensor.to(factor.real.dtype).contiguous()) for tensor in (self.C, self.B))
        start = None
        if state is not None:
            start = torch.view_as_complex(at_least_float32(state).contiguous()).movedim(0, 2).flatten(0, 2)
        if lengths is not None:
            lengths = lengths.repeat(self.config.head_dim**2)
        y, final = diagonal_ssm(products.flatten(0, 2), eigenvalues, C * B * factor, start, lengths, return_state)
        y = y.view_as(products) + self.D.to(y.dtype) * products
        return y, torch.view_as_real(final.unflatten(0, products.shape[:3]).movedim(2, 0)) if return_state else None

    def transition_spectrum(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The range of Re lambda and, where keys are shifted, 0; the same at all inputs."""
        real = self._discrete()[0].real
        low, high = real.amin(), real.amax()
        if self.shift_taps.shape[1] > 1:
            low, high = low.clamp(max=0), high.clamp(min=0)
        return torch.stack([low, high]).expand(*hidden_states.shape[:2], 2)

    def _discrete(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Eigenvalues and input factors (heads, N/2) in at least float32."""
        dtype = torch.promote_types(self.log_dt.dtype, torch.float32)
        return discretize(self.log_dt.to(dtype), self.log_A_real.to(dtype), self.A_imag.to(dtype), "bilinear")


class MemoryH3Model(MemoryModel):
    """Base model with H3."""

    config_class = MemoryH3Config
    mixer_class = H3Mixer


class MemoryH3ForCausalLM(MemoryForCausalLM):
    """H3 with a language model head."""

    config_class = MemoryH3Config
    model_class = MemoryH3Model


class MemoryH3ForTokenClassification(MemoryForTokenClassification):
    """H3 with a head per position."""

    config_class = MemoryH3Config
    model_class = MemoryH3Model
