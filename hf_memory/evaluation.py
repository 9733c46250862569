"""Recall and extrapolation of a trained model, as result rows.

One forward pass per batch serves all metrics. Several processes share the rows of a split between them and exchange
their predictions, so that every process returns the same values and no row is dropped or counted twice.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
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
from hf_memory.results import Row, write_cell
from hf_memory.storage import decode, digest, encode, file_sha256, write_text
from hf_memory.tasks.base import IGNORE_INDEX, Task

RUN_FILE = "hf_memory_run.json"
"""File beside a checkpoint's weights that says how they were trained."""

_VOLATILE = {"transformers_version", "hf_memory_version", "architectures", "dtype", "torch_dtype", "auto_map"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What rows say of the training run behind them; fields as in :class:`hf_memory.results.Row`."""

    cell: str
    arm: str
    seed: int | None = None
    data_seed: int | None = None
    learning_rate: float | None = None
    learning_rate_grid: tuple[float, ...] = ()
    schedule: str | None = None
    optim_groups: str | None = None
    stop_rule: str | None = None
    steps: int | None = None
    tokens: int | None = None
    train_seconds: float | None = None
    weights_sha256: str = ""


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
    loaded = load_for_task(checkpoint, specification.task, revision=revision) if checkpoint is not None else model
    check_fits(loaded, specification.task)
    unknown = [name for name in splits if name not in specification.splits]
    if unknown:
        raise ValueError(f"splits: {unknown[0]!r} is unknown (known: {', '.join(map(repr, specification.splits))})")
    run = run or read_run(checkpoint) or _unknown_run(loaded, checkpoint, specification)
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
    return Row(
        **dataclasses.asdict(run),
        **parameter_counts(model),
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
        device=_device_name(model),
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


def measure_state(model: MemoryPreTrainedModel, num_columns: int) -> tuple[int, int]:
    """Numbers and bytes that the live cache holds for one sequence after ``num_columns`` tokens."""
    input_ids = torch.zeros(1, num_columns, dtype=torch.int64, device=next(model.parameters()).device)
    with torch.no_grad():
        cache = model.base_model(input_ids=input_ids, use_cache=True).cache
    return cache.state_size(), cache.nbytes()


def parameter_counts(model: MemoryPreTrainedModel) -> dict[str, int]:
    """Numbers of parameters as rows hold them. Tied weights count once; per block is the rounded mean over blocks."""
    base = model.base_model
    blocks = sum(parameter.numel() for parameter in base.layers.parameters())
    norm = sum(parameter.numel() for parameter in base.norm.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "parameters_non_embedding": blocks + norm,
        "parameters_per_block": round(blocks / len(base.layers)),
    }


def config_digest(config: Any) -> str:
    """Digest of what a config says of the model, without versions and other notes of the one who saved it."""
    values = json.loads(config.to_json_string(use_diff=False))
    return digest({key: value for key, value in values.items() if key not in _VOLATILE and not key.startswith("_")})


def versions() -> dict[str, str]:
    """Versions of the packages behind a number; of those that are installed."""
    found = {}
    for name in ("hf_memory", "torch", "transformers", "datasets", "accelerate", "numpy", "numba", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def weights_digest(folder: str | os.PathLike[str]) -> str:
    """SHA-256 of a checkpoint's weights file, or of the digests of its shards; empty where there is none."""
    files = sorted(Path(folder).glob("*.safetensors"))
    digests = [file_sha256(file) for file in files]
    return digests[0] if len(digests) == 1 else digest({"shards": digests}) if digests else ""


def save_run(folder: str | os.PathLike[str], run: Run) -> Path:
    """Write the facts of a training run beside its weights."""
    return write_text(Path(folder) / RUN_FILE, json.dumps(encode(dataclasses.asdict(run)), indent=2) + "\n")


def read_run(checkpoint: str | None) -> Run | None:
    """The facts beside a local checkpoint's weights; None where there are none, or they are of other weights."""
    if checkpoint is None or not (Path(checkpoint) / RUN_FILE).is_file():
        return None
    values = decode(json.loads((Path(checkpoint) / RUN_FILE).read_text()))
    run = Run(**{**values, "learning_rate_grid": tuple(values["learning_rate_grid"])})
    return run if run.weights_sha256 == weights_digest(checkpoint) else None


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


def _unknown_run(model: MemoryPreTrainedModel, checkpoint: str | None, specification: Specification) -> Run:
    """A run of which nothing is known but its weights."""
    weights = weights_digest(checkpoint) if checkpoint is not None and Path(checkpoint).is_dir() else ""
    mixer = model.config.model_type.removeprefix("memory_")
    knobs = {"task": specification.task.key, "knobs": changed_knobs(specification.task), "mixer": mixer}
    cell = digest({**knobs, "weights": weights, "checkpoint": checkpoint or "", "config": config_digest(model.config)})
    return Run(cell=cell, arm=mixer, weights_sha256=weights)


def _device_name(model: MemoryPreTrainedModel) -> str:
    device = next(model.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _as_value(value: MetricValue) -> MetricValue:
    """Plain Python numbers, which is what rows hold."""
    return MetricValue(
        value=float(value.value),
        numerator=float(value.numerator),
        denominator=int(value.denominator),
        chance=None if value.chance is None else float(value.chance),
        baselines={name: float(level) for name, level in value.baselines.items()},
    )
