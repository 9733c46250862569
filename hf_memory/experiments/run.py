"""One training run with its evaluations: what ``hf-memory train``, the example script and the demo have in common."""

import dataclasses
import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PrinterCallback, TrainerCallback, TrainingArguments, set_seed
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from hf_memory.data.builder import load_dataset
from hf_memory.data.collator import MemoryCollator
from hf_memory.data.specification import Specification, data_version, length_bounds
from hf_memory.data.tensors import TensorRows
from hf_memory.data.tokenizers import task_tokenizer
from hf_memory.experiments.checkpoints import SAVING, resume_point
from hf_memory.experiments.code import code_digest
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.provenance import Run, config_digest, save_run, weights_digest
from hf_memory.experiments.results import Row, cell_path, read_rows, write_cell
from hf_memory.experiments.training import (
    TRAINER_WORD,
    MemoryTrainer,
    check_numbers,
    config_for_task,
    default_arguments,
    metrics_for_task,
    model_for_task,
    training_arguments,
)
from hf_memory.mixers.auto import mixer_config, model_keys
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.names import check_names
from hf_memory.storage import check_writable, digest

logger = logging.getLogger(__name__)

SMOKE_ROWS = {"num_train": 512, "num_validation": 64, "num_test": 64}

# What stands in the definition of every run.
_DEFINING = (
    "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "num_train_epochs",
    "max_steps", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args", "bf16", "fp16",
    "label_smoothing_factor", "neftune_noise_alpha", "load_best_model_at_end",
)  # fmt: skip

# Where a run happens, what it prints and keeps, how it is evaluated while it goes on. `rows_per_step` holds the product
# of batch size, processes and accumulation. All other arguments belong to the definition where they are not at their
# defaults, also those that later releases of transformers bring.
_HARMLESS = frozenset({
    "output_dir", "do_train", "do_eval", "do_predict", "disable_tqdm", "report_to", "run_name", "project", "debug",
    "prediction_loss_only", "eval_accumulation_steps", "eval_do_concat_batches", "eval_on_start",
    "eval_use_gather_object", "batch_eval_metrics", "include_for_metrics", "include_num_input_tokens_seen",
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
    "gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_checkpointing",
    "activation_checkpointing_kwargs", "use_cache",
    "push_to_hub", "resume_from_checkpoint", "restore_callback_states_from_checkpoint", "enable_jit_checkpoint",
    "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor",
    "dataloader_multiprocessing_context", "local_rank", "use_cpu", "skip_memory_metrics", "torch_empty_cache_steps",
    "seed", "data_seed",
})  # fmt: skip
_HARMLESS_GROUPS = ("logging_", "log_", "save_", "hub_", "trackio_", "ddp_")
_WHEN_KEPT = frozenset({"eval_strategy", "eval_steps", "eval_delay", "metric_for_best_model", "greater_is_better"})
"""What matters where the best checkpoint is kept, and with it when checkpoints are saved."""


