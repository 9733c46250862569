"""Recall and extrapolation of a trained model, as result rows.

One forward pass per batch serves all metrics. Several processes share the rows of a split between them and exchange
their predictions, so that every process returns the same values and no row is dropped or counted twice.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import AutoConfig

from hf_memory.auto import HEADS, model_class, model_keys
from hf_memory.data.collator import MemoryCollator
from hf_memory.data.specification import Specification, changed_knobs, data_version, length_bounds
from hf_memory.data.tensors import TensorRows
from hf_memory.metrics import MetricValue, evaluate_predictions
from hf_memory.modeling import MemoryPreTrainedModel
from hf_memory.provenance import (
    Run,
    config_digest,
    device_name,
    measure_state,
    parameter_counts,
    read_run,
    unknown_run,
    versions,
)
from hf_memory.results import Row, write_cell
from hf_memory.storage import digest
from hf_memory.tasks.base import IGNORE_INDEX, Task


def evaluate_lengths(
    model: MemoryPreTrainedModel | str | os.PathLike[str],
    specification: Specification,
    splits: Mapping[str, Any],
    *,
    run: Run | None = None,
    batch_size: int = 256,
    accelerator: Accelerator | None = None,
    revision: str | None = None,
    progress: bool = True,
) -> list[Row]:
    """Evaluate a model on splits of a task, usually ``validation`` and every ``test_<length>``.

    Args:
        model: A model with the task's head, or a checkpoint of one, local or on the Hub.
        specification: What the splits are, from :func:`hf_memory.data.specification.specify`.
        splits: Rows by split name: datasets, or whatever else :class:`hf_memory.data.tensors.TensorRows` takes.
        run: The training run; read from beside the checkpoint where it is not given.
        batch_size: Rows per forward pass and process.
        accelerator: Device, mixed precision and processes; by default one process on the model's device.
        revision: Branch, tag or commit of a checkpoint on the Hub.
        progress: Show a bar over the rows of all splits, on the main process.

    Returns:
        One row per split, the same in every process.

    Raises:
        ValueError: If the model lacks the task's head or has fewer ids or classes than the task, or a split is unknown.
    """
    checkpoint = None if isinstance(model, MemoryPreTrainedModel) else str(model)
    loaded = model if isinstance(model, MemoryPreTrainedModel) else load_for_task(model, specification.task, revision)
    check_fits(loaded, specification.task)
    unknown = [name for name in splits if name not in specification.splits]
    if unknown:
        raise ValueError(f"splits: {unknown[0]!r} is unknown (known: {', '.join(map(repr, specification.splits))})")
    run = run or read_run(checkpoint) or unknown_run(loaded, checkpoint, specification)
    device = accelerator.device if accelerator is not None else next(loaded.parameters()).device
    was_training = loaded.training
    loaded.to(device).eval()
    is_main = accelerator is None or accelerator.is_main_process
    total = sum(len(rows) for rows in splits.values())
    try:
        with tqdm(total=total, desc=f"evaluate {run.arm}", unit="row", disable=not (progress and is_main)) as bar:
            return [
                _evaluate_split(loaded, specification, name, TensorRows(rows), run, batch_size, accelerator, bar)
                for name, rows in splits.items()
            ]
    finally:
        loaded.train(was_training)


def _evaluate_split(
    model: MemoryPreTrainedModel,
    specification: Specification,
    name: str,
    rows: TensorRows,
    run: Run,
    batch_size: int,
    accelerator: Accelerator | None,
    bar: Any,
) -> Row:
    """One forward pass over a split, and its row."""
    started = time.perf_counter()
    columns = predict(model, rows, batch_size, accelerator, bar)
    part = specification.splits[name].parts[0]
    length = length_bounds(part.length)[1]
    metrics = evaluate_predictions(part.task, length, **columns)
    numbers, size = measure_state(model, part.task.row_length(length))
    low, high = length_bounds(specification.train_length)
    parameters = parameter_counts(model)
    return Row(
        **dataclasses.asdict(run),
        parameters=parameters.total,
        parameters_non_embedding=parameters.non_embedding,
        parameters_per_block=parameters.per_block,
        mixer=model.config.model_type.removeprefix("memory_"),
        config_digest=config_digest(model.config),
        task=specification.task.key,
        task_knobs=changed_knobs(specification.task),
        data_version=data_version(specification.task.key),
        split=name,
        length=length,
        train_length=(low, high),
        state_numbers=numbers,
        state_bytes=size,
        headline=specification.task.headline_metric,
        metrics={metric: _as_value(value) for metric, value in metrics.items()},
        eval_seconds=time.perf_counter() - started,
        device=device_name(model),
        backend=os.environ.get("HF_MEMORY_BACKEND", "auto"),
        versions=versions(),
    )


def predict(
    model: MemoryPreTrainedModel,
    rows: TensorRows,
    batch_size: int,
    accelerator: Accelerator | None = None,
    bar: Any = None,
) -> dict[str, np.ndarray]:
    """Run a model over rows.

    Returns:
        ``input_ids``, ``labels``, ``predictions`` and ``token_loss``, each (n, T), padded on the right to the longest
        row and the same in every process. Predictions and losses stand at the position of the output.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    world, rank = (1, 0) if accelerator is None else (accelerator.num_processes, accelerator.process_index)
    collate, device = MemoryCollator(), next(model.parameters()).device
    autocast = contextlib.nullcontext if accelerator is None else accelerator.autocast
    found: list[tuple[list[int], dict[str, np.ndarray]]] = []
    for first in range(0, len(rows), world * batch_size):
        block = range(first, min(first + world * batch_size, len(rows)))
        own = list(block[rank::world])
        # A process without rows in the last block still takes part, since a sharded model needs all of them.
        batch = collate(rows.__getitems__(own or [0]))
        with torch.no_grad(), autocast():
            outputs = model(**{key: value.to(device) for key, value in batch.items()}, return_logits=False)
        columns = {"input_ids": batch["input_ids"], "labels": batch["labels"], "predictions": outputs.predictions}
        columns["token_loss"] = outputs.token_loss.float()
        if own:
            found.append((own, {key: value.cpu().numpy() for key, value in columns.items()}))
        if bar is not None:
            bar.update(len(block))
    if world > 1:
        found = gather_object(found)
    return _assemble(found, len(rows))


