"""Parts that mixers and the spine share."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import ACT2FN

from hf_memory.models.configuration import MemoryConfig
from hf_memory.ops.rms_norm import rms_norm
from hf_memory.ops.short_convolution import short_convolution

_HALF = (torch.bfloat16, torch.float16)

State = dict[str, torch.Tensor]
"""A flat, ordered mapping of tensors, batch first on every leaf. Never mutated in place."""


class StatefulLayer(nn.Module):
    """A layer that carries a state over time: the contract of the three parts of a block.

    ``forward`` is causal, and obeys two laws that the contract tests check. Split: cutting the input in time and
    handing the state on gives the outputs and the final state of one pass. Mask: rows are padded on the right only,
    ``lengths`` says how far each one reaches, and the final state is the one at that length.

    The defaults describe a layer without state.
    """

    fp32_parameters: tuple[str, ...] = ()
    """Names of own parameters that stay in float32 when the model is cast, and take no weight decay."""
    fp32_modules: tuple[str, ...] = ()
    """Names of children all of whose parameters stay in float32 when the model is cast."""
    no_decay_parameters: tuple[str, ...] = ()
    """Names of further own parameters that take no weight decay."""
    slow_parameters: tuple[str, ...] = ()
    """Names of own parameters whose authors train them at a learning rate of at most 1e-3."""
    growing_state: bool = False
    """Whether the state grows with the length."""
    limited_length: bool = False
    """Whether inputs longer than ``max_position_embeddings`` are refused."""
    float32_tolerance: float = 1e-5
    """Largest difference between one pass and pieces in float32. Forms that use an FFT round more: 1e-4."""
    nan_reaches_back: bool = False
    """Whether NaN or infinity at a position may reach earlier outputs of its row: forms that work on blocks of columns
    multiply what comes later with a zero, or send it through an FFT, and zero times NaN is NaN."""
    stackable: bool = True
    """Whether replicas with weights of their own run as one layer, by ``torch.func.vmap`` over the torch backend."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        state: State | None = None,
        lengths: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[torch.Tensor, State | None]:
        """Apply the layer.

        Args:
            hidden_states: Inputs (B, T, D).
            state: State before the first column; None for the initial one.
            lengths: Real tokens in each row (B,), int64; None where all T are real.
            position_ids: Positions of the columns (B, T), int64.
            return_state: Whether the final state is wanted. Training does without it.

        Returns:
            Outputs (B, T, D) and the state after each row's last real column, or None.
        """
        raise TypeError(f"{type(self).__name__} does not define forward")

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token."""
        return {}

    def state_size(self, length: int | None = None) -> int:
        """Numbers held per sequence after ``length`` tokens; integer leaves are bookkeeping and are not counted."""
        return sum(leaf[0].numel() for leaf in self.initial_state(1).values() if leaf.is_floating_point())

    def reset_state(self, state: State, mask: torch.Tensor) -> State:
        """Put the rows where ``mask`` (B,) is True back to the initial state."""
        initial = self.initial_state(len(mask))
        return {
            name: torch.where(mask.view(-1, *[1] * (leaf.dim() - 1)), initial[name].to(leaf), leaf)
            for name, leaf in state.items()
        }

    def reset_parameters(self) -> None:
        """Give special parameters their documented initial law, through ``transformers.initialization``."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "StatefulLayer":
        # `.to(bfloat16)` and `.half()` come through here. A phase or a decay rounded to 8 bits is another one.
        values = {name: parameter.data for name, parameter in self._exact_parameters()}
        super()._apply(fn, recurse)
        for name, parameter in self._exact_parameters():
            if parameter.dtype in _HALF and values[name].dtype not in _HALF:
                parameter.data = values[name].to(parameter.device)
        return self

    def _exact_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters that stay in float32, by name, also those that an adapter has moved further down."""
        for name, parameter in self.named_parameters():
            if name in self.fp32_parameters or name.partition(".")[0] in self.fp32_modules:
                yield name, parameter

    def state_tensor(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Zeros on the device of the parameters, in the dtype in which states accumulate."""
        parameter = next(self.parameters())
        dtype = dtype or torch.promote_types(parameter.dtype, torch.float32)
        return torch.zeros(shape, dtype=dtype, device=parameter.device)


def bare(layer: nn.Module) -> nn.Module:
    """A layer without the module that an adapter of PEFT has put in its place."""
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


