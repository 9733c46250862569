"""DeltaNet: a matrix memory that replaces what a key has stored instead of adding to it.

    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,        o_t = S_t^T q_t / sqrt(d)        per head

Symbols: q, k, v are maps of the input to H heads of d = D / H numbers; beta_t = sigmoid(W_beta x_t), times two where
``allow_neg_eigval``. The eigenvalues of the transition are 1 and 1 - beta |k|^2, in [0, 1], or [-1, 1] with the factor.

Two parameterisations, with K the width of a key:

``yang``    Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length", section
            3.3: short convolution and SiLU on q, k and v; q and k of Euclidean norm 1; RMS norm on the output of each
            head. K = d.
``schlag``  Schlag, Irie and Schmidhuber (2021), "Linear transformers are secretly fast weight programmers", sections
            4.2 and 5.3: q and k are features divided by their sum, of elu + 1 (K = d) or of the deterministic
            parameter-free projection DPFP: r = ReLU([x, -x]), then r times its first nu rolls (K = 2 nu d).

Official code: IDSIA/lmtool-fwp; fla-org/flash-linear-attention, ``fla/layers/delta_net.py``. State: S, H K d numbers,
and 3 D (W - 1) of the convolution. Deviations: keys are normalised with 1e-6 under the root, or added to their sum, so
that a key of zeros stays zero; the attention normaliser of the code of Schlag et al. is left out, as in their paper.
"""

from typing import Any, ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import (
    RMSNorm,
    ShortConvolution,
    State,
    elu_plus_one,
    join_state,
    l2_normalize,
    mark_residual_output,
    split_state,
    with_shift,
)
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.ops.delta_rule import delta_rule


@strict
class MemoryDeltaNetConfig(MemoryConfig):
    """Configuration of DeltaNet.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        parameterization: Whose queries and keys: those of Yang et al. or of Schlag et al.
        allow_neg_eigval: Draw beta from (0, 2) instead of (0, 1), so that a step can reverse what a key has stored.
        conv_kernel: Width of the short convolution on queries, keys and values; 0 for none. Default: 4 with ``yang``,
            0 with ``schlag``.
        output_norm: RMS norm on the output of each head. Default: with ``yang`` only.
        feature_map: Features of ``schlag``.
        dpfp_order: Number of rolls nu of DPFP.
    """

    model_type: ClassVar[str] = "memory_delta_net"

    num_heads: int = 2
    parameterization: Literal["yang", "schlag"] = "yang"
    allow_neg_eigval: bool = False
    conv_kernel: int | None = None
    output_norm: bool | None = None
    feature_map: Literal["dpfp", "elu"] = "dpfp"
    dpfp_order: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.conv_kernel is None:
            self.conv_kernel = 4 if self.parameterization == "yang" else 0
        if self.output_norm is None:
            self.output_norm = self.parameterization == "yang"

    def validate_delta_net(self) -> None:
        """Check the convolution and the order of the features."""
        if self.conv_kernel is not None and self.conv_kernel < 0:
            raise ValueError(f"conv_kernel must be at least 0, got {self.conv_kernel}")
        head_dim = self.hidden_size // max(self.num_heads, 1)
        if self.dpfp_order < 1 or (self.dpfp_order >= 2 * head_dim > 0):
            raise ValueError(
                f"dpfp_order must be in [1, {2 * head_dim - 1}] for heads of {head_dim} numbers, got {self.dpfp_order}"
            )


