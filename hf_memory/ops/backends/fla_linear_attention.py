"""The chunked linear attention of flash-linear-attention (0.6: ``fla.ops.simple_gla.chunk_simple_gla``).

It takes the scalar decay as its logarithm, in the layout of this package, and keeps the state in float32. Its own
normaliser adds up keys in their half precision, so the sum of the weights is one more column of the values here, as in
torch. float16 is refused, which that sum overflows after some thousand steps. There is no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, even_columns, refusal_of_heads
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "linear_attention", "refusal"]

chunk_simple_gla, ORIGIN = package_function("fla.ops.simple_gla", "chunk_simple_gla")

DTYPES = (torch.bfloat16,)


def refusal(*, device: torch.device, dtype: torch.dtype, key_dim: int = 2) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    return refusal_of_heads(device, dtype, DTYPES, key_dim)


def linear_attention(
    query: Tensor, key: Tensor, columns: Tensor, log_decay: Tensor | None, state: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Run the kernel; a step of zero columns and zero log decay leaves the state.

    Args:
        query: q (B, T, H, K).
        key: k (B, T, H, K).
        columns: Values (B, T, H, V), with a column of ones where the weights are to be summed.
        log_decay: log a (B, T, H), or None for a = 1.
        state: S_0 (B, H, K, V).
        dtype: The dtype of the products.

    Returns:
        Sums (B, T, H, V) and the final state (B, H, K, V), both in float32.
    """
    (values, start), width = even_columns(columns.to(dtype), state), columns.shape[-1]
    sums, final = chunk_simple_gla(
        query.to(dtype),
        key.to(dtype),
        values,
        g=None if log_decay is None else log_decay.float(),
        scale=1.0,
        initial_state=start,
        output_final_state=True,
    )
    return sums[..., :width].float(), final[..., :width]
