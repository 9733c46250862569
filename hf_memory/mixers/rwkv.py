"""RWKV-4: attention by decaying weights, as a recurrence (Peng et al., 2023, equations 11 to 18).

    r, k, v = W (mu x_t + (1 - mu) x_{t-1})        with an own mu and W for each
    y_t = (sum_{s<t} e^{(t-1-s) w + k_s} v_s + e^{u + k_t} v_t) / (the same with v = 1),    o_t = W_o (sigmoid(r_t) y_t)

Symbols: w = -exp(time_decay) is the log decay of a channel, u = time_first the bonus of the current token. Channel mix,
the authors' MLP, is the third part of a block where ``channel_mix``:

    o_t = sigmoid(R (mu_r x_t + (1 - mu_r) x_{t-1})) V relu(K (mu_k x_t + (1 - mu_k) x_{t-1}))^2

Official code: BlinkDL/RWKV-LM, RWKV-v4. State: the two sums and their exponent, 3 D, and the last input, D; with
channel mix another D. Initial values are those of the official code: w and u per channel, mu from the depth of the
layer, and K, R and both output maps at zero, so that a fresh block is the identity; ``zero_init=False`` gives these
maps the law of other linear layers.

Deviations: a single layer counts as the first of many; no second norm after the embedding.
"""

import math
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import initialization as init

from hf_memory.mixers._token_shift import depth, shifted
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, StatefulLayer, mark_residual_output
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.wkv import NO_EXPONENT, wkv


@strict
class MemoryRWKVConfig(MemoryConfig):
    """Configuration of RWKV-4.

    Attributes:
        channel_mix: Use the authors' MLP, which has a state. Its width is ``intermediate_size``, or 4 * hidden_size
            where that is 0.
        zero_init: Start key, receptance and output maps at zero.
    """

    model_type: ClassVar[str] = "memory_rwkv"

    channel_mix: bool = False
    zero_init: bool = True


class RWKVMixer(Mixer):
    """Time mix."""

    fp32_parameters = ("time_decay", "time_first")
    no_decay_parameters = ("mix_key", "mix_value", "mix_receptance")

    def __init__(self, config: MemoryRWKVConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width = config.hidden_size
        self.time_decay = nn.Parameter(torch.empty(width, dtype=torch.float32))
        self.time_first = nn.Parameter(torch.empty(width, dtype=torch.float32))
        self.mix_key, self.mix_value, self.mix_receptance = (nn.Parameter(torch.empty(width)) for _ in range(3))
        self.key, self.value, self.receptance = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=False))

    def reset_parameters(self) -> None:
        """The laws of the official code."""
        depth_share, falling = depth(self.config, self.layer_idx)
        channel = torch.arange(len(self.time_decay), dtype=torch.float32, device=self.time_decay.device)
        share = channel / max(len(channel) - 1, 1)
        init.copy_(self.time_decay, -5 + 8 * share ** (0.7 + 1.3 * depth_share))
        init.copy_(self.time_first, math.log(0.3) + 0.5 * ((channel + 1) % 3 - 1))
        share = channel / len(channel)
        init.copy_(self.mix_key, share**falling)
        init.copy_(self.mix_value, share**falling + 0.3 * depth_share)
        init.copy_(self.mix_receptance, share ** (0.5 * falling))
        if self.config.zero_init:
            for linear in (self.key, self.receptance, self.out_proj):
                init.zeros_(linear.weight)

    def initial_state(self, batch_size: int) -> State:
        """A zero input before the first, and empty sums."""
        width = self.config.hidden_size
        sums = self.state_tensor(batch_size, 3, width)
        sums[:, 2] = NO_EXPONENT
        return {"shift": self.state_tensor(batch_size, 1, width), "wkv": sums}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        state = state or self.initial_state(hidden_states.shape[0])
        before, shift = shifted(hidden_states, state["shift"], lengths)
        key, value, receptance = (
            linear(_mixed(hidden_states, before, mix))
            for linear, mix in (
                (self.key, self.mix_key),
                (self.value, self.mix_value),
                (self.receptance, self.mix_receptance),
            )
        )
        y, sums = wkv(key, value, self._log_decay(), self.time_first, state["wkv"], lengths)
        output = self.out_proj(torch.sigmoid(receptance) * y)
        return output, {"shift": shift, "wkv": sums} if return_state else None

    def transition_spectrum(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """0, since the last input is replaced, and the largest e^w: factors of the sums as such, without e^-m."""
        largest = torch.exp(self._log_decay()).amax()
        return torch.stack([torch.zeros_like(largest), largest]).expand(*hidden_states.shape[:2], 2)

    def _log_decay(self) -> torch.Tensor:
        """w (D,) in at least float32."""
        return -torch.exp(self.time_decay.to(torch.promote_types(self.time_decay.dtype, torch.float32)))

    @classmethod
    def build_mlp(cls, config: MemoryRWKVConfig, layer_idx: int) -> StatefulLayer | None:
        """Channel mix where the config asks for it, else the MLP of other mixers."""
        return RWKVChannelMix(config, layer_idx) if config.channel_mix else super().build_mlp(config, layer_idx)


class RWKVChannelMix(StatefulLayer):
    """A gated MLP with squared ReLU on the current and the last input."""

    no_decay_parameters = ("mix_key", "mix_receptance")

    def __init__(self, config: MemoryRWKVConfig, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        width, inner = config.hidden_size, config.intermediate_size or 4 * config.hidden_size
        self.mix_key, self.mix_receptance = (nn.Parameter(torch.empty(width)) for _ in range(2))
        self.key = nn.Linear(width, inner, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.value = mark_residual_output(nn.Linear(inner, width, bias=False))

    def reset_parameters(self) -> None:
        """The laws of the official code."""
        _, falling = depth(self.config, self.layer_idx)
        width = len(self.mix_key)
        share = torch.arange(width, dtype=torch.float32, device=self.mix_key.device) / width
        init.copy_(self.mix_key, share**falling)
        init.copy_(self.mix_receptance, share**falling)
        if self.config.zero_init:
            init.zeros_(self.receptance.weight)
            init.zeros_(self.value.weight)

    def initial_state(self, batch_size: int) -> State:
        """A zero input before the first."""
        return {"shift": self.state_tensor(batch_size, 1, self.config.hidden_size)}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        state = state or self.initial_state(hidden_states.shape[0])
        before, shift = shifted(hidden_states, state["shift"], lengths)
        key = self.key(_mixed(hidden_states, before, self.mix_key))
        gate = torch.sigmoid(self.receptance(_mixed(hidden_states, before, self.mix_receptance)))
        return gate * self.value(torch.relu(key).square()), {"shift": shift} if return_state else None


def _mixed(now: torch.Tensor, before: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    """mu x_t + (1 - mu) x_{t-1}."""
    return torch.lerp(before, now, mix.to(now.dtype))


class MemoryRWKVModel(MemoryModel):
    """Base model with RWKV-4."""

    config_class = MemoryRWKVConfig
    mixer_class = RWKVMixer


class MemoryRWKVForCausalLM(MemoryForCausalLM):
    """RWKV-4 with a language model head."""

    config_class = MemoryRWKVConfig
    model_class = MemoryRWKVModel


class MemoryRWKVForTokenClassification(MemoryForTokenClassification):
    """RWKV-4 with a head per position."""

    config_class = MemoryRWKVConfig
    model_class = MemoryRWKVModel
