"""Mamba-2's chunked scan of mamba-ssm (2.3), by its three steps: states of chunks, states between them, outputs.

The three are taken rather than the function that joins them, ``mamba_chunk_scan_combined``: that one multiplies inputs
by the time step that also sets the decay, and to divide by it again would cost the digits of its gradient where it is
small. So time steps are ones here, and the sums of log decays inside of chunks are given. States lie as (V, K) there.
The kernels are written in Triton, so that the package needs no compiled extension for them.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.dispatch import in_function_transform
from hf_memory.ops.backends.hub_kernels import package_function

PACKAGE = "mamba-ssm"
chunk_state, ORIGIN = package_function("mamba_ssm.ops.triton.ssd_chunk_state", "chunk_state")
state_passing, _ = package_function("mamba_ssm.ops.triton.ssd_state_passing", "state_passing")
chunk_scan, _ = package_function("mamba_ssm.ops.triton.ssd_chunk_scan", "chunk_scan")

DEVICE = "cuda"
DTYPES = (torch.bfloat16,)
MOST_KEY_DIM = 256
LEAST_CHUNK, MOST_CHUNK = 16, 256
MULTIPLE = 8


def refusal(*, device: torch.device, dtype: torch.dtype, key_dim: int = MULTIPLE) -> str | None:
    """Say why the kernels cannot run on such tensors, or nothing where they can."""
    if device.type != DEVICE:
        return f"its kernels need tensors on {DEVICE}, not on {device.type}"
    if dtype not in DTYPES:
        return f"its kernels are used for bfloat16, not for {dtype}"
    if key_dim > MOST_KEY_DIM or key_dim % MULTIPLE:
        return f"its keys have a multiple of {MULTIPLE} and at most {MOST_KEY_DIM} dimensions, not {key_dim}"
    return "its kernels have no rule for the transforms of torch.func" if in_function_transform() else None


def linear_attention(
    query: Tensor, key: Tensor, columns: Tensor, log_decay: Tensor | None, state: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Run the kernels; a step of zero columns and zero log decay leaves the state.

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
    time, width = columns.shape[1], columns.shape[-1]
    chunk = min(MOST_CHUNK, max(LEAST_CHUNK, 1 << (time - 1).bit_length()))
    later, wider = -time % chunk, -width % MULTIPLE
    query, key = (_padded(tensor.to(dtype), later, 0) for tensor in (query, key))
    values = _padded(columns.to(dtype), later, wider)
    decay = columns.new_zeros(columns.shape[:3]) if log_decay is None else log_decay
    decay = torch.nn.functional.pad(decay.float(), (0, 0, 0, later))
    sums = decay.transpose(1, 2).unflatten(2, (-1, chunk)).cumsum(-1)  # (B, H, T / c, c)
    steps = torch.ones_like(sums)
    own = chunk_state(key, values, steps, sums)
    start = torch.nn.functional.pad(state.float().mT, (0, 0, 0, wider)).flatten(-2)
    before, final = state_passing(own.flatten(-2), sums[..., -1].contiguous(), start)
    output = chunk_scan(key, query, values, steps, sums, before.view_as(own))
    return output[:, :time, :, :width].float(), final.view(*final.shape[:2], *own.shape[-2:]).mT[..., :width]


def _padded(tensor: Tensor, steps: int, columns: int) -> Tensor:
    """More steps and columns, of zeros."""
    return torch.nn.functional.pad(tensor, (0, columns, 0, 0, 0, steps)).contiguous()
