"""Recall and extrapolation of a trained model, as result rows.

One forward pass per batch serves all metrics. Several processes share the rows of a split between them, or the columns
of its rows, and exchange their predictions, so that every process returns the same values and no row is dropped or
counted twice.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from hf_memory.data.collator import MemoryCollator
from hf_memory.data.rows import RowSource
from hf_memory.data.specification import Specification, changed_knobs, data_version, length_bounds
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.generation import check_generates, generate_answers
from hf_memory.experiments.metrics import Count, MetricValue, add_counts, count_predictions, metric_values
from hf_memory.experiments.pieces import predict_in_pieces
from hf_memory.experiments.provenance import (
    Run,
    backend_name,
    check_weights,
    config_digest,
    device_name,
    measure_state,
    parameter_counts,
    read_config,
    run_of,
    versions,
)
from hf_memory.experiments.resolution import warn_unresolved
from hf_memory.experiments.results import Row, write_cell
from hf_memory.experiments.segments import predict_in_segments, shares_time
from hf_memory.mixers.auto import HEADS, model_class, model_keys
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.ops.backends.proof import noted
from hf_memory.storage import digest
from hf_memory.tasks.base import IGNORE_INDEX, Task

GENERATED = "generated_"
"""Stands before the names of the metrics of what a model writes itself."""

AUTO = {"causal": AutoModelForCausalLM, "token_classification": AutoModelForTokenClassification}
"""The class of transformers that loads a model, by its head."""


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
    generate: bool = False,
    share: str = "rows",
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
        generate: Also let the model write each answer itself, where a row has one answer after a prompt: the metrics of
            what it writes stand beside the others, with ``generated_`` before their names.
        share: What several processes share of a split, ``"rows"`` or ``"time"``, see :func:`predict`.

    Returns:
        One row per split, the same in every process.

    Raises:
        ValueError: If the model lacks the task's head or has fewer ids or classes than the task, a split is unknown,
            answers cannot be generated, or the processes cannot share the rows in this way.
    """
    _check_splits(specification, splits)
    checkpoint = None if isinstance(model, PreTrainedModel) else str(model)
    loaded = model if isinstance(model, PreTrainedModel) else load_for_task(model, specification.task, revision)
    check_fits(loaded, specification.task)
    _check_ways(loaded, generate, share, accelerator)
    _check_lengths(loaded, specification, splits)
    run = run or run_of(loaded, checkpoint, specification)
    device = accelerator.device if accelerator is not None else next(loaded.parameters()).device
    was_training = loaded.training
    loaded.to(device).eval()
    shown = progress and (accelerator is None or accelerator.is_main_process)
    total = sum(len(rows) for rows in splits.values()) * (2 if generate else 1)
    shown_as = {"total": total, "desc": f"evaluate {run.arm}", "unit": "row", "disable": not shown}
    try:
        with noted(run.kernels) as kernels, tqdm(**shown_as) as bar:
            how = (run, batch_size, accelerator, bar, generate, share)
            found = [
                _evaluate_split(loaded, specification, name, TensorRows(rows), *how) for name, rows in splits.items()
            ]
        found = [dataclasses.replace(row, kernels={**(run.kernels or {}), **kernels} or None) for row in found]
        # Processes differ in the times that they measure; the rows are those of the first.
        return found if accelerator is None else broadcast_object_list(found)
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
    generate: bool,
    share: str,
) -> Row:
    """One forward pass over a split, with ``generate`` also its answers, and the row of both."""
    started = time.perf_counter()
    columns = predict(model, rows, batch_size, accelerator, bar, share)
    if accelerator is None or accelerator.is_main_process:
        warn_unresolved(name, columns.get("unresolved"))
    part = specification.splits[name].parts[0]
    length = max(length_bounds(found.length)[1] for found in specification.splits[name].parts)
    metrics = split_metrics(specification, name, rows.lengths.numpy(), columns)
    if generate:
        written = generate_answers(model, rows, batch_size, accelerator, bar)
        found = split_metrics(specification, name, rows.lengths.numpy(), written)
        metrics.update({f"{GENERATED}{metric}": value for metric, value in found.items()})
    numbers, size = measure_state(model, part.task.row_length(length))
    low, high = length_bounds(specification.train_length)
    counts = parameter_counts(model)
    return Row(
        **dataclasses.asdict(run),
        parameters=counts["parameters"],
        parameters_non_embedding=counts["parameters_non_embedding"],
        parameters_per_block=counts["parameters_per_block"],
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
        metrics=metrics,
        eval_seconds=time.perf_counter() - started,
        device=device_name(model),
        backend=backend_name(),
        versions=versions(),
    )


