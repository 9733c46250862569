"""The scan of flash-linear-attention's HGRN (0.6: ``fla.ops.hgrn.chunk_hgrn``).

It takes the logarithms of forget gates, so neither complex nor negative decays, and gives a state before the first step
no gradient: that state is added to the first input instead, h_1 = (b_1 + a_1 h_0), and the last state is the last
output.
"""

import torch
from torch import Tensor

from hf_memory.ops.backends.fla_common import PACKAGE, refusal_of_package
from hf_memory.ops.backends.hub_kernels import package_function

__all__ = ["ORIGIN", "PACKAGE", "refusal", "scan"]

chunk_hgrn, ORIGIN = package_function("fla.ops.hgrn", "chunk_hgrn")

DTYPES = (torch.float32,)
SMALLEST = 1e-30  # added to gates: without effect on what is not 0, and the logarithm of 0 has no gradient


def refusal(*, device: torch.device, dtype: torch.dtype, forget_gate: bool = False) -> str | None:
    """Say why the kernel cannot run on such tensors, or nothing where it can."""
    reason = refusal_of_package(device, dtype, DTYPES)
    if reason is None and not forget_gate:
        reason = "its kernel takes the logarithm of decays, which must be forget gates"
    return reason


def scan(gate: Tensor, inputs: Tensor, initial_state: Tensor) -> Tensor:
    """Run the kernel.

    Args:
        gate: a (B, T, ...), between 0 and 1; the first two axes may have length 1.
        inputs: b (B, T, ...).
        initial_state: h_0 (B, ...).

    Returns:
        The states (B, T, ...).
    """
    # A gate of 1 stays 1 in float32, so that no logarithm is above 0.
    log_gate = (gate + SMALLEST).log().expand_as(inputs)
    first = inputs[:, :1] + gate[:, :1] * initial_state.unsqueeze(1)
    inputs = torch.cat([first, inputs[:, 1:]], dim=1)
    states, _ = chunk_hgrn(inputs.flatten(2), log_gate.flatten(2))
    return states.view_as(inputs)
