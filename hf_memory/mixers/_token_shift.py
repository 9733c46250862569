"""What the RWKV mixers share: the input of the step before, and the depth of a layer."""

import torch
from torch import Tensor

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.layers import State, last_columns
from hf_memory.models.modeling import Mixer


def depth(config: MemoryConfig, layer_idx: int) -> tuple[float, float]:
    """How deep a layer lies: from 0 to 1, and from 1 down to 1 / number of layers."""
    return layer_idx / max(config.num_hidden_layers - 1, 1), 1 - layer_idx / config.num_hidden_layers


def shifted(hidden_states: Tensor, last: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The input before each one, and the last real one (B, 1, D) for the state."""
    window = torch.cat([last.to(hidden_states.dtype), hidden_states], dim=1)
    return window[:, :-1], last_columns(window, 1, lengths, hidden_states.shape[1], last)


def channel_share(like: Tensor) -> Tensor:
    """n / D of each of D channels, in float32."""
    return torch.arange(like.shape[-1], dtype=torch.float32, device=like.device) / like.shape[-1]


def channel_ramp(like: Tensor) -> Tensor:
    """n / (D - 1) of each of D channels, from 0 to 1, in float32."""
    last = max(like.shape[-1] - 1, 1)
    return torch.arange(like.shape[-1], dtype=torch.float32, device=like.device) / last


class ShiftedMemoryMixer(Mixer):
    """A mixer with a matrix memory of H heads of K = V = D / H, which also sees the input before each."""

    nan_reaches_back = True

    @property
    def heads(self) -> tuple[int, int]:
        """H and -1, to unflatten channels with."""
        return self.config.num_heads, -1

    def initial_state(self, batch_size: int) -> State:
        """A zero input before the first, and an empty memory."""
        width, heads = self.config.hidden_size, self.config.num_heads
        size = width // heads
        memory = self.state_tensor(batch_size, heads, size, size)
        return {"shift": self.state_tensor(batch_size, 1, width), "memory": memory}

    def before(self, hidden_states: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """The input before each one, and the last real one for the state."""
        last = (state or self.initial_state(len(hidden_states)))["shift"]
        return shifted(hidden_states, last, lengths)


def with_replaced_input(spectrum: Tensor) -> Tensor:
    """The range (B, T, 2) of the eigenvalues of a memory, with the 0 of the last input, which is replaced."""
    return torch.stack([spectrum[..., 0].clamp(max=0), spectrum[..., 1].clamp(min=0)], dim=-1)
