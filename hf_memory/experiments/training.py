"""Training with transformers' Trainer: the parts where its defaults would bend a result."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderShard
from huggingface_hub import HfApi
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput, HubStrategy

from hf_memory.data.preview import label_text
from hf_memory.experiments.checkpoints import WholeCheckpoints
from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryHeadModel
from hf_memory.models.inputs import IGNORE_INDEX
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.names import check_names
from hf_memory.storage import write_text
from hf_memory.tasks.base import Task

TRAINER_WORD = "argument of Trainer"

_COUNT = ("a whole number of at least 1", lambda value: value >= 1)
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "learning_rate": ("at least 0", lambda value: value >= 0),
    "weight_decay": ("at least 0", lambda value: value >= 0),
    "max_grad_norm": ("above 0, or 0 for no clipping", lambda value: value >= 0),
    "max_steps": ("at least 1, or -1 for num_train_epochs", lambda value: value >= 1 or value == -1),
    "num_train_epochs": ("above 0", lambda value: value > 0),
    "per_device_train_batch_size": _COUNT,
    "per_device_eval_batch_size": _COUNT,
    "gradient_accumulation_steps": _COUNT,
}
"""Numbers of Trainer, and what they must be."""

ARGUMENTS_NAME = "training_args.json"


class MemoryTrainer(WholeCheckpoints, Trainer):
    """Trainer with the model's own optimiser groups, metrics from counts, and arguments saved as JSON.

    A plain ``Trainer`` trains and evaluates the models too, but it decays the parameters of the recurrence, reports the
    mean of batch means as ``eval_loss``, and keeps all logits of an evaluation in memory.

    ``eval_loss`` is the summed loss over the number of targets, with and without metrics. ``label_smoothing_factor``
    smooths the loss that is trained, inside of the head and at the supervised positions; what is evaluated is the loss
    itself. A regression has no classes to smooth and is refused; a plain ``Trainer`` takes the labels away before the
    model is called, and ends in an error of torch. A ``compute_loss_func`` is evaluated too, each batch weighted by its
    number of targets.

    Args:
        optim_groups: ``"documented"`` or ``"uniform"``, see ``MemoryPreTrainedModel.optim_groups``.
        *args: As for ``Trainer``.
        **kwargs: As for ``Trainer``.
    """

    def __init__(self, *args: Any, optim_groups: str = "documented", **kwargs: Any):
        self.optim_groups = optim_groups
        _check_parts(*args, **kwargs)
        super().__init__(*args, **kwargs)
        if self.args.push_to_hub and self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            raise ValueError(
                f"hub_strategy must be 'end' or 'every_save', got {self.args.hub_strategy.value!r}, which would push "
                "the optimiser's state, a pickle"
            )
        self._heads = [module for module in self.model.modules() if isinstance(module, MemoryHeadModel)]
        self._totals = torch.zeros(2, dtype=torch.float64)
        self._label_smoothing = self._take_over_smoothing()

    def _take_over_smoothing(self) -> float:
        """The share that the heads smooth themselves, in the place of Trainer, which does so on all logits."""
        share = self.args.label_smoothing_factor
        if not share or not self._heads:
            return 0.0
        if self.compute_loss_func is not None:
            raise ValueError("label_smoothing_factor must be 0 with a compute_loss_func, which does not read it")
        if any(head.config.problem_type == "regression" for head in self._heads):
            raise ValueError(f"label_smoothing_factor must be 0 for a regression, which has no classes, got {share}")
        self.label_smoother = None
        return share

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's own loss, smoothed in training where that is asked for, or that of ``compute_loss_func``."""
        if self._label_smoothing and model.training:
            inputs = {**inputs, "label_smoothing": self._label_smoothing}
        if self._heads and self.compute_loss_func is not None:
            inputs = {**inputs, "return_logits": True}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any, **kwargs: Any) -> Any:
        """The batches of a step, and their targets in all processes; each row of an epoch is in them once.

        Where the rows of the last batch do not suffice for all processes, accelerate repeats those of the first one.
        """
        return super().get_batch_samples(map(self._without_repeats, epoch_iterator), *args, **kwargs)

    def _without_repeats(self, batch: Any) -> Any:
        """A process's batch without rows that accelerate has filled up the last one with.

        A process all of whose rows are repeated keeps one, without targets, since it must take part in the step.
        """
        state, world = self.accelerator.gradient_state, self.accelerator.num_processes
        is_last = isinstance(state.active_dataloader, DataLoaderShard) and state.end_of_dataloader
        if world == 1 or not is_last or not isinstance(batch, Mapping) or "labels" not in batch:
            return batch
        size = len(batch["labels"])
        # A remainder of 0, or of -1 where nobody counts, says that the last batch is whole.
        own = size if state.remainder < 1 else state.remainder - self.accelerator.process_index * size
        if own >= size:
            return batch
        kept = {name: value[: max(own, 1)] for name, value in batch.items()}
        return kept if own >= 1 else {**kept, "labels": torch.full_like(kept["labels"], IGNORE_INDEX)}

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Build the optimiser that the arguments name over the model's own parameter groups."""
        if self.optimizer is None:
            model = self.accelerator.unwrap_model(self.model if model is None else model)
            if not isinstance(model, MemoryPreTrainedModel):
                return super().create_optimizer(model)
            cls, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
            groups = model.optim_groups(self.args.learning_rate, self.args.weight_decay, mode=self.optim_groups)
            self.optimizer = cls(groups, **kwargs)
        return self.optimizer

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, torch.Tensor | None]:
        """Return predictions and losses per position (B, T) instead of logits.

        No loss is returned: Trainer would average it over batches. :meth:`evaluation_loop` divides the sums.
        """
        if "labels" not in inputs or not self._heads:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        targets = inputs["shift_labels"] if "shift_labels" in inputs else labels[:, self._heads[0].shift :]
        counts = (targets != IGNORE_INDEX).sum(1)
        outputs: Any = None
        with torch.no_grad(), self.compute_loss_context_manager():
            if self.compute_loss_func is None or not prediction_loss_only:
                outputs = model(**inputs, return_logits=False, use_cache=False)
            if self.compute_loss_func is None:
                self._add_to_totals(outputs.token_loss.sum(1), counts, self.gather_function)
            elif count := counts.sum():
                loss = self.compute_loss(model, {**inputs}, num_items_in_batch=count)
                self._add_to_totals((loss * count)[None], count[None], self.accelerator.gather)
        if prediction_loss_only:
            return None, None, None
        return None, (outputs.predictions, outputs.token_loss), labels

    def _add_to_totals(
        self, losses: torch.Tensor, counts: torch.Tensor, gather: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Add the losses and the targets of rows, or of a batch, of all processes."""
        self._totals += gather(torch.stack([losses.float(), counts.float()], dim=1)).cpu().double().sum(0)

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate as Trainer does, with the summed loss over the number of targets as the loss.

        A loss that ``compute_metrics`` has computed stands, unless it is not the one that ``compute_loss_func`` says.
        """
        self._totals.zero_()
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        total, count = self._totals.tolist()
        name = f"{metric_key_prefix}_loss"
        if count and (self.compute_loss_func is not None or name not in output.metrics):
            output.metrics[name] = total / count
        return output

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save weights and config, and the arguments as JSON instead of a pickle."""
        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        folder = output_dir if output_dir is not None else self.args.output_dir
        pickled = os.path.join(folder, TRAINING_ARGS_NAME)
        if os.path.exists(pickled):
            os.remove(pickled)
        arguments = {**self.args.to_dict(), "optim_groups": self.optim_groups}
        text = json.dumps(arguments, indent=2, sort_keys=True, default=str)
        write_text(os.path.join(folder, ARGUMENTS_NAME), text + "\n")

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Push the model with its tokenizer, arguments, code and card; what was pickled beside it stays local.

        Args:
            commit_message: Title of the commit.
            blocking: Wait for the end of the upload; else a future is returned.
            token: Access token; that of the arguments or the login by default.
            revision: Branch; that of the arguments, else the main branch, by default.
            private: Whether a new repository is private.
            **kwargs: ``results``, ``task`` and ``tags`` of :func:`hf_memory.hub.checkpoints.push`.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        return self._push_folder(self.args.output_dir, commit_message, blocking, token, revision, private, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push the model of a checkpoint while training goes on, without the optimiser's state."""
        if self.args.hub_strategy != HubStrategy.END:
            self._push_folder(checkpoint_folder, f"Training in progress, step {self.state.global_step}")

    def _push_folder(
        self,
        folder: str,
        message: str | None,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if not self.is_world_process_zero():
            return None
        push = MemoryPreTrainedModel.publisher
        if push is None:
            raise RuntimeError("nothing is registered that pushes; `import hf_memory` registers the package's own")
        options = {"commit_message": message, "token": token or self.args.hub_token, "private": private, **kwargs}
        options["revision"] = revision or self.args.hub_revision
        if blocking:
            return push(folder, self.hub_model_id, **options)
        return HfApi().run_as_future(push, folder, self.hub_model_id, **options)


def _check_parts(
    model: Any = None, args: Any = None, data_collator: Any = None, train_dataset: Any = None, *_: Any, **__: Any
) -> None:
    """Refuse what Trainer takes and stumbles over in its first step.

    Raises:
        ValueError: Names the argument, and what to give.
    """
    if isinstance(model, str):
        raise ValueError(
            f"model must be a model, got {model!r}; load it with from_pretrained, or make it by mixer_model"
        )
    if isinstance(data_collator, type):
        raise ValueError(f"data_collator must be an object, as {data_collator.__name__}() is, got the class itself")
    is_theirs = data_collator is None or type(data_collator).__module__.startswith("transformers.")
    if getattr(train_dataset, "gives_batches", False) and is_theirs:
        raise ValueError("data_collator must be MemoryCollator() for TensorRows, which are whole batches already")
    if isinstance(train_dataset, dict):
        raise ValueError(f"train_dataset must be one split, got all of {', '.join(map(repr, train_dataset))}")
    columns = getattr(train_dataset, "column_names", None)
    if columns and isinstance(model, MemoryHeadModel) and "labels" not in columns:
        raise ValueError(f"train_dataset must have a column 'labels', got {columns}")


def default_arguments(output_dir: str) -> dict[str, Any]:
    """Trainer's arguments for which the package has a default of its own."""
    return {
        "output_dir": output_dir,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,
        "max_grad_norm": 0.0,
        "per_device_train_batch_size": 64,
        "per_device_eval_batch_size": 256,
        "remove_unused_columns": False,
        "include_for_metrics": ["inputs"],
        "label_names": ["labels"],
        "dataloader_pin_memory": torch.cuda.is_available(),
        "ddp_find_unused_parameters": False,
        "save_strategy": "no",
        "use_cache": True,
        "report_to": "none",
    }


def training_arguments(output_dir: str, **overrides: Any) -> TrainingArguments:
    """Trainer's arguments with the defaults of the package, each of which can be overridden.

    AdamW with decay 0.1, 10 % linear warm-up and cosine to zero, no clipping; columns are not removed because tasks
    score by ``input_ids``, and there are no loader workers because rows are tensors in memory already. ``use_cache`` is
    what Trainer writes into the saved config: no state is kept in training either way.
    """
    check_names(overrides, [field.name for field in dataclasses.fields(TrainingArguments) if field.init], TRAINER_WORD)
    check_numbers(overrides)
    return TrainingArguments(**{**default_arguments(output_dir), **overrides})


def check_numbers(arguments: Mapping[str, Any]) -> None:
    """Check the numbers of Trainer with which it would do something else than what was asked for, or divide by zero.

    Raises:
        ValueError: Names the argument, and its range.
    """
    for name, (words, holds) in _RANGES.items():
        value = arguments.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not (math.isfinite(value) and holds(value)):
            raise ValueError(f"{name} must be {words}, got {value}")


def model_for_task(mixer: str, task: Task, **fields: Any) -> PreTrainedModel:
    """A fresh model with the head, vocabulary and classes that a task needs; arguments as for the config."""
    return mixer_model(config_for_task(mixer, task, **fields), task.head)


def config_for_task(mixer: str, task: Task, **fields: Any) -> MemoryConfig:
    """The config of a model with the vocabulary and the classes that a task needs.

    Args:
        mixer: Mixer key, or ``"hybrid"``.
        task: The task.
        **fields: Further fields of the mixer's config.
    """
    if isinstance(task, str | type):
        raise ValueError(f"task must be a Task, as make_task({task!r}) makes it, got {type(task).__name__}")
    given = {"vocab_size": task.vocab_size, **_label_fields(task)}
    taken = sorted({*given, *_LABEL_FIELDS} & set(fields))
    if taken:
        raise ValueError(f"{taken[0]} follows from the task {task.key!r}; leave it out")
    return mixer_config(mixer, **given, **fields)


_LABEL_FIELDS = ("num_labels", "id2label", "label2id", "problem_type")


def _label_fields(task: Task) -> dict[str, Any]:
    """Fields of a config for what the head of a task answers; classes have the names that rows as text show."""
    if task.head == "causal":
        return {}
    if task.problem_type == "regression":
        return {"num_labels": task.num_labels, "problem_type": "regression"}
    names = [label_text(task, label) for label in range(task.num_labels)]
    if len(set(names)) < len(names):
        raise ValueError(f"label_symbols of {task.key} must be {task.num_labels} distinct names")
    return {"id2label": dict(enumerate(names)), "label2id": {name: label for label, name in enumerate(names)}}


def metrics_for_task(task: Task, length: int) -> Callable[[EvalPrediction], dict[str, float]]:
    """A ``compute_metrics`` for Trainer: the task's metrics as ratios of counts over the whole split.

    The arguments need ``include_for_metrics=["inputs"]``.
    """

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        predictions, token_loss = prediction.predictions
        inputs = prediction.inputs["input_ids"] if isinstance(prediction.inputs, dict) else prediction.inputs
        values = evaluate_predictions(
            task, length, np.asarray(inputs), np.asarray(prediction.label_ids), predictions, token_loss
        )
        return {name: value.value for name, value in values.items()}

    return compute
