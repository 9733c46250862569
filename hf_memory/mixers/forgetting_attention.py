"""Forgetting attention: softmax attention whose scores fade by forget gates that the input sets, without positions.

    o_t = sum_s softmax_s(q_t . k_s / sqrt(K) + sum_{s < j <= t} log f_j) v_s,    f_t = sigmoid(w_f x_t + b_f)
    y_t = W_o o_t                                                                                       per head
    or, with ``pro``,   k_t = RMS(a_t k'_{t-1} + (1 - a_t) k'_t),    v_t = a'_t v'_{t-1} + (1 - a'_t) v'_t,
    q_t = RMS(q'_t),    y_t = W_o (RMS(o_t) sigmoid(W_g x_t))

Symbols: q', k', v' are maps of the input to H heads; f_t is one number per head, and so are a_t and a'_t, sigmoids of
maps of the input; s runs over positions with 0 <= t - s < ``window``.

Source: Lin et al. (2025), "Forgetting transformer: Softmax attention with a forget gate", section 3. Official code:
zhixuan-lin/forgetting-transformer. State: keys, values and sums of log f of the tokens that a later one can see,
(2 D + H) min(T, window - 1) numbers, their positions, and with ``pro`` the last k' and v', 2 D. Initial values: b_f =
``forget_bias``, 0 in the official code, so that every f is near 1/2.

Deviations: a window, which the official code does not have; the MLP of the authors is ``intermediate_size``. Sums of
log f are kept from each token to the last one, so that they lose no digits as a sequence grows.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._columns import ColumnsMixer
from hf_memory.mixers._gates import GatedNorm
from hf_memory.mixers._token_shift import shifted
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import RMSNorm, State, at_least_float32, mark_residual_output, zero_padding
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.attention import attention_weights
from hf_memory.ops.forgetting_attention import forgetting_attention


@strict
class MemoryForgettingAttentionConfig(MemoryConfig):
    """Configuration of forgetting attention.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        window: Tokens that a token sees, itself included; None for all.
        forget_bias: Initial b_f.
        pro: Norms of queries, keys and outputs, a shift of keys and values, and an output gate.
    """

    model_type: ClassVar[str] = "memory_forgetting_attention"

    num_heads: int = 2
    window: int | None = None
    forget_bias: float = 0.0
    pro: bool = False

    def validate_forgetting_attention(self) -> None:
        """Check the window."""
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, or None for no window, got {self.window}")


class ForgettingAttentionMixer(ColumnsMixer):
    """Multi-head softmax attention with forget gates."""

    fp32_parameters = ("forget_bias",)

    def __init__(self, config: MemoryForgettingAttentionConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, heads = config.hidden_size, config.num_heads
        self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.forget_proj = nn.Linear(width, heads, bias=False)
        self.forget_bias = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        if config.pro:
            self.shift_proj = nn.Linear(width, 2 * heads, bias=False)
            self.gate_proj = nn.Linear(width, width, bias=False)
            self.query_norm, self.key_norm = (RMSNorm(width // heads, config.norm_eps) for _ in range(2))
            self.head_norm = GatedNorm(width // heads, config.norm_eps, "sigmoid")
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=False))

    def reset_parameters(self) -> None:
        """One bias for all heads."""
        init.constant_(self.forget_bias, self.config.forget_bias)

    @property
    def column_shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
        """Keys, values and sums of log f."""
        return {**super().column_shapes, "decay": ((self.config.num_heads,), None)}

    def other_state(self, batch_size: int) -> State:
        """The last keys and values before they are shifted."""
        return {"shift": self.state_tensor(batch_size, 1, 2 * self.config.hidden_size)} if self.config.pro else {}

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        if position_ids is None:
            position_ids = self.next_positions(state, hidden_states)
        query, key, value, shift = self._project(hidden_states, state, lengths)
        new = {"key": key, "value": value, "decay": self._sums(hidden_states, lengths)}
        columns, fresh = self.append(state, new, position_ids, lengths)
        key, value, decay, positions = columns.values()
        output = forgetting_attention(
            query, key, value, position_ids, positions, decay, self.config.window, is_causal=fresh
        )
        if self.config.pro:
            output = self.head_norm(output, self.gate_proj(hidden_states).unflatten(-1, (self.config.num_heads, -1)))
        output = self.out_proj(output.flatten(-2))
        if not return_state:
            return output, None
        # Of sums only differences count: that of the last token is made 0. Behind a row's length they stand still.
        columns["decay"] = (decay - decay[:, -1:]).to(torch.promote_types(hidden_states.dtype, torch.float32))
        return output, {**self.keep(columns, ragged=lengths is not None), **shift}

    def attention_weights(self, hidden_states: Tensor) -> Tensor:
        """What each position reads from each other one.

        Args:
            hidden_states: Inputs (B, T, D), from the first token on and padded on the right at most.

        Returns:
            Weights (B, H, T, T): query, then key.
        """
        positions = self.next_positions(None, hidden_states)
        query, key, _, _ = self._project(hidden_states, None, None)
        decay = self._sums(hidden_states, None)
        return attention_weights(query, key, positions, positions, None, self.config.window, decay=decay)

    def _sums(self, hidden_states: Tensor, lengths: Tensor | None) -> Tensor:
        """Sums of log f (B, T, H) from the first column on, in float64 where there is one."""
        raw = at_least_float32(self.forget_proj(hidden_states)) + at_least_float32(self.forget_bias)
        exact = torch.float32 if raw.device.type == "mps" else torch.float64
        return zero_padding(F.logsigmoid(raw), lengths).to(exact).cumsum(1)

    def _project(
        self, hidden_states: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, State]:
        """Queries, keys and values (B, T, H, K), and the leaf of the shift where there is one."""
        heads, width = (self.config.num_heads, -1), self.config.hidden_size
        query, pair = self.qkv_proj(hidden_states).split([width, 2 * width], dim=-1)
        query, leaves = query.unflatten(-1, heads), {}
        pair = pair.unflatten(-1, (2, *heads))
        if self.config.pro:
            last = (state or self.other_state(len(pair)))["shift"]
            before, leaves["shift"] = shifted(pair.flatten(2), last, lengths)
            share = torch.sigmoid(self.shift_proj(hidden_states)).unflatten(-1, (2, *heads))
            pair = torch.lerp(pair, before.view_as(pair), share)
        key, value = pair.unbind(2)
        if self.config.pro:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value, leaves


class MemoryForgettingAttentionModel(MemoryModel):
    """Base model with forgetting attention."""

    config_class = MemoryForgettingAttentionConfig
    mixer_class = ForgettingAttentionMixer


class MemoryForgettingAttentionForCausalLM(MemoryForCausalLM):
    """Forgetting attention with a language model head."""

    config_class = MemoryForgettingAttentionConfig
    model_class = MemoryForgettingAttentionModel


class MemoryForgettingAttentionForTokenClassification(MemoryForTokenClassification):
    """Forgetting attention with a head per position."""

    config_class = MemoryForgettingAttentionConfig
    model_class = MemoryForgettingAttentionModel