def _assemble(found: list[tuple[list[int], dict[str, np.ndarray]]], num_rows: int) -> dict[str, np.ndarray]:
    """Put the blocks of all processes in the order of the rows. Raises where a row is missing or was met twice."""
    met = sorted(index for indices, _ in found for index in indices)
    if met != list(range(num_rows)) or not met:
        raise ValueError(f"rows: {num_rows} were given (at least 1 is needed), and {len(met)} were evaluated")
    width = max(columns["input_ids"].shape[1] for _, columns in found)
    fill = {"input_ids": 0, "labels": IGNORE_INDEX, "predictions": IGNORE_INDEX, "token_loss": 0}
    whole = {name: np.full((num_rows, width), fill[name], found[0][1][name].dtype) for name in fill}
    for indices, columns in found:
        for name, values in columns.items():
            whole[name][indices, : values.shape[1]] = values
    return whole


def load_for_task(checkpoint: str | os.PathLike[str], task: Task, revision: str | None = None) -> MemoryPreTrainedModel:
    """Load a checkpoint with the head that a task needs, on the CPU.

    Raises:
        ValueError: If it is a checkpoint of another library, or its head is not the one of the task.
    """
    config = AutoConfig.from_pretrained(checkpoint, revision=revision or "main")
    key = config.model_type.removeprefix("memory_")
    if not config.model_type.startswith("memory_") or key not in model_keys():
        known = ", ".join(f"memory_{key}" for key in model_keys())
        raise ValueError(f"checkpoint: {str(checkpoint)!r} has model_type {config.model_type!r} (known: {known})")
    saved = config.architectures or []
    if saved and not saved[0].endswith(HEADS[task.head]):
        raise ValueError(f"checkpoint: {task.key} needs a model {HEADS[task.head]}, {str(checkpoint)!r} is {saved[0]}")
    return model_class(key, task.head).from_pretrained(checkpoint, revision=revision or "main")


def check_fits(model: MemoryPreTrainedModel, task: Task) -> None:
    """Raise a ``ValueError`` where a model's head, ids or classes are not those of a task."""
    name = type(model).__name__
    if not name.endswith(HEADS[task.head]):
        raise ValueError(f"model: {task.key} needs a model {HEADS[task.head]}, got {name}")
    if model.config.vocab_size < task.vocab_size:
        raise ValueError(f"vocab_size must be at least {task.vocab_size} for {task.key}, got {model.config.vocab_size}")
    if task.head == "token_classification" and model.config.num_labels < task.num_labels:
        raise ValueError(f"num_labels must be at least {task.num_labels} for {task.key}, got {model.config.num_labels}")
    is_regression = model.config.problem_type == "regression"
    if is_regression != (task.problem_type == "regression"):
        raise ValueError(
            f"problem_type: {task.key} is {task.problem_type}, the model's is {model.config.problem_type!r}"
        )


def write_evaluation(folder: str | os.PathLike[str], rows: list[Row]) -> Path:
    """Write rows of an evaluation apart from those of the training run, as a cell of its own.

    Its definition is what was evaluated: run, weights, task and splits.
    """
    row = rows[0]
    definition = {
        "evaluation_of": row.cell,
        "weights": row.weights_sha256,
        "task": row.task,
        "knobs": row.task_knobs,
        "data_version": row.data_version,
        "splits": {found.split: found.measured().denominator for found in rows},
    }
    return write_cell(folder, definition, [dataclasses.replace(found, cell=digest(definition)) for found in rows])


def _as_value(value: MetricValue) -> MetricValue:
    """Plain Python numbers, which is what rows hold."""
    return MetricValue(
        value=float(value.value),
        numerator=float(value.numerator),
        denominator=int(value.denominator),
        chance=None if value.chance is None else float(value.chance),
        baselines={name: float(level) for name, level in value.baselines.items()},
    )
