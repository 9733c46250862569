"""How a model recalls: what its answers follow when the context is changed, and where its attention looks.

Both need rows with pairs ``key value`` at their start, whose keys come again as queries.

*Counterfactual recall*: in each row one query is chosen. Either its value in the context is exchanged for an id that
the row does not hold, or its key changes places with another key. A model that looks the answer up gives the new one.

*Induction*: the attention that a query pays to the token after the last time it stood in the row, which is its value,
and to that place itself (Olsson et al., 2022, *In-context learning and induction heads*).
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_memory.data.collator import MemoryCollator
from hf_memory.data.specification import Specification
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.evaluation import load_for_task, predict
from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import Row
from hf_memory.mixers.attention import AttentionMixer
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.tasks.associative_recall import AssociativeRecall
from hf_memory.tasks.base import IGNORE_INDEX, Task
from hf_memory.tasks.mqar import MQAR

CHANGES = ("value", "key")
TASKS_WITH_PAIRS = (MQAR.key, AssociativeRecall.key)
"""Keys of the tasks that these measures fit."""
MEASURES = tuple(f"{kind}_{change}" for kind in ("counterfactual", "induction") for change in CHANGES)
"""Names of the metrics of this module."""


def add_mechanisms(
    found: Sequence[Row],
    checkpoint: str | os.PathLike[str],
    specification: Specification,
    splits: Mapping[str, Any],
    batch_size: int = 256,
    accelerator: Any = None,
) -> list[Row]:
    """Rows of an evaluation with the measures of :func:`measure_mechanisms` among their metrics.

    Raises:
        ValueError: If the task has no pairs, or a split mixes laws or lengths; it is named.
    """
    model = load_for_task(checkpoint, specification.task)
    if accelerator is not None:
        model = model.to(accelerator.device)
    rows = []
    for row in found:
        parts = specification.splits[row.split].parts
        if len(parts) > 1:
            raise ValueError(f"splits: {row.split!r} mixes {len(parts)} laws, of which each has pairs of its own")
        measured = measure_mechanisms(model, parts[0].task, TensorRows(splits[row.split]), batch_size, accelerator)
        rows.append(dataclasses.replace(row, metrics={**row.metrics, **measured}))
    return rows


def measure_mechanisms(
    model: MemoryPreTrainedModel,
    task: Task,
    rows: TensorRows,
    batch_size: int = 256,
    accelerator: Any = None,
    seed: int = 0,
) -> dict[str, MetricValue]:
    """Counterfactual recall of any model, and the induction of its best attention head where it has one.

    Args:
        model: A trained model with a causal head.
        task: The law of all rows.
        rows: Rows of one length.
        batch_size: Rows per forward pass and process.
        accelerator: As for :func:`hf_memory.experiments.evaluation.predict`.
        seed: Seed of the choice of queries and of the ids that are put in.

    Returns:
        ``counterfactual_value`` and ``counterfactual_key``, the share of changed answers that the model follows, and,
        with attention, ``induction_value`` and ``induction_key``: attention to the value and to the key.

    Raises:
        ValueError: If the task has no pairs, or the rows differ in length.
    """
    ids, labels = _columns(task, rows)
    found = {
        f"counterfactual_{change}": counterfactual_recall(
            model, task, ids, labels, change, batch_size, accelerator, seed
        )
        for change in CHANGES
    }
    if any(isinstance(module, AttentionMixer) for module in model.modules()):
        queries = int((labels != IGNORE_INDEX).sum())
        for name, layers in induction_scores(model, task, rows, batch_size).items():
            best = max(float(heads.max()) for heads in layers)
            found[f"induction_{name}"] = MetricValue(best, best * queries, queries)
    return found


def counterfactual_recall(
    model: MemoryPreTrainedModel,
    task: Task,
    input_ids: np.ndarray,
    labels: np.ndarray,
    change: str = "value",
    batch_size: int = 256,
    accelerator: Any = None,
    seed: int = 0,
) -> MetricValue:
    """Share of the changed answers that a model gives, over one query in each row (n, L).

    Rows whose answer the change leaves as it was are not counted, nor those that have no id left to put in. Chance is a
    guess among the values of the changed context.
    """
    changed, rows, columns, answers = intervene(task, input_ids, labels, change, np.random.default_rng(seed))
    values = changed[rows, 1 : 2 * _pairs(task, input_ids.shape[1]) : 2]
    chance = float((values == answers[:, None]).mean()) if len(rows) else math.nan
    predictions = predict(model, TensorRows({"input_ids": changed, "labels": labels}), batch_size, accelerator)
    # The head is causal: the output for a label stands one position before it.
    followed = int((predictions["predictions"][rows, columns - 1] == answers).sum())
    value = followed / len(rows) if len(rows) else math.nan
    return MetricValue(value, followed, len(rows), chance)


def intervene(
    task: Task, input_ids: np.ndarray, labels: np.ndarray, change: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Change the context of one query in each row.

    Args:
        task: A law whose rows start with pairs.
        input_ids: Rows (n, L).
        labels: Their labels (n, L), at least one in each row.
        change: ``"value"`` or ``"key"``.
        rng: Source of the choices.

    Returns:
        The changed rows (n, L), and of the m rows in which the right answer is another one now: their numbers, the
        columns of the labels, and the answers, each (m,). A row that holds all ids already keeps its value.

    Raises:
        ValueError: If the task has no pairs.
    """
    if change not in CHANGES:
        raise ValueError(f"change must be one of {', '.join(CHANGES)}, got {change!r}")
    pairs = _pairs(task, input_ids.shape[1])
    row = np.arange(len(input_ids))
    column = np.where(labels != IGNORE_INDEX, rng.random(labels.shape), -1.0).argmax(1)
    query, before = input_ids[row, column - 1], labels[row, column]
    changed = input_ids.copy()
    keys, values = changed[:, 0 : 2 * pairs : 2], changed[:, 1 : 2 * pairs : 2]  # views
    asked = keys == query[:, None]
    if change == "value":
        fresh = _unused(task, input_ids, rng)[:, None]
        values[:] = np.where(asked & (fresh >= 0), fresh, values)
    else:
        other = np.where(asked, -1.0, rng.random(keys.shape)).argmax(1)
        other_key = keys[row, other]
        there = keys == other_key[:, None]
        keys[:] = np.where(asked, other_key[:, None], np.where(there, query[:, None], keys))
    answers = task.solve(changed)[row, column]
    moved = answers != before
    return changed, row[moved], column[moved], answers[moved]


