"""The recurrent WKV of flash-linear-attention (0.6: ``fla.ops.rwkv4.fused_recurrent_rwkv4``).

It runs in float32 whatever its inputs, has no lengths, applies -exp to its decay itself, and wants the state with an
axis for time: (B, 3, 1, D), the numbers a, b and m of this package in the same order. There is no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, refusal_of_package
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "refusal", "wkv"]

fused_recurrent_rwkv4, ORIGIN = package_function("fla.ops.rwkv4", "fused_recurrent_rwkv4")

DTYPES = (torch.float32,)
SMALLEST = 1e-30  # added to -w: without effect on what is not 0, and the logarithm of 0 has no gradient


def refusal(*, device: torch.device, dtype: torch.dtype, has_lengths: bool = False) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can; ``dtype`` is that of the state."""
    reason = refusal_of_package(device, dtype, DTYPES)
    if reason is None and has_lengths:
        reason = "its kernel has no lengths"
    return reason


def wkv(key: Tensor, value: Tensor, log_decay: Tensor, bonus: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """Run the kernel.

    Args:
        key: Keys (B, T, D).
        value: Values (B, T, D).
        log_decay: w (D,), at most 0.
        bonus: u (D,).
        initial_state: Numerator, denominator and exponent (B, 3, D).

    Returns:
        Averages (B, T, D) and the state (B, 3, D), both in float32.
    """
    weights = torch.log(SMALLEST - log_decay.float())
    output, state = fused_recurrent_rwkv4(
        weights, bonus.float(), key.float(), value.float(), initial_state.float().unsqueeze(2)
    )
    return output, state.squeeze(2)
