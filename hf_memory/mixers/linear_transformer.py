"""Linear transformer: attention without softmax, as a matrix state that adds up.

    S_t = S_{t-1} + phi(k_t) v_t^T,    z_t = z_{t-1} + phi(k_t),    o_t = S_t^T phi(q_t) / (z_t^T phi(q_t) + eps)

Symbols: q, k, v are maps of the input to H heads of K = D / H numbers; phi(x) = elu(x) + 1 > 0.

Source: Katharopoulos et al. (2020), "Transformers are RNNs", equations 7 and 18-20. Official code:
idiap/fast-transformers. State: S and z, H K (K + 1) numbers; H K K without normaliser; 3 D (W - 1) for a convolution.
The transition is the identity: nothing is forgotten, nothing is overwritten.

Beyond the paper, as switches for ablations: a short convolution on q, k and v, a gate SiLU(W_g x) on the output, and no
normaliser. Deviation: no biases.
"""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import (
    ShortConvolution,
    State,
    elu_plus_one,
    join_state,
    mark_residual_output,
    split_state,
    with_shift,
)
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.linear_attention import linear_attention


@strict
class MemoryLinearTransformerConfig(MemoryConfig):
    """Configuration of the linear transformer.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        normalize: Divide by the sum of the weights.
        normalizer_eps: Added to that sum.
        gate: Multiply the output with SiLU(W_g x).
        conv_kernel: Width of a short convolution on queries, keys and values; 0 for none.
    """

    model_type: ClassVar[str] = "memory_linear_transformer"

    num_heads: int = 2
    normalize: bool = True
    normalizer_eps: float = 1e-6
    gate: bool = False
    conv_kernel: int = 0

    def validate_linear_transformer(self) -> None:
        """Check convolution and normaliser."""
        if self.conv_kernel < 0:
            raise ValueError(f"conv_kernel must be at least 0, got {self.conv_kernel}")
        if self.normalizer_eps < 0:
            raise ValueError(f"normalizer_eps must be at least 0, got {self.normalizer_eps}")


class LinearTransformerMixer(Mixer):
    """Multi-head linear attention with the features elu + 1."""

    def __init__(self, config: MemoryLinearTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, kernel = config.hidden_size, config.conv_kernel
        self.heads = (config.num_heads, width // config.num_heads)
        self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.conv = ShortConvolution(3 * width, kernel, activation="silu", bias=False) if kernel else None
        self.gate_proj = nn.Linear(width, width, bias=False) if config.gate else None
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=False))

    def initial_state(self, batch_size: int) -> State:
        """An empty memory, whose last column is the normaliser, and no inputs of the convolution."""
        heads, dim = self.heads
        return {
            "memory": self.state_tensor(batch_size, heads, dim, dim + self.config.normalize),
            **join_state({"conv": self.conv.initial_state(batch_size) if self.conv else None}),
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
        projected, conv_state = self.qkv_proj(hidden_states), None
        if self.conv is not None:
            projected, conv_state = self.conv(projected, split_state(state, "conv"), lengths, None, return_state)
        query, key, value = projected.unflatten(-1, (3, *self.heads)).unbind(2)
        output, memory = linear_attention(
            elu_plus_one(query),
            elu_plus_one(key),
            value,
            normalize=self.config.normalize,
            eps=self.config.normalizer_eps,
            initial_state=None if state is None else state["memory"],
            lengths=lengths,
        )
        output = output.flatten(-2)
        if self.gate_proj is not None:
            output = output * F.silu(self.gate_proj(hidden_states))
        output = self.out_proj(output)
        return output, {"memory": memory, **join_state({"conv": conv_state})} if return_state else None

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Ones, since the transition is the identity; with a convolution also 0, since its buffer is shifted."""
        return with_shift(hidden_states.new_ones(*hidden_states.shape[:2], 2), self.conv)


class MemoryLinearTransformerModel(MemoryModel):
    """Base model with linear attention."""

    config_class = MemoryLinearTransformerConfig
    mixer_class = LinearTransformerMixer


class MemoryLinearTransformerForCausalLM(MemoryForCausalLM):
    """Linear attention with a language model head."""

    config_class = MemoryLinearTransformerConfig
    model_class = MemoryLinearTransformerModel


class MemoryLinearTransformerForTokenClassification(MemoryForTokenClassification):
    """Linear attention with a head per position."""

    config_class = MemoryLinearTransformerConfig
    model_class = MemoryLinearTransformerModel
