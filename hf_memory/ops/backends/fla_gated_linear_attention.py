"""Chunked attention with a decay for each key of flash-linear-attention (0.6: ``chunk_gla`` and ``chunk_rwkv6``).

The first reads after the step of a token, the second before it, with a bonus for the step itself. Both take decays as
logarithms, in the layout of this package, and keep the state in float32; only their default scale of the query is
another. float16 is refused, which sums over long inputs overflow. There is no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, even_columns, refusal_of_heads
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "gated_linear_attention", "refusal"]

chunk_gla, ORIGIN = package_function("fla.ops.gla", "chunk_gla")
chunk_rwkv6, _ = package_function("fla.ops.rwkv6", "chunk_rwkv6")

DTYPES = (torch.bfloat16,)


def refusal(
    *, device: torch.device, dtype: torch.dtype, key_dim: int = 2, read: str = "after", decay: str = "key"
) -> str | None:
    """Say why the kernels cannot run on such tensors, or nothing where they can; they take every read and decay."""
    return refusal_of_heads(device, dtype, DTYPES, key_dim)


def gated_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    bonus: Tensor | None,
    read: str,
    state: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Run the kernel of this read; a step of zero values and zero log decay leaves the state.

    Args:
        query: q (B, T, H, K).
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        log_decay: log a (B, T, H, K).
        bonus: u (H, K) of the step itself where it is read before; zeros if None.
        read: ``"after"`` or ``"before"``.
        state: S_0 (B, H, K, V).
        dtype: The dtype of the products.

    Returns:
        Outputs (B, T, H, V) and the final state (B, H, K, V), both in float32.
    """
    (values, start), columns = even_columns(value.to(dtype), state), value.shape[-1]
    inputs = query.to(dtype), key.to(dtype), values, log_decay.float().contiguous()
    options = {"scale": 1.0, "initial_state": start, "output_final_state": True}
    if read == "after":
        output, final = chunk_gla(*inputs, **options)
    else:
        bonus = query.new_zeros(query.shape[2:]) if bonus is None else bonus
        output, final = chunk_rwkv6(*inputs, bonus.float(), **options)
    return output[..., :columns].float(), final[..., :columns]
