"""Runs that differ in learning rate and seed alone, trained side by side as one stacked model in one process.

Each replica stays a model of its own, with its own parameters, rates and evaluations; only the forward and backward
passes are shared, by ``torch.func.vmap`` over stacked weights. The rows of all replicas are the same, because the seed
of the data is apart from that of the weights. In float64 a replica equals its single run.
"""

import dataclasses
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainingArguments

from hf_memory.data.collator import MemoryCollator
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.provenance import backend_name
from hf_memory.experiments.run import Course
from hf_memory.experiments.training import MemoryTrainer
from hf_memory.models.layers import StatefulLayer
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.ops.backends.dispatch import use_backend
from hf_memory.studies.watched import Beat, History, WatchedExperiment

logger = logging.getLogger(__name__)


def why_not_stackable(model: nn.Module) -> str:
    """Why replicas of a model cannot be trained as one; empty where they can."""
    alone = sorted({type(m).__name__ for m in model.modules() if isinstance(m, StatefulLayer) and not m.stackable})
    if alone:
        return f"{', '.join(alone)} cannot be stacked"
    configs = [module.config.to_dict() for module in model.modules() if hasattr(module, "config")]  # a layer's own too
    rates = {n: v for config in configs for n, v in config.items() if "dropout" in n and isinstance(v, float) and v > 0}
    return "; ".join(f"{name}={rate} draws noise, and each run has its own seed" for name, rate in rates.items())


