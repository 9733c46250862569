"""The chunked delta rule of flash-linear-attention (0.6: ``fla.ops.delta_rule.chunk_delta_rule``).

Its layout and the axes of its state are those of this package; only its default scale of the query is not. It takes
half precision alone and at most 256 numbers per key, keeps the state in float32, and has no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, refusal_of_package
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "delta_rule", "refusal"]

chunk_delta_rule, ORIGIN = package_function("fla.ops.delta_rule", "chunk_delta_rule")

DTYPES = (torch.bfloat16, torch.float16)
MOST_KEY_DIM = 256


def refusal(*, device: torch.device, dtype: torch.dtype, key_dim: int = 2) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    reason = refusal_of_package(device, dtype, DTYPES)
    if reason is None and (key_dim > MOST_KEY_DIM or key_dim % 2):
        reason = f"its keys have an even number of at most {MOST_KEY_DIM} dimensions, not {key_dim}"
    return reason


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
    columns = value.shape[-1]
    odd = columns % 2  # of half precision the kernel takes an even number of columns
    padded = torch.nn.functional.pad(value, (0, odd))
    state = None if initial_state is None else torch.nn.functional.pad(initial_state.float(), (0, odd))
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
