"""Softmax attention with five position codes and an optional sliding window.

    o_t = W_o sum_s softmax_s(q_t . k_s / sqrt(K) + bias) v_s        (Vaswani et al., 2017, section 3.2)

Symbols: q, k, v = linear maps of the input per head; s runs over positions with 0 <= t - s < ``window``.
Position codes: none; RoPE (Su et al., 2021, equation 34; half-split layout, as in Llama); ALiBi (Press et al., 2022,
section 3, as in Bloom); sinusoidal and learned codes are added to the embeddings by ``position_embedding``.

State: keys and values of the tokens that a later one can see, 2 * min(T, window - 1) * H * K numbers, plus their
positions. Deviation from the first paper: no biases by default.

Beyond it, as switches for ablations: a short convolution on q, k and v, a gate SiLU(W_g x) on the output, and no
normaliser, so that the weights are exponentials and not a softmax.
"""

from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import (
    ShortConvolution,
    State,
    join_state,
    mark_residual_output,
    real_token_mask,
    split_state,
)
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.models.values import is_hidden
from hf_memory.ops.attention import alibi_slopes, attention, attention_weights, rotate


@strict
class MemoryAttentionConfig(MemoryConfig):
    """Configuration of softmax attention.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        position_code: Position code inside of the mixer.
        rope_theta: Base of the RoPE frequencies.
        window: Tokens that a token sees, itself included, as ``position_ids`` count them; None for all.
        attention_bias: Biases in the projections and the convolution.
        attention_dropout: Dropout on the attention weights.
        conv_kernel: Width of a short convolution on queries, keys and values; 0 for none.
        gate: Multiply the output with SiLU(W_g x).
        normalize: Divide the weights by their sum; without it they are exp(score), which nothing bounds.
    """

    model_type: ClassVar[str] = "memory_attention"

    num_heads: int = 2
    position_code: Literal["none", "rope", "alibi"] = "rope"
    rope_theta: float = 10_000.0
    window: int | None = None
    attention_bias: bool = False
    attention_dropout: float = 0.0
    conv_kernel: int = 0
    gate: bool = False
    normalize: bool = True

    def validate_attention(self) -> None:
        """Check window, convolution and dropout."""
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, or None for no window, got {self.window}")
        if self.conv_kernel < 0:
            raise ValueError(f"conv_kernel must be at least 0, got {self.conv_kernel}")
        if not 0.0 <= self.attention_dropout < 1.0:
            raise ValueError(f"attention_dropout must be in [0, 1), got {self.attention_dropout}")
        if self.rope_theta <= 0:
            raise ValueError(f"rope_theta must be above 0, got {self.rope_theta}")


