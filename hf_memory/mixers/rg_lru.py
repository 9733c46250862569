"""RG-LRU: the recurrent block of Griffin, a vector that decays by input-dependent factors.

    x_t = conv(W_x u_t + b_x),    r_t = sigmoid(W_r x_t + b_r),    i_t = sigmoid(W_i x_t + b_i)
    log a_t = -8 r_t softplus(L),    h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t)                  (elementwise)
    y_t = W_o (h_t GELU(W_y u_t + b_y)) + b_o

Symbols: r and i are recurrence and input gate, whose maps are block-diagonal, a matrix for each of H heads; L is one
number per channel, and exp(-softplus(L)) the decay that a gate of 1 takes to the eighth power. At position 0 the
input is not scaled, as in the official code, a switch here.

Source: De et al. (2024), "Griffin: Mixing gated linear recurrences with local attention for efficient language models",
section 2.4 and equations 1 to 4. Official code: google-deepmind/recurrentgemma. State: h, one number for each of
``lru_width`` channels, and (W - 1) times as many of the convolution. The eigenvalues of the transition are the a_t, in
(0, 1). Initial values: the square of exp(-softplus(L)) uniform between those of ``decay_min`` and ``decay_max``; gate
weights of variance 1 / width of a block, and of the convolution 0.01 / W, all biases 0.

Deviations: the other maps follow the law of the package. transformers draws gate weights a tenth as large. The gradient
of the square root is at most 1000, as in the official code.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import decay_spectrum
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import (
    ShortConvolution,
    State,
    at_least_float32,
    join_state,
    mark_residual_output,
    split_state,
    with_shift,
)
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.diagonal_scan import diagonal_scan

_POWER = 8.0
_STEEPEST = 1000.0  # gradient of the square root, which is infinite where nothing is forgotten


@strict
class MemoryRGLRUConfig(MemoryConfig):
    """Configuration of RG-LRU.

    Attributes:
        num_heads: Blocks H of the gates' maps; divides ``hidden_size`` and the width of the recurrence.
        lru_width: Channels of the recurrence; 0 for ``hidden_size``.
        conv_kernel: Width W of the short convolution before the recurrence; 0 for none.
        unscaled_start: Take the input at position 0 without the factor sqrt(1 - a^2).
        decay_min: Smallest initial decay under a gate of 1 / 8.
        decay_max: Largest one, below 1.
    """

    model_type: ClassVar[str] = "memory_rg_lru"

    num_heads: int = 2
    lru_width: int = 0
    conv_kernel: int = 4
    unscaled_start: bool = True
    decay_min: float = 0.9
    decay_max: float = 0.999

    def validate_rg_lru(self) -> None:
        """Check sizes and decays."""
        if self.lru_width < 0 or self.lru_width % max(self.num_heads, 1):
            raise ValueError(f"lru_width must be a multiple of num_heads={self.num_heads}, got {self.lru_width}")
        if self.conv_kernel < 0:
            raise ValueError(f"conv_kernel must be at least 0, got {self.conv_kernel}")
        if not 0 < self.decay_min < self.decay_max < 1:
            raise ValueError(
                f"decay_min and decay_max must hold 0 < decay_min < decay_max < 1, got {self.decay_min} and "
                f"{self.decay_max}"
            )


class RGLRUMixer(Mixer):
    """A gated diagonal recurrence with a convolution before it and a gate after it."""

    fp32_parameters = ("rate", "gate_bias")
    no_decay_parameters = ("gate_weight",)

    def __init__(self, config: MemoryRGLRUConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, inner, heads = config.hidden_size, config.lru_width or config.hidden_size, config.num_heads
        kernel = config.conv_kernel
        self.in_proj, self.branch_proj = nn.Linear(width, inner), nn.Linear(width, inner)
        self.conv = ShortConvolution(inner, kernel) if kernel else None
        self.gate_weight = nn.Parameter(torch.empty(heads, inner // heads, 2, inner // heads))
        self.gate_bias = nn.Parameter(torch.empty(heads, 2, inner // heads, dtype=torch.float32))
        self.rate = nn.Parameter(torch.empty(inner, dtype=torch.float32))
        self.out_proj = mark_residual_output(nn.Linear(inner, width))

    def reset_parameters(self) -> None:
        """The laws of the official code."""
        low, high = self.config.decay_min**2, self.config.decay_max**2
        squared = torch.empty_like(self.rate, dtype=torch.float64).uniform_(low, high)
        init.copy_(self.rate, torch.log(torch.expm1(-0.5 * squared.log())))
        init.normal_(self.gate_weight, std=self.gate_weight.shape[1] ** -0.5)
        init.zeros_(self.gate_bias)
        if self.conv is not None:
            init.normal_(self.conv.weight, std=(0.01 / self.conv.kernel_size) ** 0.5)
            init.zeros_(self.conv.bias)

    def initial_state(self, batch_size: int) -> State:
        """Zeros."""
        conv = self.conv.initial_state(batch_size) if self.conv is not None else None
        return {"hidden": self.state_tensor(batch_size, len(self.rate)), **join_state({"conv": conv})}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        x, conv = self._convolved(hidden_states, state, lengths, return_state)
        log_decay, opened = self._gates(x)
        scale = _bounded_sqrt(-torch.expm1(2 * log_decay))
        if self.config.unscaled_start:
            scale = scale.masked_fill(self._first(x, state, position_ids), 1)
        start = None if state is None else state["hidden"]
        hidden, final = diagonal_scan(log_decay.exp(), scale * opened * x, start, lengths, forget_gate=True)
        branch = F.gelu(self.branch_proj(hidden_states), approximate="tanh")
        output = self.out_proj(hidden.to(branch.dtype) * branch)
        return output, {"hidden": final, **join_state({"conv": conv})} if return_state else None

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of a over the channels; with a convolution also 0, since its buffer is shifted."""
        x, _ = self._convolved(hidden_states, None, None, False)
        return with_shift(decay_spectrum(self._gates(x)[0]), self.conv)

    def _convolved(
        self, hidden_states: Tensor, state: State | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Tensor, State | None]:
        """x (B, T, width of the recurrence), and the state of the convolution."""
        projected = self.in_proj(hidden_states)
        if self.conv is None:
            return projected, None
        return self.conv(projected, split_state(state, "conv"), lengths, None, return_state)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log a and the input gate, in at least float32 and in the shape of x."""
        heads = x.unflatten(-1, (self.config.num_heads, -1))
        raw = torch.einsum("bthq,hqgp->bthgp", heads, self.gate_weight.to(x.dtype))
        gates = torch.sigmoid(at_least_float32(raw) + at_least_float32(self.gate_bias))
        recurrence, opened = (gate.flatten(-2) for gate in gates.unbind(-2))
        return -_POWER * recurrence * F.softplus(at_least_float32(self.rate)), opened

    @staticmethod
    def _first(x: Tensor, state: State | None, position_ids: Tensor | None) -> Tensor:
        """Where a sequence starts (B, T, 1): at position 0, or at the first column without positions and a state."""
        if position_ids is None:
            steps = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
            position_ids = steps if state is None else steps + 1
        return (position_ids == 0).unsqueeze(-1)


def _bounded_sqrt(x: Tensor) -> Tensor:
    """The square root, with a gradient of at most ``_STEEPEST``."""
    slope = 0.5 * x.detach().clamp(min=(0.5 / _STEEPEST) ** 2).rsqrt()
    return x.detach().sqrt() + slope * (x - x.detach())


class MemoryRGLRUModel(MemoryModel):
    """Base model with RG-LRU."""

    config_class = MemoryRGLRUConfig
    mixer_class = RGLRUMixer


class MemoryRGLRUForCausalLM(MemoryForCausalLM):
    """RG-LRU with a language model head."""

    config_class = MemoryRGLRUConfig
    model_class = MemoryRGLRUModel


class MemoryRGLRUForTokenClassification(MemoryForTokenClassification):
    """RG-LRU with a head per position."""

    config_class = MemoryRGLRUConfig
    model_class = MemoryRGLRUModel
