"""The fused attention with forget gates of flash-linear-attention (0.6: ``parallel_forgetting_attn``).

It takes the logarithms of the gates themselves and adds them up, scales queries by 1 / sqrt(K) as this package does,
and knows neither a history nor positions: all columns are tokens, one after the other. A window is refused, which
counts positions here and columns there. Half precision alone, at most 256 numbers per key, no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, even_columns, refusal_of_heads
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "attention", "refusal"]

parallel_forgetting_attn, ORIGIN = package_function("fla.ops.forgetting_attn", "parallel_forgetting_attn")

DTYPES = (torch.bfloat16, torch.float16)
MOST_KEY_DIM = 256


def refusal(
    *,
    device: torch.device,
    dtype: torch.dtype,
    key_dim: int = 2,
    has_history: bool = False,
    has_window: bool = False,
) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    reason = refusal_of_heads(device, dtype, DTYPES, key_dim, MOST_KEY_DIM)
    if reason is None and has_history:
        reason = "its kernel has no columns before the first query"
    if reason is None and has_window:
        reason = "its kernel counts columns and not positions in a window"
    return reason


def attention(query: Tensor, key: Tensor, value: Tensor, log_forget: Tensor) -> Tensor:
    """Run the kernel: outputs (B, T, H, V) for queries and keys (B, T, H, K), values, and log gates (B, T, H)."""
    dtype, columns = value.dtype, value.shape[-1]
    padded, _ = even_columns(value, None)
    output = parallel_forgetting_attn(query.to(dtype), key.to(dtype), padded.contiguous(), log_forget.float())
    return output[..., :columns]
