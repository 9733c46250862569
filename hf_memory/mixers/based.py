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
from torch import Tensor, nn
from torch.nn import functional as F

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import ShortConvolution, State, join_state, mark_residual_output, split_state, with_shift
from hf_memory.models.modeling import MemoryModel, Mixer
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
        if self.conv_kernel < 0:
            raise ValueError(f"conv_kernel must be at least 0, got {self.conv_kernel}")
        if self.normalizer_eps < 0:
            raise ValueError(f"normalizer_eps must be at least 0, got {self.normalizer_eps}")


class BasedMixer(Mixer):
    """Multi-head attention with second-order Taylor weights."""

    def __init__(self, config: MemoryBasedConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, kernel, features = config.hidden_size, config.conv_kernel, config.num_heads * config.feature_dim
        self.sizes = (features, features, width)
        self.qkv_proj = nn.Linear(width, sum(self.sizes), bias=False)
        self.conv = ShortConvolution(sum(self.sizes), kernel, activation="silu", bias=False) if kernel else None
        self.gate_proj = nn.Linear(width, width, bias=False) if config.gate else None
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=False))

    def initial_state(self, batch_size: int) -> State:
        """An empty memory, whose last column is the normaliser, and no inputs of the convolution."""
        size, heads = self.config.feature_dim, self.config.num_heads
        num_features = 1 + size + (size * (size + 1) // 2 if self.config.symmetric else size**2)
        columns = self.config.hidden_size // heads + self.config.normalize
        return {
            "memory": self.state_tensor(batch_size, heads, num_features, columns),
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
        heads = (self.config.num_heads, -1)
        query, key, value = (part.unflatten(-1, heads) for part in projected.split(self.sizes, dim=-1))
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
        output = output.flatten(-2)
        if self.gate_proj is not None:
            output = output * F.silu(self.gate_proj(hidden_states))
        output = self.out_proj(output)
        return output, {"memory": memory, **join_state({"conv": conv_state})} if return_state else None

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Ones, since the transition is the identity; with a convolution also 0, since its buffer is shifted."""
        return with_shift(hidden_states.new_ones(*hidden_states.shape[:2], 2), self.conv)


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