class DeltaNetMixer(Mixer):
    """Multi-head delta rule."""

    nan_reaches_back = True

    def __init__(self, config: MemoryDeltaNetConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        width, kernel = config.hidden_size, config.conv_kernel
        self.num_heads = config.num_heads
        self.head_dim = width // config.num_heads
        self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.beta_proj = nn.Linear(width, config.num_heads, bias=False)
        self.conv = ShortConvolution(3 * width, kernel, activation="silu", bias=False) if kernel else None
        self.head_norm = RMSNorm(self.head_dim, config.norm_eps) if config.output_norm else None
        self.out_proj = mark_residual_output(nn.Linear(width, width, bias=False))

    def initial_state(self, batch_size: int) -> State:
        """An empty memory, and no inputs of the convolution."""
        dpfp = self.config.parameterization == "schlag" and self.config.feature_map == "dpfp"
        key_dim = 2 * self.config.dpfp_order * self.head_dim if dpfp else self.head_dim
        return {
            "memory": self.state_tensor(batch_size, self.num_heads, key_dim, self.head_dim),
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
        (query, key, value, beta), conv_state = self._project(hidden_states, state, lengths, return_state)
        start = None if state is None else state["memory"]
        output, memory = delta_rule(query * self.head_dim**-0.5, key, value, beta, start, lengths)
        if self.head_norm is not None:
            output = self.head_norm(output)
        output = self.out_proj(output.flatten(-2))
        return output, {"memory": memory, **join_state({"conv": conv_state})} if return_state else None

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of 1 - beta |k|^2 over the heads, and the 1 of all directions orthogonal to a key.

        With a convolution also 0, since its buffer is shifted.
        """
        (_, key, _, beta), _ = self._project(hidden_states, None, None, False)
        along_key = 1 - beta * key.square().sum(-1)
        largest = along_key.amax(-1) if key.shape[-1] == 1 else torch.ones_like(along_key[..., 0])
        return with_shift(torch.stack((along_key.amin(-1), largest), dim=-1), self.conv)

    def _project(
        self, hidden_states: Tensor, state: State | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], State | None]:
        """Queries and keys (B, T, H, K), values (B, T, H, d), strengths (B, T, H), and the state of the convolution."""
        yang = self.config.parameterization == "yang"
        projected, conv_state = self.qkv_proj(hidden_states), None
        if self.conv is not None:
            projected, conv_state = self.conv(projected, split_state(state, "conv"), lengths, None, return_state)
        elif yang:
            projected = F.silu(projected)
        query, key, value = projected.unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(2)
        # In bfloat16 a key would be longer than one, and the state grow with beta near two.
        exact = torch.promote_types(query.dtype, torch.float32)
        normalize = l2_normalize if yang else self._sum_normalized_features
        query, key = normalize(query.to(exact)), normalize(key.to(exact))
        beta = self.beta_proj(hidden_states).sigmoid()
        if self.config.allow_neg_eigval:
            beta = 2 * beta
        return (query, key, value, beta), conv_state

    def _sum_normalized_features(self, inputs: Tensor) -> Tensor:
        features = elu_plus_one(inputs) if self.config.feature_map == "elu" else dpfp(inputs, self.config.dpfp_order)
        return features / (features.sum(-1, keepdim=True) + 1e-6)


def dpfp(inputs: Tensor, order: int) -> Tensor:
    """Map x (..., d) to the products of r = ReLU([x, -x]) with its first ``order`` rolls (..., 2 order d).

    Deterministic parameter-free projection (Schlag et al., 2021, section 5.3): non-negative and sparse.
    """
    parts = F.relu(torch.cat((inputs, -inputs), dim=-1))
    return torch.cat([parts * parts.roll(shift, dims=-1) for shift in range(1, order + 1)], dim=-1)


class MemoryDeltaNetModel(MemoryModel):
    """Base model with DeltaNet."""

    config_class = MemoryDeltaNetConfig
    mixer_class = DeltaNetMixer


class MemoryDeltaNetForCausalLM(MemoryForCausalLM):
    """DeltaNet with a language model head."""

    config_class = MemoryDeltaNetConfig
    model_class = MemoryDeltaNetModel


class MemoryDeltaNetForTokenClassification(MemoryForTokenClassification):
    """DeltaNet with a head per position."""

    config_class = MemoryDeltaNetConfig
    model_class = MemoryDeltaNetModel