@dataclasses.dataclass(frozen=True)
class Course:
    """How far a training run went: optimiser steps, tokens without padding, seconds, and the kernels it was left to."""

    steps: int
    tokens: int
    seconds: float
    kernels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, trainer: MemoryTrainer, seconds: float) -> "Course":
        """The course of a trainer after its training."""
        return cls(trainer.state.global_step, int(trainer.state.num_input_tokens_seen), seconds, trainer.kernels)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run that is fully specified: its names are checked, and its digest is known before anything is computed.

    Attributes:
        specification: The dataset.
        mixer: Key of the mixer.
        fields: Fields of the mixer's config that differ from its defaults.
        training: Arguments of Trainer that differ from the package's defaults.
        optim_groups: Groups of the optimiser.
        arm: Name of the curve in figures.
        learning_rate_grid: All learning rates of the search that this run belongs to; empty where there is none.
    """

    specification: Specification
    mixer: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optim_groups: str = "documented"
    arm: str = ""
    learning_rate_grid: tuple[float, ...] = ()

    trainer_class: ClassVar[type[MemoryTrainer]] = MemoryTrainer

    def __post_init__(self) -> None:
        check_names([self.mixer], model_keys(), "mixer")
        names = [field.name for field in dataclasses.fields(TrainingArguments) if field.init]
        check_names(self.training, names, TRAINER_WORD)
        check_numbers(self.training)

    def make_model(self, seed: int) -> MemoryPreTrainedModel:
        """A freshly initialised model."""
        set_seed(seed)
        return model_for_task(self.mixer, self.specification.task, **self.fields)

    def code(self) -> str:
        """Digest of the code that makes this run's numbers."""
        return code_digest(self._outline(), self.specification.task)

    def _outline(self) -> MemoryPreTrainedModel:
        """The model without numbers."""
        with torch.device("meta"):
            return model_for_task(self.mixer, self.specification.task, **self.fields)

    def make_arguments(self, output_dir: str) -> TrainingArguments:
        """Trainer's arguments; the data seed is also that of the order of the rows."""
        low, high = length_bounds(self.specification.train_length)
        return training_arguments(
            output_dir,
            **{
                "seed": 0,
                "data_seed": self.specification.seed,
                "include_num_input_tokens_seen": "all" if low == high else "non_padding",
                **self.training,
            },
        )

    def definition(self, arguments: TrainingArguments) -> dict[str, Any]:
        """What defines the run, as JSON values; its digest names the file of the rows."""
        specification, values = self.specification, arguments.to_dict()
        rows_per_step = arguments.train_batch_size * arguments.world_size * arguments.gradient_accumulation_steps
        return {
            "task": specification.task.key,
            "preset": specification.preset,
            "data": dict(specification.overrides),
            "data_version": data_version(specification.task.key),
            "arm": self.arm or self.mixer,
            "mixer": self.mixer,
            "config": config_digest(config_for_task(self.mixer, specification.task, **self.fields)),
            "training": {name: values[name] for name in _DEFINING} | _further(arguments, self.training),
            "rows_per_step": rows_per_step,
            "optim_groups": self.optim_groups,
            "learning_rate_grid": list(self.learning_rate_grid),
            "seed": arguments.seed,
            "data_seed": arguments.data_seed,
        }

    def cell(self, output_dir: str | os.PathLike[str]) -> str:
        """Digest of the run's definition."""
        return digest(self.definition(self.make_arguments(str(output_dir))))

    def run(
        self,
        results: str | os.PathLike[str],
        output_dir: str | os.PathLike[str],
        callbacks: Sequence[TrainerCallback] = (),
        overwrite: bool = False,
    ) -> list[Row]:
        """Train, save, evaluate on ``validation`` and every test split, and write the rows.

        A run whose rows are in ``results`` and whose checkpoint is there is not repeated: its rows are read, and a
        warning says so, and whether other code made them. Every process of a distributed run calls this, and gets the
        same rows; the main one writes them.

        Args:
            results: Folder of the rows.
            output_dir: Folder of the checkpoint.
            callbacks: Further callbacks of Trainer.
            overwrite: Train again in any case.
        """
        arguments = self.make_arguments(str(output_dir))
        if arguments.n_gpu > 1:
            raise ValueError(
                f"{arguments.n_gpu} GPUs are visible to one process; start one process per GPU with "
                "`accelerate launch`, or set CUDA_VISIBLE_DEVICES"
            )
        check_installed(arguments, self._outline())
        definition = self.definition(arguments)
        cell = digest(definition)
        if not overwrite and cell_path(results, cell).exists() and weights_digest(output_dir):
            return self._finished(cell_path(results, cell))
        arguments.resume_from_checkpoint = resume_point(arguments.resume_from_checkpoint, output_dir)
        if arguments.process_index == 0:
            for folder in (results, output_dir):
                check_writable(folder)
            shutil.rmtree(Path(output_dir) / SAVING, ignore_errors=True)
        with arguments.main_process_first(local=False, desc="dataset"):
            rows = load_dataset(f"hf_memory/{definition['task']}", definition["preset"], **definition["data"])
        trainer, seconds = self._train(arguments, rows, callbacks)
        trainer.save_model()
        trainer.accelerator.wait_for_everyone()
        run = self._facts(arguments, cell, Course.of(trainer, seconds))
        splits = {name: rows[name] for name in rows if name != "train"}
        found = evaluate_lengths(
            trainer.accelerator.unwrap_model(trainer.model),
            self.specification,
            splits,
            run=run,
            batch_size=arguments.per_device_eval_batch_size,
            accelerator=trainer.accelerator,
            progress=not arguments.disable_tqdm,
        )
        if trainer.is_world_process_zero():
            save_run(output_dir, run)
            task_tokenizer(self.specification.task).save_pretrained(output_dir)
            write_cell(results, definition, found)
        trainer.accelerator.wait_for_everyone()
        if arguments.push_to_hub:
            trainer.push_to_hub(results=results, task=definition["task"])  # with a card that holds these rows
        return found

    def _finished(self, path: Path) -> list[Row]:
        """Rows of a run that finished before; what is skipped says so."""
        rows = read_rows(path)
        other = f", made by other code ({rows[0].code})" if rows[0].code not in ("", self.code()) else ""
        logger.warning(
            "finished before%s: rows from %s; no checkpoint was written (overwrite trains again)",
            other,
            path,
        )
        return rows

    def _train(
        self,
        arguments: TrainingArguments,
        rows: Mapping[str, Any],
        callbacks: Sequence[TrainerCallback],
    ) -> tuple[MemoryTrainer, float]:
        """The trainer after training, and the seconds it took."""
        length = length_bounds(self.specification.train_length)[1]
        trainer = self.trainer_class(
            model=self.make_model(arguments.seed),
            args=arguments,
            train_dataset=TensorRows(rows["train"]),
            eval_dataset=TensorRows(rows["validation"]) if "validation" in rows else None,
            data_collator=MemoryCollator(),
            compute_metrics=metrics_for_task(self.specification.task, length),
            callbacks=list(callbacks),
            optim_groups=self.optim_groups,
        )
        if arguments.disable_tqdm:
            trainer.remove_callback(PrinterCallback)  # Trainer prints its logs where it shows no bar
        started = time.perf_counter()
        trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
        return trainer, time.perf_counter() - started

    def _facts(self, arguments: TrainingArguments, cell: str, course: Course) -> Run:
        """What the rows say of the training run."""
        warmup = arguments.warmup_steps
        share = f"{warmup:.0%} of the steps" if 0 < warmup < 1 else f"{warmup:.0f} steps"
        return Run(
            cell=cell,
            arm=self.arm or self.mixer,
            seed=arguments.seed,
            data_seed=arguments.data_seed,
            learning_rate=arguments.learning_rate,
            learning_rate_grid=self.learning_rate_grid or (arguments.learning_rate,),
            schedule=f"{arguments.lr_scheduler_type.value}, linear warm-up over {share}",
            optim_groups=self.optim_groups,
            stop_rule=f"{course.steps} steps",
            steps=course.steps,
            tokens=course.tokens,
            train_seconds=course.seconds,
            weights_sha256=weights_digest(arguments.output_dir),
            code=self.code(),
            kernels=dict(course.kernels) or None,
        )


