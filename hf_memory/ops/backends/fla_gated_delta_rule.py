"""Chunked delta rules of flash-linear-attention whose strengths are known (0.6).

``chunk_delta_rule`` without decay, ``chunk_gated_delta_rule`` with one number for all keys of a head, ``chunk_kda``
with one for each key, and ``chunk_gated_delta_product`` with several steps in a token, of which the first decays by one
number or none. Their layout and the axes of their states are those of this package; only their default scale of the
query is not. They take half precision alone and at most 256 numbers per key, keep the state in float32, and have no
second derivative.
"""

from typing import Any

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, even_columns, refusal_of_heads
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "delta_rule", "refusal"]

chunk_delta_rule, ORIGIN = package_function("fla.ops.delta_rule", "chunk_delta_rule")
chunk_gated_delta_rule, _ = package_function("fla.ops.gated_delta_rule", "chunk_gated_delta_rule")
chunk_kda, _ = package_function("fla.ops.kda", "chunk_kda")
chunk_gated_delta_product, _ = package_function("fla.ops.gated_delta_product", "chunk_gated_delta_product")

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
    """Say why no kernel can run on such tensors, or nothing where one can."""
    reason = refusal_of_heads(device, dtype, DTYPES, key_dim, MOST_KEY_DIM)
    if reason is None and not has_beta:
        reason = "its kernels write what they erase, with a strength that the caller names"
    if reason is None and steps > 1 and decay == "key":
        reason = "its kernel of several steps in a token has no decay for each key"
    if reason is None and steps > 1 and has_sign:
        reason = "its kernel of several steps in a token has no signs"
    return reason


def delta_rule(
    query: Tensor,
    probe: Tensor,
    value: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Run the kernel of this rule; a step with beta 0 and log decay 0 leaves the state.

    Args:
        query: q (B, T, H, K).
        probe: p (B, n T, H, K), for n steps a token.
        value: v (B, n T, H, V).
        beta: Strength of the writes (B, n T, H).
        log_decay: log a (B, T, H) or (B, T, H, K), of the first step of a token; None for a = 1.
        state: S_0 (B, H, K, V).
        dtype: The dtype of the products.

    Returns:
        Outputs (B, T, H, V) in that dtype and the final state (B, H, K, V) in float32.
    """
    steps = probe.shape[1] // query.shape[1]
    (values, start), columns = even_columns(value.to(dtype), state), value.shape[-1]
    inputs = query.to(dtype), probe.to(dtype), values
    options: dict[str, Any] = {"scale": 1.0, "initial_state": start, "output_final_state": True}
    options["beta"] = beta.float()
    if steps > 1:
        rule, options["num_householder"] = chunk_gated_delta_product, steps
    elif log_decay is None:
        rule = chunk_delta_rule
    else:
        rule = chunk_gated_delta_rule if log_decay.dim() == 3 else chunk_kda
    if rule is not chunk_delta_rule:
        options["g"] = None if log_decay is None else log_decay.float().contiguous()
    output, final = rule(*inputs, **options)
    return output[..., :columns], final[..., :columns]
