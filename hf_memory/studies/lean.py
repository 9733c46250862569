"""Trainer without what no result reads: bookkeeping at every step, which costs a tiny model as much as arithmetic."""

import importlib.util
import sys
from typing import Any

import torch
from torch import nn

from hf_memory.experiments.training import MemoryTrainer


class LeanTrainer(MemoryTrainer):
    """Trainer for steps of a few milliseconds; weights are those of :class:`MemoryTrainer`, bit by bit.

    Left out are the norm of gradients that are not clipped, the count of operations, and the mode of every module,
    which a callback that evaluates sets back itself. One difference remains: where the norm of the gradients overflows
    and nothing is clipped, ``MemoryTrainer`` turns all of them into NaN, and here they stand.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        mark_absent("lomo_optim")

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """One forward and backward pass."""
        if not self._is_plain():
            return super().training_step(model, inputs, num_items_in_batch)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
        loss.backward()
        return loss.detach()

    def _is_plain(self) -> bool:
        """Whether a step is one pass of one process, its loss scaled by nobody."""
        args, accelerator = self.args, self.accelerator
        is_alone = args.world_size == 1 and args.n_gpu <= 1 and args.gradient_accumulation_steps == 1
        return is_alone and accelerator.scaler is None and self.model_accepts_loss_kwargs

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: no row holds it."""
        return 0

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm where gradients are clipped, which is known then; else none."""
        return grad_norm


def mark_absent(package: str) -> None:
    """Let Python know for good that a package is not installed.

    Accelerate asks for its optimisers' packages at every step, and each time Python would search all folders.
    """
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        sys.modules[package] = None  # type: ignore[assignment]
