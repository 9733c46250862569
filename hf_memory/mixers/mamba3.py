"""Mamba-3: a selective state space whose state turns by angles that the input sets, with a trapezoidal input.

    [z, x, B, C, d, a, l, r] = W_in u,    k_t = RMS(B_t) + b_B,    q_t = RMS(C_t) + b_C
    dt = softplus(d + b_dt),    A_t = -max(f(a_t), 1e-4),    e_t = sigmoid(l_t),    p_t = pi dt tanh(r_t)
    S_t = exp(dt A_t) R(p_t) (S_{t-1} + (1 - e_t) dt k_{t-1} x_{t-1}^T) + e_t dt k_t x_t^T        per head
    y_t = S_t^T q_t + D x_t,    o_t = W_out (y_t SiLU(z_t))

Symbols: x and z have ``expand`` * hidden_size channels in H heads of P; B and C have N numbers for each of G groups of
heads; R(p) turns pairs (2i, 2i + 1) of the N rows by the angles p, and leaves those without one; e_t weighs both ends
of a step (1 gives the input of Mamba-2). f is the softplus, or 1 + a above 0 and 1 / (1 - a) below.

Source: "Mamba-3: Improved sequence modeling using state space principles" (2026), arXiv 2603.15569, equations 5 to 11;
the bound of the angles is that of the official kernels. Official code: state-spaces/mamba,
``mamba_ssm/modules/mamba3.py``. State: S, H N P numbers, the last RMS(B), G N, and the last x, ``expand`` * D. The
eigenvalues of the transition are exp(dt A) e^(+-ip), inside of the unit circle at any phase. Initial values: b_B = b_C
= D = 1, softplus(b_dt) log-uniform between ``time_step_min`` and ``time_step_max``.

It runs as gated linear attention over q and k that are turned by the sums of p, and S is turned back when it is handed
on: so no angle is held, where the official code holds one for each pair. Deviations: the number of heads is given and
not P, which is 64 there; no inputs and outputs of rank above one. Beyond the paper: no rotation, as a switch.
"""

import math
from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import GroupedNorm, check_time_steps, start_time_steps
from hf_memory.mixers._token_shift import shifted, with_replaced_input
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import RMSNorm, State, at_least_float32, mark_residual_output, real_token_mask
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.gated_linear_attention import gated_linear_attention
from hf_memory.ops.rotation import running_angles, turn_pairs

_TURNED = {"half": 4, "full": 2, "none": 0}
"""Numbers of the state for each angle."""
_LEAST_RATE = 1e-4