class StackedModel(nn.Module):
    """Models of one architecture, run side by side on the same rows.

    Args:
        replicas: The models. They stay the owners of their parameters.

    Raises:
        ValueError: If there are none, they have different configs, or they cannot be stacked.
    """

    def __init__(self, replicas: Sequence[MemoryPreTrainedModel]):
        super().__init__()
        if not replicas:
            raise ValueError("replicas: at least one model is needed")
        if any(type(m) is not type(replicas[0]) or m.config != replicas[0].config for m in replicas):
            raise ValueError("replicas: all models must have one class and one config")
        if reason := why_not_stackable(replicas[0]):
            raise ValueError(f"replicas: {reason}")
        self.replicas = nn.ModuleList(replicas)

    def forward(self, **inputs: Any) -> dict[str, torch.Tensor]:
        """Run all replicas on the same inputs.

        Args:
            **inputs: Arguments of the models' forward, with labels.

        Returns:
            ``losses`` (R,), one per replica, and their sum ``loss``, whose gradient is each replica's own.
        """
        template = self.replicas[0]
        weights = _stack([dict(replica.named_parameters()) for replica in self.replicas])
        for weight in weights.values():
            if weight.requires_grad:
                # Two weights that are added have one gradient between them, and clipping would scale it twice.
                weight.register_hook(torch.clone)
        buffers = _stack([dict(replica.named_buffers()) for replica in self.replicas])

        def loss(weights: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> torch.Tensor:
            return functional_call(template, (weights, buffers), (), {**inputs, "use_cache": False}).loss

        # Kernels, and the fused attention of the CPU, have no rule for a further batch dimension.
        attention = sdpa_kernel(SDPBackend.MATH) if template.device.type == "cpu" else nullcontext()
        with use_backend("torch"), attention:
            losses = vmap(loss)(weights, buffers)
        return {"loss": losses.sum(), "losses": losses}


def _stack(named: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([tensors[name] for tensors in named]) for name in named[0]}


class StackedTrainer(MemoryTrainer):
    """Trainer of a :class:`StackedModel`: every replica has its own learning rate, and is clipped by its own norm.

    Args:
        experiments: The run of each replica.
        settings: The arguments of each replica's run.
        *args: As for ``Trainer``.
        **kwargs: As for ``Trainer``.
    """

    def __init__(
        self, experiments: Sequence[WatchedExperiment], settings: Sequence[TrainingArguments], *args: Any, **kwargs: Any
    ):
        self.experiments, self.settings = experiments, settings
        super().__init__(*args, **kwargs)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """One optimiser with the groups of every replica; the schedule scales each group's own rate."""
        if self.optimizer is None:
            replicas = self.model.replicas
            cls, kwargs = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            groups = [
                group
                for replica, experiment, own in zip(replicas, self.experiments, self.settings, strict=True)
                for group in replica.optim_groups(own.learning_rate, own.weight_decay, mode=experiment.optim_groups)
            ]
            self.optimizer = cls(groups, **kwargs)
            self.optimizer.register_step_pre_hook(self._clip)
        return self.optimizer

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        """No norm over all replicas: Trainer scales by what it finds, which is NaN for all once one has diverged."""
        return 0.0

    def _clip(self, *args: Any) -> None:
        for replica, own in zip(self.model.replicas, self.settings, strict=True):
            if own.max_grad_norm:
                nn.utils.clip_grad_norm_(replica.parameters(), own.max_grad_norm)


class _Watch(TrainerCallback):
    """The evaluations of all replicas. One that ends before the others leaves with the weights that it has then."""

    def __init__(self, histories: Sequence[History]):
        self.histories = histories
        self.ended: dict[int, tuple[int, int, dict[str, torch.Tensor]]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for index, history in enumerate(self.histories):
            own = TrainerControl()
            if index not in self.ended:
                history.on_step_end(args, state, own, model=model.replicas[index])
            if own.should_training_stop:
                weights = {name: value.clone() for name, value in model.replicas[index].state_dict().items()}
                self.ended[index] = (state.global_step, int(state.num_input_tokens_seen), weights)
        if len(self.ended) == len(self.histories):
            control.should_training_stop = True


def run_stacked(experiments: Sequence[WatchedExperiment], results: Path, beat: Beat) -> None:
    """Run experiments that differ in learning rate and seed alone, and write what each of them leaves.

    The training time in their rows is an equal share of that of the stack. One that cannot be evaluated leaves nothing
    but a line in the log.

    Raises:
        ValueError: If the experiments differ in more, or cannot be stacked.
    """
    with ExitStack() as folders:
        settings = [
            experiment.make_arguments(folders.enter_context(tempfile.TemporaryDirectory(prefix="hf_memory-")))
            for experiment in experiments
        ]
        shared = [_shared(*pair) for pair in zip(experiments, settings, strict=True)]
        if any(other != shared[0] for other in shared):
            raise ValueError("a stack holds runs that differ in learning rate and seed alone")
        if settings[0].lr_scheduler_type == "polynomial":
            raise ValueError("schedule: 'polynomial' knows one learning rate only")
        rows = experiments[0].load_rows(settings[0])
        watch = _Watch([History(experiment, rows, beat) for experiment in experiments])
        trainer, seconds = _train(experiments, settings, rows, watch)
        for index, (experiment, own, history) in enumerate(zip(experiments, settings, watch.histories, strict=True)):
            model, course = trainer.model.replicas[index], Course.of(trainer, seconds / len(experiments))
            if index in watch.ended:
                steps, tokens, weights = watch.ended[index]
                model.load_state_dict(weights)
                course = Course(steps, tokens, course.seconds)
            backend = f"{backend_name()}, trained in torch as one of {len(experiments)} replicas"
            try:
                experiment.conclude(model, own, course, history, rows, results, backend=backend)
            except Exception:  # what went wrong belongs to this run alone
                logger.exception("%s, seed %d could not be evaluated", experiment.arm, own.seed)


def _shared(experiment: WatchedExperiment, arguments: TrainingArguments) -> dict[str, Any]:
    """What all runs of a stack have in common."""
    definition = experiment.definition(arguments)
    training = {name: value for name, value in definition["training"].items() if name != "learning_rate"}
    own = ("seed", "learning_rate_grid", "training")
    return {**{name: value for name, value in definition.items() if name not in own}, "training": training}


def _train(
    experiments: Sequence[WatchedExperiment],
    settings: Sequence[TrainingArguments],
    rows: Mapping[str, Any],
    watch: _Watch,
) -> tuple[StackedTrainer, float]:
    """The trainer after training, and the seconds it took."""
    replicas = [experiment.make_model(own.seed) for experiment, own in zip(experiments, settings, strict=True)]
    trainer = StackedTrainer(
        experiments,
        settings,
        model=StackedModel(replicas),
        args=dataclasses.replace(settings[0], max_grad_norm=0.0),  # the norm of all replicas together means nothing
        train_dataset=TensorRows(rows["train"]),
        data_collator=MemoryCollator(),
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)
    started = time.perf_counter()
    trainer.train()
    return trainer, time.perf_counter() - started
