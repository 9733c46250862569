"""What a run may measure of its trained model besides metrics: a metric by annotations, and what decays leave.

*Slices*: a metric over the positions alone at which an annotation of the task has some value, such as stale answers by
the age of the binding. Values are taken together by powers of two: 0, 1, 2 to 3, 4 to 7, and so on.

*Decays*: what is left of each number of a diagonal state when the first answer of a row is due, the product of the
moduli of its transitions over the columns before. A recurrence whose slowest number has decayed by then cannot answer.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hf_memory.data.collator import MemoryCollator
from hf_memory.data.specification import Specification
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.evaluation import predict
from hf_memory.experiments.metrics import Count, MetricValue, add_counts, align, count_predictions
from hf_memory.experiments.results import Row
from hf_memory.models.modeling import MemoryPreTrainedModel, Mixer
from hf_memory.names import check_names
from hf_memory.tasks.base import IGNORE_INDEX, Task

DECAYS = ("slowest_decay", "median_decay")
"""Metrics of decays: of the number that decays least, and of the middle one."""

_ROWS = 8
"""Rows over which decays are averaged."""


def slice_name(metric: str, annotation: str, low: int) -> str:
    """Name of a metric over the values of an annotation from a power of two to below the next one.

    >>> slice_name("stale", "age", 1), slice_name("stale", "age", 4)
    ('stale_at_age_1', 'stale_at_age_4_to_7')
    """
    return f"{metric}_at_{annotation}_{low}" + (f"_to_{2 * low - 1}" if low > 1 else "")


def is_slice(name: str, wanted: Mapping[str, Sequence[str]]) -> bool:
    """Whether a name can be that of a slice; which values an annotation has, rows alone tell.

    >>> is_slice("stale_at_age_4_to_7", {"stale": ["age"]}), is_slice("stale_at_rate_1", {"stale": ["age"]})
    (True, False)
    >>> is_slice("stale_at_age_4_to_8", {"stale": ["age"]}), is_slice("stale_at_age_3", {"stale": ["age"]})
    (False, False)
    """
    found = re.search(r"_(\d{1,18})(_to_\d+)?$", name)
    low = int(found[1]) if found else 0
    known = (slice_name(metric, annotation, low) for metric, names in wanted.items() for annotation in names)
    return low & (low - 1) == 0 and name in known


def annotation_names(task: Task, length: int) -> tuple[str, ...]:
    """Names of the annotations by which metrics of a task may be told apart; two rows are asked."""
    return tuple(task.annotate(*task.sample(np.random.default_rng(0), length, 2)))


def add_further(
    found: Sequence[Row],
    model: MemoryPreTrainedModel,
    specification: Specification,
    splits: Mapping[str, Any],
    wanted: Mapping[str, Any],
) -> list[Row]:
    """Rows of an evaluation with the measures that ``wanted`` asks for by ``slices`` and ``decays``.

    Splits that mix laws have rows of several annotations, and stay as they are.
    """
    slices = wanted.get("slices") or {}
    if not slices and not wanted.get("decays"):
        return list(found)
    was_training = model.training
    model.eval()
    rows = []
    for row in found:
        parts, own, further = specification.splits[row.split].parts, TensorRows(splits[row.split]), {}
        if len(parts) == 1 and slices:
            further.update(measure_slices(parts[0].task, predict(model, own, 256), slices))
        if len(parts) == 1 and wanted.get("decays"):
            further.update(measure_decays(model, parts[0].task, own))
        rows.append(dataclasses.replace(row, metrics={**row.metrics, **further}))
    model.train(was_training)
    return rows


def measure_slices(
    task: Task, columns: Mapping[str, np.ndarray], wanted: Mapping[str, Sequence[str]]
) -> dict[str, MetricValue]:
    """Metrics of the task by the values of annotations.

    Args:
        task: The law of the rows.
        columns: ``input_ids``, ``labels`` and ``predictions`` (n, L), as :func:`predict` returns them.
        wanted: Names of annotations by metric.

    Raises:
        ValueError: A metric or an annotation is none of the task's.
    """
    ids, labels, predictions = (columns[name] for name in ("input_ids", "labels", "predictions"))
    notes = task.annotate(ids, labels)
    score = notes["score"] & (align(predictions, labels, task.head)[1] != IGNORE_INDEX)
    found: dict[str, Count] = {}
    for annotation in dict.fromkeys(name for names in wanted.values() for name in names):
        check_names([annotation], notes, f"annotation of task {task.key!r}")
        values = np.maximum(notes[annotation].astype(np.int64), 0)
        bins = np.where(values > 0, 1 << np.floor(np.log2(np.maximum(values, 1))).astype(np.int64), 0)
        for low in np.unique(bins[score]).tolist():
            own = np.where(score & (bins == low), labels, IGNORE_INDEX)
            counts = count_predictions(task, ids, own, predictions)
            for metric in (metric for metric, names in wanted.items() if annotation in names):
                check_names([metric], counts, f"metric of task {task.key!r}")
                found[slice_name(metric, annotation, low)] = counts[metric]
    return {name: MetricValue(count.value, *count.total) for name, count in add_counts([found]).items()}


def measure_decays(model: MemoryPreTrainedModel, task: Task, rows: TensorRows) -> dict[str, MetricValue]:
    """What is left of the numbers of diagonal states when the first answer of a row is due, averaged over some rows.

    Nothing where no mixer of the model has such a state.
    """
    batch = MemoryCollator()(rows.__getitems__(list(range(min(_ROWS, len(rows))))))
    due = task.annotate(batch["input_ids"].numpy(), batch["labels"].numpy())["score"].argmax(1)
    left: list[torch.Tensor] = []

    def note(mixer: Mixer, inputs: tuple[torch.Tensor, ...]) -> None:
        decays = mixer.decays(inputs[0])
        if decays is not None:
            before = torch.arange(decays.shape[1], device=decays.device)[None, :] < torch.from_numpy(due)[:, None]
            logs = decays.double().clamp(min=1e-300).log()
            left.append(torch.where(before.unsqueeze(-1), logs, 0.0).sum(1).exp())

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, Mixer)]
    try:
        with torch.no_grad():
            model(**{name: value for name, value in batch.items() if name != "labels"})
    finally:
        for hook in hooks:
            hook.remove()
    if not left:
        return {}
    whole = torch.cat(left, dim=1)
    values = (float(whole.amax(1).mean()), float(whole.median(1).values.mean()))
    return {name: MetricValue(value, value * len(due), len(due)) for name, value in zip(DECAYS, values, strict=True)}