@strict
class MemoryMamba3Config(MemoryConfig):
    """Configuration of Mamba-3.

    Attributes:
        num_heads: Heads H of the inner channels; divides ``hidden_size``.
        num_groups: Groups G of heads that share B and C; divides ``num_heads``.
        state_size: Numbers N of B and C; a multiple of 4 where half of them turn, of 2 where all do.
        expand: Inner channels per channel of the residual stream.
        rotation: Whether half of the state turns, all of it, or nothing.
        rate: Law f of the rates: ``"softplus"`` as in the paper, or ``"rational"`` as in later official code, whose
            rates are small only where the input is very large.
        output_norm: RMS norm of each head before the gate, as in the stacks of the paper that have attention too.
        time_step_min: Smallest initial time step.
        time_step_max: Largest initial time step.
        time_step_floor: Lower bound of initial time steps.
    """

    model_type: ClassVar[str] = "memory_mamba3"

    num_heads: int = 2
    num_groups: int = 1
    state_size: int = 128
    expand: int = 2
    rotation: Literal["half", "full", "none"] = "half"
    rate: Literal["softplus", "rational"] = "softplus"
    output_norm: bool = False
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    def validate_mamba3(self) -> None:
        """Check sizes and time steps."""
        for name in ("state_size", "expand"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.state_size % max(_TURNED[self.rotation], 1):
            many = _TURNED[self.rotation]
            raise ValueError(f"state_size must be a multiple of {many} with this rotation, got {self.state_size}")
        if self.num_groups < 1 or self.num_heads % self.num_groups:
            raise ValueError(f"num_groups must divide num_heads={self.num_heads}, got {self.num_groups}")
        check_time_steps(self)


class Mamba3Mixer(Mixer):
    """State space duality with a rotation, a trapezoidal input and a gate."""

    fp32_parameters = ("key_bias", "query_bias", "D", "dt_bias")
    nan_reaches_back = True

    def __init__(self, config: MemoryMamba3Config, layer_idx: int):
        super().__init__(config, layer_idx)
        width, heads, size = config.hidden_size, config.num_heads, config.state_size
        self.inner, turned = config.expand * width, _TURNED[config.rotation]
        shared = config.num_groups * size
        self.sizes = [self.inner] * 2 + [shared] * 2 + [heads] * 3 + [size // turned if turned else 0]
        self.in_proj = nn.Linear(width, sum(self.sizes), bias=False)
        self.key_norm, self.query_norm = (RMSNorm(size, config.norm_eps) for _ in range(2))
        self.key_bias, self.query_bias = (nn.Parameter(torch.empty(heads, size, dtype=torch.float32)) for _ in range(2))
        self.dt_bias, self.D = (nn.Parameter(torch.empty(heads, dtype=torch.float32)) for _ in range(2))
        self.out_norm = GroupedNorm(self.inner, config.norm_eps, heads) if config.output_norm else None
        self.out_proj = mark_residual_output(nn.Linear(self.inner, width, bias=False))

    def reset_parameters(self) -> None:
        """The laws of the official code, named in the module's docstring."""
        config = self.config
        start_time_steps(self.dt_bias, config.time_step_min, config.time_step_max, config.time_step_floor)
        for parameter in (self.key_bias, self.query_bias, self.D):
            init.ones_(parameter)

    def initial_state(self, batch_size: int) -> State:
        """Zeros."""
        heads, groups, size = self.config.num_heads, self.config.num_groups, self.config.state_size
        return {
            "memory": self.state_tensor(batch_size, heads, size, self.inner // heads),
            "key": self.state_tensor(batch_size, 1, groups, size),
            "value": self.state_tensor(batch_size, 1, heads, self.inner // heads),
        }

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        gate, x, key, query, *raw = self.in_proj(hidden_states).split(self.sizes, dim=-1)
        x = x.unflatten(-1, (self.config.num_heads, -1))
        step, log_decay, own, turn = self._steps(*raw)
        other = step - own  # (1 - e) dt: the weight of the step before
        if lengths is not None:
            real = real_token_mask(lengths, x.shape[1])[..., None]
            other, turn = other.masked_fill(~real, 0), turn.masked_fill(~real.unsqueeze(-1), 0)
        angle = running_angles(turn)
        shared, query = (
            norm(part.unflatten(-1, (self.config.num_groups, -1)))
            for norm, part in ((self.key_norm, key), (self.query_norm, query))
        )
        key, query = self._turned(shared, self.key_bias, angle), self._turned(query, self.query_bias, angle)
        output, memory = gated_linear_attention(
            query * log_decay.exp().unsqueeze(-1),
            key,
            ((own + F.pad(other, (0, 0, 0, 1))[:, 1:]).unsqueeze(-1) * x).to(x.dtype),
            log_decay,
            read="before",
            initial_state=None if state is None else self._start(state, other),
            lengths=lengths,
        )
        output = output + (own * (query * key).sum(-1) + at_least_float32(self.D)).unsqueeze(-1) * x
        output = self._emit(output.to(hidden_states.dtype), gate)
        if not return_state:
            return output, None
        last = state or self.initial_state(len(x))
        ends = {name: shifted(new, last[name], lengths)[1] for name, new in (("key", shared), ("value", x))}
        return output, {"memory": turn_pairs(memory.mT, -angle[:, -1].unsqueeze(-2)).mT.contiguous(), **ends}

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of exp(dt A) cos(p) over heads and pairs, and 0, since the last key and x are replaced."""
        _, log_decay, _, turn = self._steps(*self.in_proj(hidden_states).split(self.sizes, dim=-1)[4:])
        part = turn.cos() if self.config.rotation == "full" else F.pad(turn.cos(), (0, 1), value=1.0)
        every = (log_decay.exp().unsqueeze(-1) * part).flatten(2)
        return with_replaced_input(torch.stack((every.amin(-1), every.amax(-1)), dim=-1))

    def _steps(self, *raw: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dt, dt A and e dt (B, T, H), and the angles p (B, T, H, pairs), in at least float32."""
        d, a, trapezoid, r = (at_least_float32(part) for part in raw)
        step = F.softplus(d + at_least_float32(self.dt_bias))
        rate = F.softplus(a) if self.config.rate == "softplus" else a.clamp(min=0) + 1 / (1 - a.clamp(max=0))
        turn = math.pi * torch.tanh(r).unsqueeze(2) * step.unsqueeze(-1)
        return step, -step * rate.clamp(min=_LEAST_RATE), torch.sigmoid(trapezoid) * step, turn

    def _turned(self, shared: Tensor, bias: Tensor, angle: Tensor | None) -> Tensor:
        """B or C (B, T, G, N) with the bias of each head that shares it (B, T, H, N), turned by its angles."""
        share = self.config.num_heads // self.config.num_groups
        of_heads = at_least_float32(shared).unsqueeze(3) + at_least_float32(bias).unflatten(0, (-1, share))
        of_heads = of_heads.flatten(2, 3)
        return of_heads if angle is None else turn_pairs(of_heads, angle)

    def _start(self, state: State, other: Tensor) -> Tensor:
        """The memory before the first step, with the part of the last token that waits for its time step."""
        key = self._turned(state["key"], self.key_bias, None)[:, 0]
        waiting = (other[:, 0, :, None] * key).unsqueeze(-1) * at_least_float32(state["value"])[:, 0].unsqueeze(-2)
        return state["memory"] + waiting

    def _emit(self, output: Tensor, gate: Tensor) -> Tensor:
        """What was read (B, T, H, P), through norm, gate and output map: (B, T, D)."""
        output = output.flatten(-2)
        return self.out_proj((output if self.out_norm is None else self.out_norm(output)) * F.silu(gate))


class MemoryMamba3Model(MemoryModel):
    """Base model with Mamba-3."""

    config_class = MemoryMamba3Config
    mixer_class = Mamba3Mixer


class MemoryMamba3ForCausalLM(MemoryForCausalLM):
    """Mamba-3 with a language model head."""

    config_class = MemoryMamba3Config
    model_class = MemoryMamba3Model


class MemoryMamba3ForTokenClassification(MemoryForTokenClassification):
    """Mamba-3 with a head per position."""

    config_class = MemoryMamba3Config
    model_class = MemoryMamba3Model
