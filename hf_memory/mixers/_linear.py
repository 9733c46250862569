"""What mixers share whose memory is a matrix of keys and values: the maps into it and out of it.

One map gives queries, keys and values of H heads, with an optional short convolution behind it; what is read from the
memory passes an optional gate SiLU(W_g x) and the output map.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from hf_memory.mixers._gates import GatedNorm
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.layers import ShortConvolution, State, join_state, mark_residual_output, split_state, with_shift
from hf_memory.models.modeling import Mixer


def check_linear(config: MemoryConfig) -> None:
    """Raise a ``ValueError`` unless the width of the convolution and the epsilon of the normaliser are in range."""
    if config.conv_kernel < 0:
        raise ValueError(f"conv_kernel must be at least 0, got {config.conv_kernel}")
    if config.normalizer_eps < 0:
        raise ValueError(f"normalizer_eps must be at least 0, got {config.normalizer_eps}")


class LinearMixer(Mixer):
    """The maps around a memory (B, H, K, V) whose transition is the identity unless a subclass says otherwise.

    The config has the fields ``num_heads``, ``conv_kernel`` and ``gate``.

    Args:
        config: The config of the mixer.
        layer_idx: Index of the block.
        key_size: Numbers of all queries, and of all keys, of a token: H times those of a head.
        memory_shape: The shape of the memory of one sequence: heads, features of a key, numbers of a value.
        value_size: Numbers of all values of a token; the width of the model if None.
        steps: Keys and values of a token for each query.
        writes: Whether there are values.
    """

    nan_reaches_back = True

    def __init__(
        self,
        config: MemoryConfig,
        layer_idx: int,
        key_size: int,
        memory_shape: tuple[int, int, int],
        value_size: int | None = None,
        steps: int = 1,
        writes: bool = True,
    ):
        super().__init__(config, layer_idx)
        width, kernel = config.hidden_size, config.conv_kernel
        value_size = value_size or width
        self.memory_shape = memory_shape
        self.sizes = (key_size, steps * key_size, steps * value_size if writes else 0)
        self.qkv_proj = nn.Linear(width, sum(self.sizes), bias=False)
        self.conv = ShortConvolution(sum(self.sizes), kernel, activation="silu", bias=False) if kernel else None
        self.gate_proj = nn.Linear(width, value_size, bias=False) if config.gate else None
        self.out_proj = mark_residual_output(nn.Linear(value_size, width, bias=False))

    def initial_state(self, batch_size: int) -> State:
        """An empty memory, and no inputs of the convolution."""
        conv = self.conv.initial_state(batch_size) if self.conv is not None else None
        return self.join(self.state_tensor(batch_size, *self.memory_shape), conv)

    def project(
        self, hidden_states: Tensor, state: State | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[list[Tensor], State | None]:
        """Queries, keys and values, each (B, T, H, features), and the state of the convolution."""
        parts, conv = self.project_flat(hidden_states, state, lengths, return_state)
        return [part.unflatten(-1, (self.config.num_heads, -1)) for part in parts], conv

    def project_flat(
        self, hidden_states: Tensor, state: State | None, lengths: Tensor | None, return_state: bool
    ) -> tuple[tuple[Tensor, ...], State | None]:
        """Queries, keys and values, each (B, T, features of all heads), and the state of the convolution."""
        projected, conv = self.qkv_proj(hidden_states), None
        if self.conv is not None:
            projected, conv = self.conv(projected, split_state(state, "conv"), lengths, None, return_state)
        return projected.split(self.sizes, dim=-1), conv

    def emit(self, output: Tensor, hidden_states: Tensor) -> Tensor:
        """What was read (B, T, H, V), through gate and output map: (B, T, D)."""
        output = output.flatten(-2)
        if self.gate_proj is not None:
            output = output * F.silu(self.gate_proj(hidden_states))
        return self.out_proj(output)

    def join(self, memory: Tensor, conv: State | None) -> State:
        """The state of the mixer from its memory and the state of its convolution."""
        return {"memory": memory, **join_state({"conv": conv})}

    def transition_spectrum(self, hidden_states: Tensor) -> Tensor:
        """Ones, since the transition is the identity; with a convolution also 0, since its buffer is shifted."""
        return with_shift(hidden_states.new_ones(*hidden_states.shape[:2], 2), self.conv)


class NormedMixer(LinearMixer):
    """The same with an RMS norm on what each head has read, before the gate.

    Args:
        config: The config of the mixer.
        layer_idx: Index of the block.
        key_size: Numbers of all queries of a token, and of all keys of a step.
        memory_shape: The shape of the memory of one sequence.
        value_size: Numbers of all values of a step.
        steps: Keys and values of a token for each query.
        writes: Whether there are values.
        activation: Activation of the gate, ``"silu"`` or ``"sigmoid"``.
    """

    def __init__(
        self,
        config: MemoryConfig,
        layer_idx: int,
        key_size: int,
        memory_shape: tuple[int, int, int],
        value_size: int,
        steps: int = 1,
        writes: bool = True,
        activation: str = "silu",
    ):
        super().__init__(config, layer_idx, key_size, memory_shape, value_size, steps, writes)
        self.head_norm = GatedNorm(memory_shape[2], config.norm_eps, activation)

    def emit(self, output: Tensor, hidden_states: Tensor) -> Tensor:
        """What was read (B, T, H, V), through norm, gate and output map: (B, T, D)."""
        output = output.to(hidden_states.dtype)
        return self.out_proj(self.head_norm(output, self.gate_of(hidden_states)).flatten(-2))

    def gate_of(self, hidden_states: Tensor) -> Tensor | None:
        """The gate (B, T, H, V) before its activation, or None."""
        return (
            None if self.gate_proj is None else self.gate_proj(hidden_states).unflatten(-1, (-1, self.memory_shape[2]))
        )
