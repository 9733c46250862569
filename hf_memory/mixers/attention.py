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

from hf_memory.mixers._columns import ColumnsMixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import ShortConvolution, join_state, mark_residual_output, split_state
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.attention import alibi_slopes, attention, attention_weights
from hf_memory.ops.rotation import rotate


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


class AttentionMixer(ColumnsMixer):
    """Multi-head softmax attention."""

    def __init__(self, config: MemoryAttentionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, bias = config.hidden_size, config.attention_bias
        self.num_heads = config.num_heads
        self.qkv_proj = nn.Linear(width, 3 * width, bias=bias)
        kernel = config.conv_kernel
        self.conv = ShortConvolution(3 * width, kernel, activation="silu", bias=bias) if kernel else None
        self.gate_proj = nn.Linear(width, width, bias=False) if config.gate else None
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=bias))

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        batch, time, width = hidden_states.shape
        if position_ids is None:
            position_ids = self.next_positions(state, hidden_states)
        query, key, value, slopes, conv_state = self._project(hidden_states, state, lengths, position_ids, return_state)
        columns, fresh = self.append(state, {"key": key, "value": value}, position_ids, lengths)
        key, value, positions = columns.values()
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
        return output, {**self.keep(columns, ragged=lengths is not None), **join_state({"conv": conv_state})}

    def attention_weights(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What each position reads from each other one.

        Args:
            hidden_states: Inputs (B, T, D), from the first token on and padded on the right at most.

        Returns:
            Weights (B, H, T, T): query, then key.
        """
        positions = self.next_positions(None, hidden_states)
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
