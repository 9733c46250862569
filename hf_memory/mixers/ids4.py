"""The input-dependent S4 (Merrill et al., 2024, section 5.2): a linear recurrence with a dense, input-made transition.

    form "product":  P_t = P_{t-1} A_t,   s_t = P_t p + b                 P_0 = I
    form "state":    s_t = A_t s_{t-1} + B x_t                            s_0 = 0
    y_t = C s_t + D x_t

Symbols: A_t is made from x_t and one matrix A_i (N, N) per channel. ``transition="residual"`` is
A_t = I + sum_i x_i A_i, the form that the paper describes; ``"gelu"`` is the published code,
A_t = GELU(sum_i x_i A_i) with A_i = I + N(0, 1)/sqrt(N). ``transition_norm="row"`` divides a row by the sum of its
absolute values where that is above 1, so that products of any length stay bounded and permutations stay exact.

How far from the identity a fresh A_t is, by the mean smallest and largest real part of its eigenvalues for inputs of
unit variance, at the default sizes:

    residual, none      0.83 to  1.16       close to the identity
    residual, row       0.46 to  0.67       the default: rows sum to about 1.8 before the norm, so that a step forgets
    gelu, row          -0.15 to  0.82
    gelu, none         -2    to 17

Official code: jopetty/sfirah; it is the product form with ``transition="gelu"`` and ``transition_norm="none"``, which
overflows float32 within about 40 steps of unit-variance inputs. State: ``product`` P, N * N numbers, or ``state`` s, N
numbers.

Deviations: the defaults, for the reason just named; the residual form draws A_i from N(0, 1/(N^2 hidden_size)), which
puts the entries of A_t - I at 1/N for normalised inputs, and p from N(0, 1).
"""

from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.ids4 import ids4_product, ids4_spectrum, ids4_state


@strict
class MemoryIDS4Config(MemoryConfig):
    """Configuration of the input-dependent S4.

    Attributes:
        state_size: Rows N of the transition.
        form: ``"product"`` with a matrix as state, or ``"state"`` with a vector.
        transition: Law of the transition.
        transition_norm: Norm of the transition.
    """

    model_type: ClassVar[str] = "memory_ids4"

    state_size: int = 32
    form: Literal["product", "state"] = "product"
    transition: Literal["residual", "gelu"] = "residual"
    transition_norm: Literal["row", "none"] = "row"

    def validate_state_size(self) -> None:
        """Check the size of the transition."""
        if self.state_size < 1:
            raise ValueError(f"state_size must be at least 1, got {self.state_size}")


class IDS4Mixer(Mixer):
    """A product of, or a linear recurrence with, matrices made from the input."""

    no_decay_parameters = ("transition_weight",)

    def __init__(self, config: MemoryIDS4Config, layer_idx: int):
        super().__init__(config, layer_idx)
        width, size = config.hidden_size, config.state_size
        self.transition_weight = nn.Parameter(torch.empty(width, size, size))
        product = config.form == "product"
        self.readout = nn.Parameter(torch.empty(size)) if product else None
        self.readout_bias = nn.Parameter(torch.empty(1)) if product else None
        self.in_proj = None if product else nn.Linear(width, size)
        self.out_proj = mark_residual_output(nn.Linear(size, width))
        self.skip_proj = mark_residual_output(nn.Linear(width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The laws named in the module's docstring."""
        width, size, _ = self.transition_weight.shape
        if self.config.transition == "gelu":
            noise = torch.empty_like(self.transition_weight).normal_(std=size**-0.5)
            init.copy_(self.transition_weight, noise + torch.eye(size, dtype=noise.dtype, device=noise.device))
        else:
            init.normal_(self.transition_weight, std=1 / (size * width**0.5))
        if self.readout is not None:
            init.normal_(self.readout)
            init.zeros_(self.readout_bias)

    def initial_state(self, batch_size: int) -> State:
        """The identity for a product, zeros for a vector."""
        size = self.config.state_size
        if self.readout is None:
            return {"state": self.state_tensor(batch_size, size)}
        return {"product": self.state_tensor(batch_size, size, size) + self._identity()}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        options = {"law": self.config.transition, "norm": self.config.transition_norm}
        start = None if state is None else next(iter(state.values()))
        if self.readout is None:
            added = self.in_proj(hidden_states)
            read, final = ids4_state(hidden_states, added, self.transition_weight, start, lengths, **options)
        else:
            read, final = ids4_product(hidden_states, self.readout, self.transition_weight, start, lengths, **options)
            read = read + self.readout_bias.to(read.dtype)
        output = self.out_proj(read) + self.skip_proj(hidden_states)
        if not return_state:
            return output, None
        return output, {"state" if self.readout is None else "product": final}

    @torch.no_grad()
    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Of A_t."""
        config = self.config
        return ids4_spectrum(hidden_states, self.transition_weight, config.transition, config.transition_norm)

    def _identity(self) -> Tensor:
        return torch.eye(self.config.state_size, device=self.transition_weight.device)


class MemoryIDS4Model(MemoryModel):
    """Base model with the input-dependent S4."""

    config_class = MemoryIDS4Config
    mixer_class = IDS4Mixer


class MemoryIDS4ForCausalLM(MemoryForCausalLM):
    """The input-dependent S4 with a language model head."""

    config_class = MemoryIDS4Config
    model_class = MemoryIDS4Model


class MemoryIDS4ForTokenClassification(MemoryForTokenClassification):
    """The input-dependent S4 with a head per position."""

    config_class = MemoryIDS4Config
    model_class = MemoryIDS4Model
