"""The chunked delta rule of flash-linear-attention (0.6: ``fla.ops.delta_rule.chunk_delta_rule``).

Its layout and the axes of its state are those of this package; only its default scale of the query is not. It takes
half precision alone and at most 256 numbers per key, keeps the state in float32, and has no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, even_columns, refusal_of_heads
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "delta_rule", "refusal"]

chunk_delta_rule, ORIGIN = package_function("fla.ops.delta_rule", "chunk_delta_rule")

DTYPES = (torch.bfloat16, torch.float16)
MOST_KEY_DIM = 256


def refusal(*, device: torch.device, dtype: torch.dtype, key_dim: int = 2) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    return refusal_of_heads(device, dtype, DTYPES, key_dim, MOST_KEY_DIM)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run the kernel; a step with beta 0 leaves the state.

    Args:
        query: q (B, T, H, K).
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        beta: Strength of the writes (B, T, H).
        initial_state: S_0 (B, H, K, V), zeros if None.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value`` and the state (B, H, K, V) in float32.
    """
    (padded, state), columns = even_columns(value, initial_state), value.shape[-1]
    output, final = chunk_delta_rule(
        query.to(value.dtype),
        key.to(value.dtype),
        padded,
        beta.float(),
        scale=1.0,
        initial_state=state,
        output_final_state=True,
    )
    return output[..., :columns], final[..., :columns]