class MLP(StatefulLayer):
    """The feed-forward part of a block: act(x W_in) W_out, or (act(x W_gate) * x W_in) W_out where ``mlp_gated``."""

    def __init__(self, config: MemoryConfig):
        super().__init__()
        self.gate_proj = (
            nn.Linear(config.hidden_size, config.intermediate_size, bias=False) if config.mlp_gated else None
        )
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = mark_residual_output(nn.Linear(config.intermediate_size, config.hidden_size, bias=False))
        self.act = ACT2FN[config.hidden_act]

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`StatefulLayer`; there is no state."""
        up = self.up_proj(hidden_states)
        hidden = self.act(up) if self.gate_proj is None else self.act(self.gate_proj(hidden_states)) * up
        return self.down_proj(hidden), {} if return_state else None


class ShortConvolution(StatefulLayer):
    """A causal depthwise convolution over the last W tokens: y_t = b + sum_i w_i x_{t-W+1+i}, then an activation.

    Its state ``inputs`` (B, W-1, D) holds the last W-1 inputs, oldest first.

    Args:
        hidden_size: Number of channels D.
        kernel_size: Width W, at least 1.
        activation: ``"silu"`` or None.
        bias: Whether there is a bias.
    """

    def __init__(self, hidden_size: int, kernel_size: int, activation: str | None = None, bias: bool = True):
        super().__init__()
        self.kernel_size = kernel_size
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(hidden_size, kernel_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The law of ``torch.nn.Conv1d``: uniform in +-1/sqrt(W)."""
        bound = 1 / math.sqrt(self.kernel_size)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def initial_state(self, batch_size: int) -> State:
        """Zeros: nothing came before the first token."""
        return {"inputs": self.state_tensor(batch_size, self.kernel_size - 1, self.weight.shape[0])}

    def forward(self, hidden_states, state=None, lengths=None, position_ids=None, return_state=True):
        """See :class:`StatefulLayer`."""
        history = (state or self.initial_state(hidden_states.shape[0]))["inputs"]
        window = torch.cat([history.to(hidden_states.dtype), hidden_states], dim=1)
        bias = None if self.bias is None else self.bias.to(window.dtype)
        output = short_convolution(window, self.weight.to(window.dtype), bias, self.activation)
        if not return_state:
            return output, None
        return output, {"inputs": last_columns(window, self.kernel_size - 1, lengths, hidden_states.shape[1], history)}


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers in the dtype in which they accumulate; a cache that was cast may hold them in less."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def with_shift(spectrum: torch.Tensor, conv: ShortConvolution | None) -> torch.Tensor:
    """The smallest and largest real part (B, T, 2) of eigenvalues, of a state that a convolution's buffer has joined.

    The buffer is shifted by one column in each step: its eigenvalues are 0, as many as it holds numbers.
    """
    if conv is None or conv.kernel_size == 1:
        return spectrum
    return torch.stack([spectrum[..., 0].clamp(max=0), spectrum[..., 1].clamp(min=0)], dim=-1)


def last_columns(
    window: torch.Tensor, count: int, lengths: torch.Tensor | None, num_new: int, like: torch.Tensor
) -> torch.Tensor:
    """The ``count`` columns of ``window`` (B, count + T, ...) that end at each row's length, in the dtype of ``like``.

    Where the new columns are float32 or float64 this is exact; a state handed on in bfloat16 is kept in float32.
    """
    if lengths is None:
        return window[:, window.shape[1] - count :].to(like.dtype)
    index = lengths.unsqueeze(1) + torch.arange(count, device=window.device)
    index = index.view(*index.shape, *[1] * (window.dim() - 2)).expand(-1, -1, *window.shape[2:])
    return window.gather(1, index).to(like.dtype)


class RMSNorm(nn.Module):
    """y = w x / sqrt(mean(x^2) + eps), computed in at least float32 (Zhang and Sennrich, 2019, equation 4)."""

    def __init__(self, size: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis."""
        return rms_norm(hidden_states, self.weight.to(hidden_states.dtype), self.eps)


def make_norm(config: MemoryConfig, size: int | None = None) -> nn.Module:
    """The norm that the config names, over ``size`` channels (default: the hidden size)."""
    size = size or config.hidden_size
    if config.norm == "rms":
        return RMSNorm(size, config.norm_eps)
    if config.norm == "layer":
        return nn.LayerNorm(size, config.norm_eps)
    return nn.Identity()


def mark_residual_output(linear: nn.Linear) -> nn.Linear:
    """Mark a projection that writes into the residual stream, for ``scale_residual_init``."""
    linear.writes_residual = True
    return linear


def split_state(state: State | None, part: str) -> State | None:
    """The leaves of one part, without their prefix; None where there is no state."""
    if state is None:
        return None
    prefix = f"{part}."
    return {name[len(prefix) :]: leaf for name, leaf in state.items() if name.startswith(prefix)}


def join_state(parts: Mapping[str, State | None]) -> State:
    """One flat state whose leaves carry the name of their part as prefix."""
    return {f"{part}.{name}": leaf for part, leaves in parts.items() for name, leaf in (leaves or {}).items()}


def sinusoidal_positions(position_ids: torch.Tensor, size: int) -> torch.Tensor:
    """Sine and cosine position codes (Vaswani et al., 2017, section 3.5), computed in float32.

    Args:
        position_ids: Positions (B, T).
        size: Number of channels D.

    Returns:
        Codes (B, T, D): sines in the even channels, cosines in the odd ones.
    """
    frequency = torch.exp(
        torch.arange(0, size, 2, dtype=torch.float32, device=position_ids.device) * (-math.log(10_000.0) / size)
    )
    angle = position_ids.unsqueeze(-1).float() * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :size]


def l2_normalize(hidden_states: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis: finite gradients at zero, the form that fla and transformers use."""
    return hidden_states * torch.rsqrt(hidden_states.square().sum(-1, keepdim=True) + eps)


def elu_plus_one(hidden_states: torch.Tensor) -> torch.Tensor:
    """elu(x) + 1, the positive feature map of the linear transformer (Katharopoulos et al., 2020, equation 7)."""
    return F.elu(hidden_states) + 1


def real_token_mask(lengths: torch.Tensor, num_columns: int) -> torch.Tensor:
    """True where a column lies before its row's length: (B, T)."""
    return torch.arange(num_columns, device=lengths.device) < lengths.unsqueeze(1)


def zero_padding(hidden_states: Any, lengths: torch.Tensor | None) -> Any:
    """Zero the columns at and after each row's length."""
    if lengths is None:
        return hidden_states
    mask = real_token_mask(lengths, hidden_states.shape[1])
    return hidden_states.masked_fill(~mask.view(*mask.shape, *[1] * (hidden_states.dim() - 2)), 0)