def fields_for_length(mixer: str, fields: Mapping[str, Any], specification: Specification) -> dict[str, Any]:
    """Fields of a config, with the length of the longest row where something is built for a length and none is given.

    The filters of Hyena and of long BaseConv are part of the trained function: one that is built for a length far above
    that of the rows starts almost flat, and learns a delay a hundred times worse.
    """
    if "max_position_embeddings" in fields or not mixer_config(mixer, **fields).limited_length:
        return dict(fields)
    return {**fields, "max_position_embeddings": specification.longest_row}


def check_installed(arguments: TrainingArguments, model: torch.nn.Module) -> None:
    """Check what Trainer asks for late: packages to which it reports, the optimiser's, and a device for ``fp16``.

    Raises:
        ValueError: A package of ``report_to`` is not installed, ``optim`` cannot be used here, or ``fp16`` is asked
            for on a CPU.
        ImportError: A package of ``optim`` is not installed.
    """
    reported = [arguments.report_to] if isinstance(arguments.report_to, str) else arguments.report_to or []
    names = [name for name in reported if name not in ("none", "all")]
    check_names(names, INTEGRATION_TO_CALLBACK, "report_to")
    missing = sorted(set(names) - set(get_available_reporting_integrations()))
    if missing:
        raise ValueError(
            f"report_to: the package {missing[0]} is missing; `pip install {missing[0]}` installs it, or give "
            "--report_to none"
        )
    if arguments.fp16 and arguments.device.type == "cpu":
        raise ValueError("fp16 needs a GPU, and this run is on a CPU; leave it out, or give --bf16 True")
    try:
        MemoryTrainer.get_optimizer_cls_and_kwargs(arguments, model)
    except ValueError as error:
        raise ValueError(f"optim: {arguments.optim.value} cannot be used here ({error})") from error


def _further(arguments: TrainingArguments, given: Iterable[str]) -> dict[str, Any]:
    """Arguments that may change a number, where they are not at the package's defaults.

    No second object of arguments is made to compare with: it would set the state of all processes anew.
    """
    values, raw = arguments.to_dict(), {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    defaults = {**raw, **default_arguments(arguments.output_dir)}
    keeps_best = arguments.load_best_model_at_end
    silent = _HARMLESS | frozenset(_DEFINING) | (frozenset() if keeps_best else _WHEN_KEPT)
    groups = tuple(group for group in _HARMLESS_GROUPS if not (keeps_best and group == "save_"))
    return {
        name: values[name]
        for name in sorted(given)
        if values[name] != defaults.get(name) and name not in silent and not name.startswith(groups)
    }