class AttentionMixer(Mixer):
    """Multi-head softmax attention."""

    growing_state = True
    nan_reaches_back = True

    def __init__(self, config: MemoryAttentionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, bias = config.hidden_size, config.attention_bias
        self.num_heads = config.num_heads
        self.qkv_proj = nn.Linear(width, 3 * width, bias=bias)
        kernel = config.conv_kernel
        self.conv = ShortConvolution(3 * width, kernel, activation="silu", bias=bias) if kernel else None
        self.gate_proj = nn.Linear(width, width, bias=False) if config.gate else None
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=bias))

    def initial_state(self, batch_size: int) -> State:
        """No columns."""
        heads = (self.num_heads, self.config.hidden_size // self.num_heads)
        return {
            "key": self.state_tensor(batch_size, 0, *heads, dtype=self.out_proj.weight.dtype),
            "value": self.state_tensor(batch_size, 0, *heads, dtype=self.out_proj.weight.dtype),
            "positions": self.state_tensor(batch_size, 0, dtype=torch.int64),
            **join_state({"conv": self.conv.initial_state(batch_size) if self.conv else None}),
        }

    def state_size(self, length: int | None = None) -> int:
        """Numbers held after ``length`` tokens. Raises a ``ValueError`` without a length if there is no window."""
        limits = [length] if length is not None else []
        if self.config.window is not None:
            limits.append(self.config.window - 1)
        if not limits:
            raise ValueError("length: the state of attention without a window grows, so its size needs a length")
        columns = min(limits)
        return 2 * columns * self.config.hidden_size + (self.conv.state_size() if self.conv else 0)

    def reset_state(self, state: State, mask: torch.Tensor) -> State:
        """Empty the columns of the rows where ``mask`` (B,) is True."""
        conv = self.conv.reset_state(split_state(state, "conv"), mask) if self.conv else None
        kept = {**state, "positions": state["positions"].masked_fill(mask.unsqueeze(1), -1)}
        return {**kept, **join_state({"conv": conv})}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        batch, time, width = hidden_states.shape
        if position_ids is None:
            position_ids = self._next_positions(state, batch, time, hidden_states.device)
        query, key, value, slopes, conv_state = self._project(hidden_states, state, lengths, position_ids, return_state)
        positions = position_ids
        if lengths is not None:
            positions = position_ids.masked_fill(~real_token_mask(lengths, time), -1)
        fresh = state is None or not state["key"].shape[1]
        if not fresh:
            key, value = (
                torch.cat([state[name].to(new.dtype), new], dim=1) for name, new in (("key", key), ("value", value))
            )
            positions = torch.cat([state["positions"], positions], dim=1)
        dropout = self.config.attention_dropout if self.training else 0.0
        window = self.config.window
        output = attention(
            query, key, value, position_ids, positions, slopes, window, fresh, dropout, self.config.normalize
        )
        output = output.reshape(batch, time, width)
        if self.gate_proj is not None:
            output = output * F.silu(self.gate_proj(hidden_states))
        output = self.out_proj(output)
        if not return_state:
            return output, None
        kept = self._keep(key, value, positions, ragged=lengths is not None)
        return output, {**kept, **join_state({"conv": conv_state})}

    def attention_weights(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What each position reads from each other one.

        Args:
            hidden_states: Inputs (B, T, D), from the first token on and padded on the right at most.

        Returns:
            Weights (B, H, T, T): query, then key.
        """
        batch, time, _ = hidden_states.shape
        positions = self._next_positions(None, batch, time, hidden_states.device)
        query, key, _, slopes, _ = self._project(hidden_states, None, None, positions, False)
        return attention_weights(
            query, key, positions, positions, slopes, self.config.window, normalize=self.config.normalize
        )

    def _project(self, hidden_states, state, lengths, position_ids, return_state):
        """Queries, keys and values (B, T, H, K) with their position code, slopes of ALiBi, state of the convolution."""
        batch, time, _ = hidden_states.shape
        projected, conv_state = self.qkv_proj(hidden_states), None
        if self.conv is not None:
            projected, conv_state = self.conv(projected, split_state(state, "conv"), lengths, None, return_state)
        query, key, value = projected.view(batch, time, 3, self.num_heads, -1).unbind(2)
        slopes = None
        if self.config.position_code == "rope":
            query, key = (rotate(tensor, position_ids, self.config.rope_theta) for tensor in (query, key))
        elif self.config.position_code == "alibi":
            slopes = alibi_slopes(self.num_heads).to(hidden_states.device)
        return query, key, value, slopes, conv_state

    def _keep(self, key: torch.Tensor, value: torch.Tensor, positions: torch.Tensor, ragged: bool) -> State:
        """The columns that a later token can see, and no more."""
        columns = key.shape[1]
        if ragged:
            # Real columns go to the right end of each row, so that cutting on the left drops padding and old tokens.
            order = positions.argsort(dim=1, stable=True)
            positions = positions.gather(1, order)
            index = order[:, :, None, None].expand_as(key)
            key, value = key.gather(1, index), value.gather(1, index)
            columns = columns if is_hidden(positions) else int((positions >= 0).sum(1).max())
        if self.config.window is not None:
            columns = min(columns, self.config.window - 1)
        first = key.shape[1] - columns
        kept = {"key": key[:, first:], "value": value[:, first:], "positions": positions[:, first:]}
        # A view on few columns of many would keep all of them alive in the cache.
        return {name: leaf.clone() for name, leaf in kept.items()} if first else kept

    @staticmethod
    def _next_positions(state: State | None, batch: int, time: int, device: torch.device) -> torch.Tensor:
        steps = torch.arange(time, device=device).expand(batch, -1)
        if state is None or not state["positions"].shape[1]:
            return steps
        return state["positions"].max(1, keepdim=True).values + 1 + steps


class MemoryAttentionModel(MemoryModel):
    """Base model with softmax attention."""

    config_class = MemoryAttentionConfig
    mixer_class = AttentionMixer


class MemoryAttentionForCausalLM(MemoryForCausalLM):
    """Softmax attention with a language model head."""

    config_class = MemoryAttentionConfig
    model_class = MemoryAttentionModel


class MemoryAttentionForTokenClassification(MemoryForTokenClassification):
    """Softmax attention with a head per position."""

    config_class = MemoryAttentionConfig
    model_class = MemoryAttentionModel
