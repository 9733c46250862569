"""Based, its Taylor layer: linear attention with the weights of a second-order exponential.

    o_t = sum_{s<=t} w_ts v_s / (sum_{s<=t} w_ts + eps),    w_ts = 1 + x + x^2 / 2,    x = q_t . k_s / sqrt(f)

Symbols: q and k are maps of the input to H heads of f numbers, v to H heads of V = D / H. With features phi of K
numbers and phi(q) . phi(k) = w it is S_t = S_{t-1} + phi(k_t) v_t^T, z_t = z_{t-1} + phi(k_t), read by phi(q_t).

Source: Arora et al. (2024), "Simple linear attention language models balance the recall-throughput tradeoff", section
4.1. Official code: HazyResearch/based; HazyResearch/zoology, ``mixers/based.py``. State: S and z, H K (V + 1) numbers
(H K V without normaliser), with K = 1 + f + f (f + 1) / 2 where each product of two inputs is kept once, or
K = 1 + f + f^2 as the official code computes; outputs are the same. The transition is the identity.

The published stacks also have layers of gated convolution and of windowed attention: mixers of their own here. Beyond
the paper, as switches for ablations: a short convolution on q, k and v, a gate SiLU(W_g x) on the output, and no
normaliser.
"""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor

from hf_memory.mixers._linear import LinearMixer, check_linear
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.taylor_attention import taylor_attention


@strict
class MemoryBasedConfig(MemoryConfig):
    """Configuration of the Taylor layer of Based.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        feature_dim: Numbers f of a query or key per head.
        symmetric: Keep each product of two inputs once in the state.
        normalize: Divide by the sum of the weights.
        normalizer_eps: Added to that sum.
        gate: Multiply the output with SiLU(W_g x).
        conv_kernel: Width of a short convolution on queries, keys and values; 0 for none.
    """

    model_type: ClassVar[str] = "memory_based"

    num_heads: int = 1
    feature_dim: int = 16
    symmetric: bool = True
    normalize: bool = True
    normalizer_eps: float = 1e-12
    gate: bool = False
    conv_kernel: int = 0

    def validate_based(self) -> None:
        """Check features, convolution and normaliser."""
        if self.feature_dim < 1:
            raise ValueError(f"feature_dim must be at least 1, got {self.feature_dim}")
        check_linear(self)


class BasedMixer(LinearMixer):
    """Multi-head attention with second-order Taylor weights. The memory's last column is the normaliser."""

    def __init__(self, config: MemoryBasedConfig, layer_idx: int):
        size, heads = config.feature_dim, config.num_heads
        num_features = 1 + size + (size * (size + 1) // 2 if config.symmetric else size**2)
        memory_shape = (heads, num_features, config.hidden_size // heads + config.normalize)
        super().__init__(config, layer_idx, heads * size, memory_shape)

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
        output, memory = taylor_attention(
            query,
            key,
            value,
            self.config.symmetric,
            self.config.normalize,
            self.config.normalizer_eps,
            None if state is None else state["memory"],
            lengths,
            return_state,
        )
        return self.emit(output, hidden_states), self.join(memory, conv) if return_state else None


class MemoryBasedModel(MemoryModel):
    """Base model with the Taylor layer."""

    config_class = MemoryBasedConfig
    mixer_class = BasedMixer


class MemoryBasedForCausalLM(MemoryForCausalLM):
    """The Taylor layer with a language model head."""

    config_class = MemoryBasedConfig
    model_class = MemoryBasedModel


class MemoryBasedForTokenClassification(MemoryForTokenClassification):
    """The Taylor layer with a head per position."""

    config_class = MemoryBasedConfig
    model_class = MemoryBasedModel