def _unused(task: Task, input_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each row (n, L), a random id of the values' range that it does not hold (n,), or -1 where it holds all."""
    has_range = isinstance(task, MQAR) and not task.shared_vocab
    free = np.ones((len(input_ids), task.vocab_size), dtype=bool)
    free[:, : task.vocab_size // 2 if has_range else 1] = False
    np.put_along_axis(free, input_ids.astype(np.int64), False, axis=1)
    chosen = np.where(free, rng.random(free.shape, dtype=np.float32), -1.0).argmax(1)
    return np.where(free.any(1), chosen, -1)


def induction_scores(
    model: MemoryPreTrainedModel, task: Task, rows: TensorRows, batch_size: int = 256
) -> dict[str, list[np.ndarray]]:
    """Mean attention of queries to the value and to the key of their pair, of each layer with attention and each head.

    Of a context that is given several times the last pass counts. Weights without a normaliser are divided by their
    sum.

    Returns:
        ``value`` and ``key``, each with one array (heads,) for every layer with attention.

    Raises:
        ValueError: If the task has no pairs, the rows differ in length, or the model has no attention.
    """
    ids, labels = _columns(task, rows)
    mixers = [module for module in model.modules() if isinstance(module, AttentionMixer)]
    if not mixers:
        raise ValueError(f"model: {type(model).__name__} has no attention")
    totals = {name: [np.zeros(mixer.num_heads) for mixer in mixers] for name in CHANGES}
    device, collate = next(model.parameters()).device, MemoryCollator()
    inputs: dict[nn.Module, torch.Tensor] = {}
    hooks = [mixer.register_forward_pre_hook(lambda m, args: inputs.__setitem__(m, args[0])) for mixer in mixers]
    was_training = model.training
    model.eval()
    try:
        for first in range(0, len(rows), batch_size):
            block = range(first, min(first + batch_size, len(rows)))
            batch = {name: value.to(device) for name, value in collate(rows.__getitems__(list(block))).items()}
            row, query, place = _places(task, ids[first : first + len(block)], labels[first : first + len(block)])
            with torch.no_grad():
                model(**batch, return_logits=False)
                for layer, mixer in enumerate(mixers):
                    weights = mixer.attention_weights(inputs[mixer])[row, :, query].double()  # (queries, heads, T)
                    weights = weights / weights.sum(-1, keepdim=True)
                    for name, column in (("value", place + 1), ("key", place)):
                        found = weights[np.arange(len(row)), :, column]
                        totals[name][layer] += found.sum(0).cpu().numpy()
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return {name: [total / (labels != IGNORE_INDEX).sum() for total in layers] for name, layers in totals.items()}


def _places(task: Task, ids: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns of the queries, and the column of each one's key in the last pass of the context."""
    row, column = np.nonzero(labels != IGNORE_INDEX)
    query, pairs = column - 1, _pairs(task, ids.shape[1])
    same = ids[row, 0 : 2 * pairs : 2] == ids[row, query][:, None]
    if not same.any(1).all():
        raise ValueError("rows: a query is no key of its context")
    return row, query, 2 * (pairs - 1 - same[:, ::-1].argmax(1))


def _pairs(task: Task, length: int) -> int:
    """Pairs at the start of a row."""
    if isinstance(task, MQAR):
        return task.num_kv_pairs * task.num_passes
    if isinstance(task, AssociativeRecall):
        return task.pairs_at(length)
    raise ValueError(f"task: {task.key} has no pairs at the start of its rows; {' and '.join(TASKS_WITH_PAIRS)} have")


def _columns(task: Task, rows: TensorRows) -> tuple[np.ndarray, np.ndarray]:
    """Ids and labels (n, L) of rows of one length."""
    if not rows.uniform:
        raise ValueError("rows: all must have one length")
    _pairs(task, int(rows.lengths[0]))
    batch = rows.__getitems__(list(range(len(rows))))
    return batch["input_ids"].numpy(), batch["labels"].numpy()
