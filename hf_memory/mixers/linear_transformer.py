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
from torch import Tensor

from hf_memory.mixers._linear import LinearMixer, check_linear
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, elu_plus_one
from hf_memory.models.modeling import MemoryModel
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
        check_linear(self)


class LinearTransformerMixer(LinearMixer):
    """Multi-head linear attention with the features elu + 1. The memory's last column is the normaliser."""

    def __init__(self, config: MemoryLinearTransformerConfig, layer_idx: int):
        dim = config.hidden_size // config.num_heads
        super().__init__(config, layer_idx, config.hidden_size, (config.num_heads, dim, dim + config.normalize))

    def forward(
        self,
        hidden_states: Tensor,
        state: State | None = None,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """See :class:`hf_memory.models.layers.StatefulLayer`."""
        (query, key, value), conv = self.project(hidden_states, state, lengths, return_state)
        output, memory = linear_attention(
            elu_plus_one(query),
            elu_plus_one(key),
            value,
            normalize=self.config.normalize,
            eps=self.config.normalizer_eps,
            initial_state=None if state is None else state["memory"],
            lengths=lengths,
        )
        return self.emit(output, hidden_states), self.join(memory, conv) if return_state else None


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