def predict(
    model: MemoryPreTrainedModel,
    rows: TensorRows,
    batch_size: int,
    accelerator: Accelerator | None = None,
    bar: Any = None,
    share: str = "rows",
) -> dict[str, np.ndarray]:
    """Run a model over rows; very long ones in pieces, see :mod:`hf_memory.experiments.pieces`.

    Args:
        model: A model with a head, in evaluation mode.
        rows: The rows.
        batch_size: Rows per forward pass and process.
        accelerator: Device, mixed precision and processes.
        bar: What to tell of the rows that are done.
        share: ``"rows"`` gives each process rows of its own, and is the faster way. ``"time"`` gives it a segment of
            every row, see :mod:`hf_memory.experiments.segments`; models whose state grows share rows all the same.

    Returns:
        ``input_ids``, ``labels``, ``predictions`` and ``token_loss``, each (n, T), padded on the right to the longest
        row and the same in every process. Predictions and losses stand at the position of the output. Where a layer can
        tell, also ``unresolved`` (n,), whether a row's state is too large: see :mod:`hf_memory.experiments.resolution`.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if shares_time(model, share, accelerator):
        return _assemble(predict_in_segments(model, rows, batch_size, accelerator, bar), len(rows))
    world, rank = (1, 0) if accelerator is None else (accelerator.num_processes, accelerator.process_index)
    collate = MemoryCollator()
    autocast = contextlib.nullcontext if accelerator is None else accelerator.autocast
    found: list[tuple[list[int], dict[str, np.ndarray]]] = []
    for first in range(0, len(rows), world * batch_size):
        block = range(first, min(first + world * batch_size, len(rows)))
        own = list(block[rank::world])
        # A process without rows in the last block still takes part, since a sharded model needs all of them.
        batch = collate(rows.__getitems__(own or [0]))
        with autocast():
            predictions, token_loss, unresolved = predict_in_pieces(model, batch)
        columns = {"input_ids": batch["input_ids"], "labels": batch["labels"], "predictions": predictions}
        columns |= {"token_loss": token_loss.float(), "unresolved": unresolved}
        if own:
            found.append((own, {key: value.numpy() for key, value in columns.items() if value is not None}))
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
    fill = {"labels": IGNORE_INDEX, "predictions": IGNORE_INDEX}
    shapes = {name: ((num_rows, width)[: values.ndim], values.dtype) for name, values in found[0][1].items()}
    whole = {name: np.full(shape, fill.get(name, 0), dtype) for name, (shape, dtype) in shapes.items()}
    for indices, columns in found:
        for name, values in columns.items():
            whole[name][(indices, slice(values.shape[-1]))[: values.ndim]] = values
    return whole


def load_for_task(
    checkpoint: str | os.PathLike[str], task: Task, revision: str | None = None, trust_remote_code: bool = False
) -> MemoryPreTrainedModel:
    """Load a checkpoint with the head that a task needs, on the CPU.

    Code that lies beside the weights is run for a mixer that this package does not have, and only where that is
    allowed; nobody is asked.

    Raises:
        ValueError: If it is a checkpoint of another library, its head is not the one of the task, its weights are
            damaged, or it needs code of its own that is not allowed.
    """
    where: dict[str, Any] = {"revision": revision or "main"}
    is_local = Path(checkpoint).is_dir()
    values = read_config(checkpoint) if is_local else PreTrainedConfig.get_config_dict(checkpoint, **where)[0]
    kind = str(values.get("model_type"))
    if "auto_map" in values and kind.removeprefix("memory_") not in model_keys():
        if not trust_remote_code:
            raise ValueError(
                f"checkpoint: {str(checkpoint)!r} has model_type {kind!r} and code of its own, which is not run; "
                "give --trust-remote-code (trust_remote_code=True) where you trust its origin"
            )
        return AUTO[task.head].from_pretrained(checkpoint, trust_remote_code=True, **where)
    if is_local and kind.removeprefix("memory_") in model_keys() and kind.startswith("memory_"):
        read_config(checkpoint, model_class(kind.removeprefix("memory_"), task.head).config_class)
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, **where)
    key = config.model_type.removeprefix("memory_")
    if not config.model_type.startswith("memory_") or key not in model_keys():
        known = ", ".join(f"memory_{key}" for key in model_keys())
        raise ValueError(
            f"checkpoint: {str(checkpoint)!r} has model_type {config.model_type!r}, and `hf-memory probe` asks models "
            f"of other libraries (known here: {known})"
        )
    saved = config.architectures or []
    if saved and not saved[0].endswith(HEADS[task.head]):
        raise ValueError(f"checkpoint: {task.key} needs a model {HEADS[task.head]}, {str(checkpoint)!r} is {saved[0]}")
    check_weights(checkpoint)
    return model_class(key, task.head).from_pretrained(checkpoint, **where)


def _check_splits(specification: Any, splits: Any) -> None:
    """Raise a ``ValueError`` where splits are none of those that are specified."""
    if not isinstance(specification, Specification):
        raise ValueError(f"specification must be made by specify, as specify({specification!r}) does")
    if not isinstance(splits, Mapping):
        raise ValueError(f"splits must be rows by split name, as in {{'test_64': rows}}, got {type(splits).__name__}")
    unknown = [name for name in splits if name not in specification.splits]
    if unknown:
        raise ValueError(f"splits: {unknown[0]!r} is unknown (known: {', '.join(map(repr, specification.splits))})")


def _check_ways(model: MemoryPreTrainedModel, generate: bool, share: str, accelerator: Accelerator | None) -> None:
    """Raise where a model cannot write answers, or processes cannot share rows as asked, before anything is run."""
    if generate:
        check_generates(model)
    shares_time(model, share, accelerator)


def _check_lengths(model: MemoryPreTrainedModel, specification: Specification, splits: Mapping[str, Any]) -> None:
    """Raise where a model that is built for a length would meet a longer row, before anything is evaluated."""
    if not model.config.limited_length:
        return
    limit = model.config.max_position_embeddings
    for name in splits:
        for part in specification.splits[name].parts:
            columns = part.task.row_length(length_bounds(part.length)[1])
            if columns > limit:
                raise ValueError(
                    f"max_position_embeddings={limit} is the length that this model is built for, and {name} has rows "
                    f"of {columns} tokens; leave it out, or train with a larger one"
                )


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
    definition: dict[str, Any] = {
        "evaluation_of": row.cell,
        "weights": row.weights_sha256,
        "task": row.task,
        "knobs": row.task_knobs,
        "data_version": row.data_version,
        "splits": {found.split: found.measured().denominator for found in rows},
    }
    if any(metric.startswith(GENERATED) for metric in row.metrics):
        definition["generated"] = True
    if any(metric.startswith(("counterfactual_", "induction_")) for metric in row.metrics):
        definition["mechanisms"] = True
    return write_cell(folder, definition, [dataclasses.replace(found, cell=digest(definition)) for found in rows])


def split_metrics(
    specification: Specification, name: str, num_columns: np.ndarray, columns: Mapping[str, np.ndarray]
) -> dict[str, MetricValue]:
    """Metrics of a split, whose rows may come from several laws and lengths.

    Counts are added. A chance level or a baseline is the mean of those of the laws and lengths, weighted by targets.

    Args:
        specification: What the split is.
        name: Name of the split.
        num_columns: Columns of each row without padding (n,).
        columns: What :func:`predict` returns.
    """
    groups: dict[tuple[Task, int], list[int]] = {}
    for index, (task, length) in enumerate(_laws(specification, name, num_columns)):
        groups.setdefault((task, length), []).append(index)
    found = []
    for (task, length), indices in groups.items():
        own = {key: values[indices] for key, values in columns.items() if key != "unresolved"}
        counts = count_predictions(task, **own)
        found.append((counts, metric_values(task, length, counts)))
    whole = add_counts(counts for counts, _ in found)
    return {key: _combine(count, [values[key] for _, values in found]) for key, count in whole.items()}


def _laws(specification: Specification, name: str, num_columns: np.ndarray) -> Iterator[tuple[Task, int]]:
    """Law and length of each row, in the order of the stored split."""
    parts = specification.splits[name].parts
    tasks = [parts[0].task] * len(num_columns)
    if len(parts) > 1:
        source = RowSource(specification)
        tasks = [task for block in range(source.num_blocks(name)) for task in source.laws(name, block)]
        if len(tasks) != len(num_columns):
            raise ValueError(f"splits: {name!r} mixes laws and must hold its {len(tasks)} rows, got {len(num_columns)}")
    lengths: dict[Task, dict[int, int]] = {}
    for part in parts:
        low, high = length_bounds(part.length)
        own = {part.task.row_length(length): length for length in range(low, high + 1)}
        lengths.setdefault(part.task, {}).update(own)
    longest = max(length_bounds(part.length)[1] for part in parts)
    for task, columns in zip(tasks, num_columns.tolist(), strict=True):
        yield task, lengths[task].get(columns, longest)


def _combine(count: Count, values: list[MetricValue]) -> MetricValue:
    """One value from the counts of all groups, in the plain numbers that rows hold."""
    numerator, denominator = count.total
    weights = [value.denominator for value in values]

    def mean(levels: list[float | None]) -> float | None:
        known = [level for level in levels if level is not None]
        if len(known) < len(levels) or not denominator:
            return None
        return sum(level * weight for level, weight in zip(known, weights, strict=True)) / denominator

    names = set.intersection(*(set(value.baselines) for value in values))
    baselines = {
        name: mean([value.baselines[name] for value in values]) for name in values[0].baselines if name in names
    }
    return MetricValue(
        value=count.value,
        numerator=numerator,
        denominator=int(denominator) if denominator == int(denominator) else denominator,
        chance=values[0].chance if len(values) == 1 else mean([value.chance for value in values]),
        baselines={name: level for name, level in baselines.items() if level is not None},
    )
