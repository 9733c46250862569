"""Runs that differ in learning rate and seeds alone, trained side by side as one stacked model in one process.

Each replica stays a model of its own, with its own parameters, rates and evaluations; only the forward and backward
passes are shared, by ``torch.func.vmap`` over stacked weights. Where the runs have one seed of the data, so that all
meet the same rows, a batch is shared too; else each replica has rows and an order of its own, those of its single run.
In float64 a replica equals its single run.
"""

import dataclasses
import itertools
import logging
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainingArguments

from hf_memory.data.collator import MemoryCollator
from hf_memory.data.folders import working_folder
from hf_memory.data.tensors import StackedRows, TensorRows
from hf_memory.experiments.provenance import backend_name
from hf_memory.experiments.run import Course
from hf_memory.models.heads import MemoryHeadModel
from hf_memory.models.inputs import check_labels
from hf_memory.models.layers import StatefulLayer
from hf_memory.ops.backends.dispatch import use_backend
from hf_memory.studies.lean import LeanTrainer
from hf_memory.studies.watched import WORK, Beat, History, WatchedExperiment
from hf_memory.tasks.base import IGNORE_INDEX

logger = logging.getLogger(__name__)

Named = Mapping[str, torch.Tensor]
"""Parameters or buffers by name."""


def why_not_stackable(model: nn.Module) -> str:
    """Why replicas of a model cannot be trained as one; empty where they can."""
    alone = sorted({type(m).__name__ for m in model.modules() if isinstance(m, StatefulLayer) and not m.stackable})
    if alone:
        return f"{', '.join(alone)} cannot be stacked"
    configs = [module.config.to_dict() for module in model.modules() if hasattr(module, "config")]  # a layer's own too
    rates = {n: v for config in configs for n, v in config.items() if "dropout" in n and isinstance(v, float) and v > 0}
    return "; ".join(f"{name}={rate} draws noise, and each run has its own seed" for name, rate in rates.items())


