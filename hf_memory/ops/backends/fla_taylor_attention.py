"""The fused Taylor attention of flash-linear-attention (0.6: ``fla.ops.based.fused_chunk_based``).

It holds the second-order features of at most 16 inputs in registers and never writes them to memory. It starts from an
empty past and returns no state, so an initial state is refused and the final one is summed up by the caller. Its
normaliser adds 1e-6 and not ``eps``: since every weight is at least 1/2, that is below the precision of bfloat16, the
only dtype that is used (the sums overflow float16). There is no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, refusal_of_package
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "refusal", "taylor_attention"]

fused_chunk_based, ORIGIN = package_function("fla.ops.based", "fused_chunk_based")

DTYPES = (torch.bfloat16,)
MOST_INPUTS = 16


def refusal(
    *, device: torch.device, dtype: torch.dtype, key_dim: int = 16, has_initial_state: bool = False
) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    reason = refusal_of_package(device, dtype, DTYPES)
    if reason is None and key_dim > MOST_INPUTS:
        reason = f"its keys have at most {MOST_INPUTS} dimensions, not {key_dim}"
    if reason is None and has_initial_state:
        reason = "its kernel has no initial state"
    return reason


def taylor_attention(query: Tensor, key: Tensor, value: Tensor, normalize: bool) -> Tensor:
    """Run the kernel: outputs (B, T, H, V) for queries and keys (B, T, H, f) and values (B, T, H, V)."""
    dtype = value.dtype
    return fused_chunk_based(query.to(dtype), key.to(dtype), value, scale=query.shape[-1] ** -0.5, use_norm=normalize)
