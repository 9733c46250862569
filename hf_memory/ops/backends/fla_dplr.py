"""The chunked generalised delta rule of flash-linear-attention (0.6: ``chunk_dplr_delta_rule``), that of RWKV-7.

Its step is S_t = (D_t + b_t a_t^T) S_{t-1} + k_t v_t^T: it reads the state before the decay, so that its a_t is minus
the probe times the decay, and its b_t is what is erased along. It has a decay for each key, takes half precision alone
and at most 256 numbers per key, keeps the state in float32, and has no second derivative.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, even_columns, refusal_of_heads
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "delta_rule", "refusal"]

chunk_dplr_delta_rule, ORIGIN = package_function("fla.ops.generalized_delta_rule", "chunk_dplr_delta_rule")

DTYPES = (torch.bfloat16, torch.float16)
MOST_KEY_DIM = 256


def refusal(
    *,
    device: torch.device,
    dtype: torch.dtype,
    key_dim: int = 2,
    decay: str = "none",
    has_beta: bool = False,
    has_sign: bool = False,
    steps: int = 1,
) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can; it takes every rule."""
    return refusal_of_heads(device, dtype, DTYPES, key_dim, MOST_KEY_DIM)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor,
    probe: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Run the kernel; a step without key, erase and log decay leaves the state.

    Args:
        query: q (B, T, H, K).
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        erase: e (B, T, H, K).
        probe: p (B, T, H, K).
        log_decay: log a (B, T, H) or (B, T, H, K); None for a = 1.
        state: S_0 (B, H, K, V).
        dtype: The dtype of the products.

    Returns:
        Outputs (B, T, H, V) in that dtype and the final state (B, H, K, V) in float32.
    """
    if log_decay is None:
        decay = torch.zeros_like(key, dtype=torch.float32)
    else:
        decay = log_decay.float()
        decay = decay if decay.dim() == 4 else decay.unsqueeze(-1).expand(key.shape)
        probe = probe * decay.exp()
    (values, start), columns = even_columns(value.to(dtype), state), value.shape[-1]
    output, final = chunk_dplr_delta_rule(
        query.to(dtype),
        key.to(dtype),
        values,
        -probe.to(dtype),
        erase.to(dtype),
        decay.contiguous(),
        scale=1.0,
        initial_state=start,
        output_final_state=True,
    )
    return output[..., :columns], final[..., :columns]
