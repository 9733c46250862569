"""The distance to the limit on a CPU: what a training step cannot do without, over what the machine does at its best.

Operations are those of matrix products, convolutions and recurrent layers of torch, as torch counts them; elementwise
work and compiled loops are not counted. Bytes are the weights, read in both passes, and their gradients, and what a
layer takes in and gives, in both passes. So the time below which no step can fall is no more than that of these two.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

SIZES = (1024, 1 << 24)
"""Side of the matrices, and numbers of the copy, that peaks are measured with."""


class Step:
    """A training step without an optimiser, which knows what it cannot do without.

    Args:
        module: What is trained.
        loss: Its loss.
        numbers: Numbers that its layers take in and give, in one pass.
    """

    def __init__(self, module: nn.Module, loss: Callable[[], Tensor], numbers: int = 0):
        self.module, self.loss, self.numbers = module, loss, numbers

    def __call__(self) -> None:
        self.module.zero_grad(set_to_none=True)
        self.loss().backward()

    def bytes(self) -> int:
        """Bytes that are moved at least."""
        weights = sum(parameter.numel() * parameter.element_size() for parameter in self.module.parameters())
        return 3 * weights + 2 * 4 * self.numbers

    def operations(self) -> int:
        """Operations of matrix products, counted in one step."""
        with FlopCounterMode(display=False, custom_mapping=_RECURRENT) as counter:
            self()
        return int(counter.get_total_flops())


def _layer_operations(
    inputs: torch.Size, input_weight: torch.Size, hidden_weight: torch.Size, *_: Any, **__: Any
) -> int:
    """Of torch's own recurrent layers: two products for each token."""
    return 2 * inputs[0] * inputs[1] * (input_weight.numel() + hidden_weight.numel())


def _layer_operations_back(*args: Any, **kwargs: Any) -> int:
    return 2 * _layer_operations(*args, **kwargs)


_RECURRENT = {
    torch.ops.aten.mkldnn_rnn_layer: _layer_operations,
    torch.ops.aten.mkldnn_rnn_layer_backward: _layer_operations_back,
}


@functools.cache
def peaks(threads: int, size: int, numbers: int) -> tuple[float, float]:
    """Operations per second of a float32 product, and bytes per second of a copy, at their best of several."""
    left, right = torch.randn(2, size, size).unbind(0)
    product, source = torch.empty(size, size), torch.randn(numbers)
    target = torch.empty_like(source)
    multiply = min(_seconds(lambda: torch.mm(left, right, out=product)) for _ in range(7))
    copy = min(_seconds(lambda: target.copy_(source)) for _ in range(7))
    return 2 * size**3 / multiply, 2 * 4 * numbers / copy


def _seconds(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def least_seconds(step: Step) -> float:
    """Seconds below which a step cannot fall, on as many threads as torch has now."""
    operations, moved = peaks(torch.get_num_threads(), *SIZES)
    return max(step.operations() / operations, step.bytes() / moved)
