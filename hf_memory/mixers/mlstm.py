"""mLSTM: the matrix memory of xLSTM, with an exponential input gate, a forget gate and a normaliser.

    S_t = f_t S_{t-1} + i_t k_t v_t^T / sqrt(K),    z_t = f_t z_{t-1} + i_t k_t / sqrt(K)
    h_t = S_t^T q_t / max(|z_t^T q_t|, 1),          y_t = W_o (norm(h_t) sigmoid(W_g x_t))        per head
    f_t = sigmoid(cap(w_f x_t + b_f)),  i_t = exp(cap(w_i x_t + b_i)),  cap(u) = c tanh(u / c)

Symbols: q, k, v are maps of the input to H heads; f_t and i_t are one number per head; c is ``gate_soft_cap``; the norm
is a layer norm of each head. An input gate above 1 writes more than the forget gate keeps, and the normaliser makes the
read a weighted mean of values, so that later tokens can outweigh all earlier ones.

Source: Beck et al. (2024), "xLSTM: Extended long short-term memory", equations 19 to 27; the layer is that of Beck et
al. (2025), "xLSTM 7B". Official code: NX-AI/xlstm, ``xlstm/xlstm_large/model.py``. State: e^-m S, e^-m z and m, the
running maximum of the gates, H (K V + K + 1) numbers, and (2 H K + D) (W - 1) where there is a convolution. The
eigenvalues of the transition of S and z are the f_t, in (0, 1). Initial values: w = 0, b_i = -10, b_f evenly from 3 to
6 over the heads. The authors take 8 heads of values of 512 and keys half as wide, and no convolution.

Deviations: no 1e-6 beside the normaliser; the other maps follow the law of the package. Left out is the block of the
first paper, which widens its input twice and has keys of 4 x 4 blocks. Beyond it: a short convolution with SiLU on q, k
and v, and no gate, as switches.
"""

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from hf_memory.mixers._gates import HeadNorm, decay_spectrum
from hf_memory.mixers._linear import LinearMixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.layers import State, at_least_float32, with_shift
from hf_memory.models.modeling import MemoryModel
from hf_memory.ops.exponential_linear_attention import exponential_linear_attention


@strict
class MemoryMLSTMConfig(MemoryConfig):
    """Configuration of mLSTM.

    Attributes:
        num_heads: Number of heads H; divides ``hidden_size``.
        key_head_dim: Numbers K of a key; 0 for half of those of a value, hidden_size / H.
        gate_soft_cap: Bound c of the gates before their exponential or sigmoid; 0 for none.
        input_bias: Initial b_i.
        forget_bias_min: Initial b_f of the first head.
        forget_bias_max: Initial b_f of the last head.
        conv_kernel: Width W of a short convolution on queries, keys and values; 0 for none.
        gate: Multiply the normed outputs with sigmoid(W_g x).
    """

    model_type: ClassVar[str] = "memory_mlstm"

    num_heads: int = 2
    key_head_dim: int = 0
    gate_soft_cap: float = 15.0
    input_bias: float = -10.0
    forget_bias_min: float = 3.0
    forget_bias_max: float = 6.0
    conv_kernel: int = 0
    gate: bool = True

    def validate_mlstm(self) -> None:
        """Check sizes, the bound of the gates and the order of the biases."""
        for name in ("key_head_dim", "conv_kernel", "gate_soft_cap"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.forget_bias_min > self.forget_bias_max:
            raise ValueError(
                f"forget_bias_min must be at most forget_bias_max={self.forget_bias_max}, got {self.forget_bias_min}"
            )


class MLSTMMixer(LinearMixer):
    """Multi-head linear attention with exponential gates and a normaliser."""

    fp32_parameters = ("input_bias", "forget_bias")

    def __init__(self, config: MemoryMLSTMConfig, layer_idx: int):
        width, heads = config.hidden_size, config.num_heads
        value_dim = width // heads
        key_dim = config.key_head_dim or max(1, value_dim // 2)
        super().__init__(config, layer_idx, heads * key_dim, (heads, key_dim, value_dim))
        self.gates_proj = nn.Linear(width, 2 * heads, bias=False)
        self.input_bias, self.forget_bias = (nn.Parameter(torch.empty(heads, dtype=torch.float32)) for _ in range(2))
        self.head_norm = HeadNorm(width, config.norm_eps, bias=False)

    def reset_parameters(self) -> None:
        """Gates that do not see the input, keep long and write little."""
        config = self.config
        init.zeros_(self.gates_proj.weight)
        init.constant_(self.input_bias, config.input_bias)
        steps = torch.linspace(config.forget_bias_min, config.forget_bias_max, config.num_heads)
        init.copy_(self.forget_bias, steps.to(self.forget_bias))

    def initial_state(self, batch_size: int) -> State:
        """An empty memory with an empty normaliser, and no inputs of the convolution."""
        state, (heads, key_dim, _) = super().initial_state(batch_size), self.memory_shape
        sums = self.state_tensor(batch_size, heads, key_dim), self.state_tensor(batch_size, heads)
        return {"normalizer": sums[0], "maximum": sums[1], **state}

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
        log_input, log_forget = self._log_gates(hidden_states)
        start = None if state is None else (state["memory"], state["normalizer"], state["maximum"])
        output, (memory, normalizer, maximum) = exponential_linear_attention(
            query, key * key.shape[-1] ** -0.5, value, log_forget, log_input, start, lengths
        )
        output = self.head_norm(output.to(hidden_states.dtype))
        if self.gate_proj is not None:
            output = output * torch.sigmoid(self.gate_proj(hidden_states))
        if return_state:
            return self.out_proj(output), {
                "normalizer": normalizer,
                "maximum": maximum,
                **self.join(memory, conv),
            }
        return self.out_proj(output), None

    def _log_gates(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """log i and log f (B, T, H), in at least float32."""
        raw = at_least_float32(self.gates_proj(hidden_states))
        raw = raw + at_least_float32(torch.cat((self.input_bias, self.forget_bias)))
        cap = self.config.gate_soft_cap
        log_input, forget = (cap * torch.tanh(raw / cap) if cap else raw).chunk(2, dim=-1)
        return log_input, F.logsigmoid(forget)

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """The range of f over the heads: the factors of S and z themselves, without e^-m.

        With a convolution also 0, since its buffer is shifted.
        """
        return with_shift(decay_spectrum(self._log_gates(hidden_states)[1]), self.conv)


class MemoryMLSTMModel(MemoryModel):
    """Base model with mLSTM."""

    config_class = MemoryMLSTMConfig
    mixer_class = MLSTMMixer


class MemoryMLSTMForCausalLM(MemoryForCausalLM):
    """mLSTM with a language model head."""

    config_class = MemoryMLSTMConfig
    model_class = MemoryMLSTMModel


class MemoryMLSTMForTokenClassification(MemoryForTokenClassification):
    """mLSTM with a head per position."""

    config_class = MemoryMLSTMConfig
    model_class = MemoryMLSTMModel
