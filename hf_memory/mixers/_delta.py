"""What the mixers with a gated delta rule share: unit keys, strengths of writes, and a gated norm behind the memory."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from hf_memory.mixers._linear import NormedMixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.layers import State, at_least_float32, l2_normalize
from hf_memory.ops.generalized_delta_rule import generalized_delta_rule


class Step(NamedTuple):
    """What a gated delta rule needs of each token; n steps a token.

    Attributes:
        query: q (B, T, H, K), unit vectors.
        probe: k (B, n T, H, K), unit vectors.
        value: v (B, n T, H, V).
        beta: Strength of the writes (B, n T, H).
    """

    query: Tensor
    probe: Tensor
    value: Tensor
    beta: Tensor


class DeltaMixer(NormedMixer):
    """Maps, short convolution, unit keys and gated norm around a delta rule with decay.

    The config has the fields ``num_heads``, ``conv_kernel``, ``gate`` and ``allow_neg_eigval``.

    Args:
        config: The config of the mixer.
        layer_idx: Index of the block.
        key_dim: Numbers K of a key.
        value_dim: Numbers V of a value.
        key_heads: Heads of queries and keys, each shared by as many heads of values; all if None.
        steps: Steps n of the rule in a token.
        activation: Activation of the gate.
        writes: Whether there are values; the memory is only turned and erased without.
    """

    fp32_parameters: tuple[str, ...] = ("A_log", "dt_bias")

    def __init__(
        self,
        config: MemoryConfig,
        layer_idx: int,
        key_dim: int,
        value_dim: int,
        key_heads: int | None = None,
        steps: int = 1,
        activation: str = "silu",
        writes: bool = True,
    ):
        heads = config.num_heads
        self.key_heads = key_heads or heads
        shape = (heads, key_dim, value_dim)
        sizes = self.key_heads * key_dim, shape, heads * value_dim
        super().__init__(config, layer_idx, *sizes, steps, writes, activation)
        self.steps = steps
        self.beta_proj = nn.Linear(config.hidden_size, steps * heads, bias=False)

    def step(
        self, hidden_states: Tensor, state: State | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[Step, State | None]:
        """Queries, probes, values and strengths, and the state of the convolution."""
        (query, key, value), conv = self.project_flat(hidden_states, state, lengths, return_state)
        if self.conv is None or self.conv.activation is None:
            query, key, value = self.activate(query, key, value)
        heads, key_dim, value_dim = self.memory_shape
        # In bfloat16 a key would be longer than one, and the state grow with beta near two.
        query = l2_normalize(at_least_float32(query).unflatten(-1, (self.key_heads, key_dim)))
        probe = l2_normalize(at_least_float32(key).unflatten(-1, (self.steps, self.key_heads, key_dim))).flatten(1, 2)
        if self.key_heads < heads:
            query, probe = (part.repeat_interleave(heads // self.key_heads, dim=2) for part in (query, probe))
        if self.sizes[2]:
            value = value.unflatten(-1, (self.steps, heads, value_dim)).flatten(1, 2)
        else:
            value = value.new_zeros(*probe.shape[:3], value_dim)
        return Step(query, probe, value, self.strengths(hidden_states)), conv

    def activate(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values where the convolution has no activation."""
        return F.silu(query), F.silu(key), F.silu(value)

    def strengths(self, hidden_states: Tensor) -> Tensor:
        """beta (B, n T, H) in (0, 1), or (0, 2) where the config allows negative eigenvalues."""
        beta = self.strength_logits(hidden_states).sigmoid().unflatten(-1, (self.steps, -1)).flatten(1, 2)
        return 2 * beta if self.config.allow_neg_eigval else beta

    def strength_logits(self, hidden_states: Tensor) -> Tensor:
        """What the strengths are sigmoids of, in at least float32."""
        return at_least_float32(self.beta_proj(hidden_states))

    def remember(
        self,
        step: Step,
        log_decay: Tensor | None,
        sign: Tensor | None,
        memory: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs (B, T, H, V) and the memory after them."""
        query = step.query * self.memory_shape[1] ** -0.5
        return generalized_delta_rule(
            query, None, step.value, None, step.probe, log_decay, sign, memory, lengths, beta=step.beta
        )