class StackedModel(nn.Module):
    """Models of one architecture, run side by side on the same rows or each on its own.

    Args:
        replicas: The models. They stay the owners of their parameters.

    Raises:
        ValueError: If there are none, they have different configs, or they cannot be stacked.
    """

    def __init__(self, replicas: Sequence[MemoryHeadModel]):
        super().__init__()
        if not replicas:
            raise ValueError("replicas: at least one model is needed")
        if any(type(m) is not type(replicas[0]) or m.config != replicas[0].config for m in replicas):
            raise ValueError("replicas: all models must have one class and one config")
        if reason := why_not_stackable(replicas[0]):
            raise ValueError(f"replicas: {reason}")
        self.replicas = nn.ModuleList(replicas)
        # Found once: at every step a walk over all modules would take as long as a small model's arithmetic.
        self._weights = [dict(replica.named_parameters()) for replica in replicas]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all replicas."""
        if not set_to_none:
            return super().zero_grad(set_to_none)
        for weights in self._weights:
            for weight in weights.values():
                weight.grad = None
        return None

    def forward(self, **inputs: Any) -> dict[str, torch.Tensor]:
        """Run all replicas.

        Args:
            **inputs: Arguments of the models' forward, with labels. Where each replica has rows of its own, nothing
                but ``input_ids`` (R, B, T) and ``labels`` (R, B, T).

        Returns:
            ``losses`` (R,), one per replica, and their sum ``loss``, whose gradient is each replica's own.
        """
        template = self.replicas[0]
        weights = _stack(self._weights)
        for weight in weights.values():
            if weight.requires_grad:
                # Two weights that are added have one gradient between them, and clipping would scale it twice.
                weight.register_hook(torch.clone)
        buffers = _stack([dict(replica.named_buffers()) for replica in self.replicas])

        def loss(
            weights: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], *own: torch.Tensor
        ) -> torch.Tensor:
            if own:
                return functional_call(_TargetLoss(template), (_inside(weights), _inside(buffers)), own)
            return functional_call(template, (weights, buffers), (), {**inputs, "use_cache": False}).loss

        own = _own_targets(template, **inputs) if inputs["input_ids"].dim() == 3 else ()
        # Kernels, and the fused attention of the CPU, have no rule for a further batch dimension.
        attention = sdpa_kernel(SDPBackend.MATH) if template.device.type == "cpu" else nullcontext()
        with use_backend("torch"), attention:
            losses = vmap(loss)(weights, buffers, *own)
        return {"loss": losses.sum(), "losses": losses}


def _stack(named: Sequence[Named]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([tensors[name] for tensors in named]) for name in named[0]}


def _inside(named: Named) -> dict[str, torch.Tensor]:
    """Tensors of a model under the names that they have in :class:`_TargetLoss`."""
    return {f"inner.{name}": tensor for name, tensor in named.items()}


class _TargetLoss(nn.Module):
    """A model's mean loss at targets whose places are given, and are as many in every replica."""

    def __init__(self, inner: MemoryHeadModel):
        super().__init__()
        self.inner = inner

    def forward(
        self, input_ids: torch.Tensor, places: torch.Tensor, targets: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        """The loss of rows (B, T) at ``places`` (K,) of their flattened outputs; a target of -100 (K,) fills up."""
        hidden = self.inner.model(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
        chosen = hidden.gather(0, places.unsqueeze(1).expand(-1, hidden.shape[1]))
        is_target = targets != IGNORE_INDEX
        losses, _ = self.inner._loss_in_chunks(chosen, targets.masked_fill(~is_target, 0))
        return torch.where(is_target, losses, 0.0).sum() / count


def _own_targets(
    template: MemoryHeadModel, input_ids: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Arguments of :class:`_TargetLoss` for each replica.

    Which positions are supervised depends on the rows, and inside of ``vmap`` no shape may. So the targets are looked
    for here, and filled up to the largest number. How many Trainer finds in the batches of all replicas is not asked.
    """
    targets = F.pad(labels[..., template.shift :], (0, template.shift), value=IGNORE_INDEX).flatten(1)
    is_target = targets != IGNORE_INDEX
    classes = None if template.config.problem_type == "regression" else template.head.out_features
    check_labels("labels", labels.flatten(0, 1), input_ids.flatten(0, 1), classes)
    counts = is_target.sum(1)
    places = (~is_target).byte().argsort(dim=1, stable=True)[:, : int(counts.max())]
    return input_ids, places, targets.gather(1, places), counts.clamp(min=1)


class StackedOrder(Sampler[torch.Tensor]):
    """Batches of indices (R, B): for each replica those that the sampler of a single run yields.

    Args:
        num_rows: Rows of each replica.
        batch_size: Rows of a batch.
        seeds: Data seed of each replica.
    """

    def __init__(self, num_rows: int, batch_size: int, seeds: Sequence[int]):
        self.num_rows, self.batch_size, self.seeds, self.epoch = num_rows, batch_size, seeds, 0

    def __len__(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def epochs(self) -> Iterator[torch.Tensor]:
        """The batches of all epochs, without an end."""
        for epoch in itertools.count():
            self.set_epoch(epoch)
            yield from self

    def __iter__(self) -> Iterator[torch.Tensor]:
        orders = []
        for seed in self.seeds:
            sampler = SeedableRandomSampler(range(self.num_rows), data_seed=seed)
            sampler.set_epoch(self.epoch)
            orders.append(torch.tensor(list(sampler)))
        yield from torch.stack(orders).split(self.batch_size, dim=1)


class _OrderedLoader(DataLoader):
    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        self.batch_sampler.set_epoch(epoch)


class StackedTrainer(LeanTrainer):
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

    def get_train_dataloader(self) -> DataLoader:
        """Batches in the order of each replica's single run."""
        if not isinstance(self.train_dataset, StackedRows):
            return super().get_train_dataloader()
        order = StackedOrder(
            len(self.train_dataset), self.args.train_batch_size, [own.data_seed for own in self.settings]
        )
        return _OrderedLoader(self.train_dataset, batch_sampler=order, collate_fn=self.data_collator)

    def tokens_of(self, index: int, course: Course) -> int:
        """Tokens that a replica has met until then, which are those of its single run; Trainer counts all replicas'."""
        if not isinstance(self.train_dataset, StackedRows):
            return course.tokens
        lengths = self.train_dataset.parts[index].lengths
        order = StackedOrder(len(lengths), self.args.train_batch_size, [self.settings[index].data_seed])
        batches = itertools.islice(order.epochs(), course.steps)
        return sum(int(lengths[own].sum()) for (own,) in batches)

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

    def _clip(self, *args: Any) -> None:
        for replica, own in zip(self.model.replicas, self.settings, strict=True):
            if own.max_grad_norm:
                nn.utils.clip_grad_norm_(replica.parameters(), own.max_grad_norm)


class _Watch(TrainerCallback):
    """The evaluations of all replicas. One that ends before the others leaves with the weights that it has then."""

    def __init__(self, histories: Sequence[History]):
        self.histories = histories
        self.ended: dict[int, tuple[Course, dict[str, torch.Tensor]]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for index, history in enumerate(self.histories):
            own = TrainerControl()
            if index not in self.ended:
                history.on_step_end(args, state, own, model=model.replicas[index])
            if own.should_training_stop:
                weights = {name: value.clone() for name, value in model.replicas[index].state_dict().items()}
                self.ended[index] = (Course(state.global_step, int(state.num_input_tokens_seen), 0.0), weights)
        if len(self.ended) == len(self.histories):
            control.should_training_stop = True


def run_stacked(experiments: Sequence[WatchedExperiment], results: Path, beat: Beat) -> None:
    """Run experiments that differ in learning rate, seed and data seed alone, and write what each of them leaves.

    The training time in their rows is an equal share of that of the stack. One that cannot be evaluated leaves nothing
    but a line in the log.

    Raises:
        ValueError: If the experiments differ in more, or cannot be stacked.
    """
    with working_folder(tempfile.gettempdir(), WORK) as work:
        settings = [experiment.make_arguments(str(work / str(number))) for number, experiment in enumerate(experiments)]
        shared = [_shared(*pair) for pair in zip(experiments, settings, strict=True)]
        if any(other != shared[0] for other in shared):
            raise ValueError("a stack holds runs that differ in learning rate, seed and data seed alone")
        if settings[0].lr_scheduler_type == "polynomial":
            raise ValueError("schedule: 'polynomial' knows one learning rate only")
        by_seed = {
            own.data_seed: experiment.load_rows(own) for experiment, own in zip(experiments, settings, strict=True)
        }
        rows = [by_seed[own.data_seed] for own in settings]
        watch = _Watch([History(*pair, beat) for pair in zip(experiments, rows, strict=True)])
        trainer, seconds = _train(experiments, settings, by_seed, watch)
        whole = Course.of(trainer, seconds / len(experiments))
        for index, (experiment, own, history) in enumerate(zip(experiments, settings, watch.histories, strict=True)):
            model, course = trainer.model.replicas[index], whole
            if index in watch.ended:
                course, weights = watch.ended[index]
                model.load_state_dict(weights)
            course = dataclasses.replace(whole, steps=course.steps, tokens=trainer.tokens_of(index, course))
            backend = f"{backend_name()}, trained in torch as one of {len(experiments)} replicas"
            try:
                experiment.conclude(model, own, course, history, rows[index], results, backend=backend)
            except Exception:  # what went wrong belongs to this run alone
                logger.exception("%s, seed %d could not be evaluated", experiment.arm, own.seed)


def _shared(experiment: WatchedExperiment, arguments: TrainingArguments) -> dict[str, Any]:
    """What all runs of a stack have in common."""
    definition = experiment.definition(arguments)
    training = {name: value for name, value in definition["training"].items() if name != "learning_rate"}
    data = {name: value for name, value in definition["data"].items() if name != "seed"}
    own = ("seed", "data_seed", "learning_rate_grid", "training", "data")
    return {
        **{name: value for name, value in definition.items() if name not in own},
        "training": training,
        "data": data,
    }


def _train(
    experiments: Sequence[WatchedExperiment],
    settings: Sequence[TrainingArguments],
    by_seed: Mapping[int, Mapping[str, Any]],
    watch: _Watch,
) -> tuple[StackedTrainer, float]:
    """The trainer after training, and the seconds it took; the rows are given by data seed."""
    replicas = [experiment.make_model(own.seed) for experiment, own in zip(experiments, settings, strict=True)]
    train = {seed: TensorRows(rows["train"]) for seed, rows in by_seed.items()}
    trainer = StackedTrainer(
        experiments,
        settings,
        model=StackedModel(replicas),
        args=dataclasses.replace(settings[0], max_grad_norm=0.0),  # the norm of all replicas together means nothing
        train_dataset=train[settings[0].data_seed]
        if len(train) == 1
        else StackedRows([train[own.data_seed] for own in settings]),
        data_collator=MemoryCollator(),
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)
    started = time.perf_counter()
    trainer.train()
    return trainer, time.perf_counter() - started
