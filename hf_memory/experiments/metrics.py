"""Metrics: counts first, ratios last.

A count is a numerator with its denominator. Counts of batches, of processes and of rows of unlike lengths add up, and
only their sum is divided, so that no value moves with the batch size, the padding or the number of processes. Every
value stands beside its number of targets, its chance level and the values of heuristics that do not solve the task.

Arrays are (n, L): rows and columns. ``predictions`` are what the model outputs *at* each position, class ids or real
numbers; where a position is not supervised they may hold anything, -100 included. :func:`align` is the one place that
knows where the target of an output stands.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hf_memory.names import check_names
from hf_memory.tasks.base import IGNORE_INDEX, Task

Head = Literal["causal", "token_classification"]


REACHED = 0.9
"""A length counts as reached where the metric is above this, there and at every shorter length."""


@dataclasses.dataclass(frozen=True)
class Count:
    """A numerator and a denominator that add up; arrays of both, one entry for each class, for a macro average."""

    numerator: Any
    denominator: Any

    def __add__(self, other: "Count") -> "Count":
        return Count(self.numerator + other.numerator, self.denominator + other.denominator)

    @property
    def value(self) -> float:
        """The ratio, NaN without a target; of arrays, the mean ratio over the classes that have targets."""
        numerator = np.atleast_1d(np.asarray(self.numerator, dtype=np.float64))
        denominator = np.atleast_1d(np.asarray(self.denominator, dtype=np.float64))
        present = denominator > 0
        return float(np.mean(numerator[present] / denominator[present])) if present.any() else math.nan

    @property
    def total(self) -> tuple[float, float]:
        """Numerator and denominator as numbers, summed over classes."""
        return float(np.sum(self.numerator)), float(np.sum(self.denominator))


@dataclasses.dataclass(frozen=True)
class MetricValue:
    """A metric and what is needed to judge it.

    Attributes:
        value: Numerator over denominator; the mean of such ratios over classes for a macro recall.
        numerator: Sum of what was counted.
        denominator: Number of targets: positions, rows, or classes' positions together.
        chance: Value of the best predictor that remembers nothing; ``None`` where it is not known.
        baselines: Values of named heuristics, for the headline metric.
    """

    value: float
    numerator: float
    denominator: float
    chance: float | None = None
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)


def align(predictions: np.ndarray, labels: np.ndarray, head: Head) -> tuple[np.ndarray, np.ndarray]:
    """Put each output at the position of its target.

    Args:
        predictions: Outputs (n, L) at each position: ids, real numbers, or losses.
        labels: Labels (n, L) as stored.
        head: For ``"causal"`` the output at ``t`` is due at ``labels[:, t + 1]``; no output precedes the first label,
            which is ignored. For ``"token_classification"`` both stand at the same position.

    Returns:
        Predictions and labels, (n, L) each, position by position.

    Raises:
        ValueError: If the arrays are not of one two-dimensional shape, or the head is unknown.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if labels.ndim != 2 or predictions.shape != labels.shape:
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must have one shape (n, L)")
    if head == "token_classification":
        return predictions, labels
    if head != "causal":
        raise ValueError(f"head must be 'causal' or 'token_classification', got {head!r}")
    due, targets = np.full_like(predictions, IGNORE_INDEX), labels.copy()
    due[:, 1:] = predictions[:, :-1]
    targets[:, :1] = IGNORE_INDEX
    return due, targets


def token_accuracy(predictions: np.ndarray, labels: np.ndarray, where: np.ndarray) -> Count:
    """Share of the positions in ``where`` (n, L) bool whose aligned prediction is the label."""
    return Count(int(((predictions == labels) & where).sum()), int(where.sum()))


def sequence_accuracy(predictions: np.ndarray, labels: np.ndarray, where: np.ndarray) -> Count:
    """Share of rows that are right at every position in ``where``; rows without such a position do not count."""
    counted = where.any(axis=1)
    right = ((predictions == labels) | ~where).all(axis=1)
    return Count(int((right & counted).sum()), int(counted.sum()))


def macro_recall(predictions: np.ndarray, labels: np.ndarray, where: np.ndarray, num_labels: int) -> Count:
    """Recall of each class over the positions in ``where``, as arrays (C,); its value averages over classes."""
    classes = labels[where].astype(np.int64)
    hits = classes[predictions[where] == classes]
    return Count(np.bincount(hits, minlength=num_labels), np.bincount(classes, minlength=num_labels))


def mse(predictions: np.ndarray, labels: np.ndarray, where: np.ndarray) -> Count:
    """Mean squared error over the positions in ``where``, summed in double precision."""
    errors = predictions[where].astype(np.float64) - labels[where]
    return Count(float(np.square(errors).sum()), int(where.sum()))


def accuracy_by(
    values: np.ndarray, predictions: np.ndarray, labels: np.ndarray, where: np.ndarray
) -> dict[int | float, Count]:
    """Token accuracy for each value that an annotation ``values`` (n, L) takes in ``where``, in ascending order."""
    kept, group = np.unique(values[where], return_inverse=True)
    right = (predictions == labels)[where]
    hits, totals = np.bincount(group[right], minlength=len(kept)), np.bincount(group, minlength=len(kept))
    return {value: Count(int(hit), int(total)) for value, hit, total in zip(kept.tolist(), hits, totals, strict=True)}


def accuracy_by_annotation(
    task: Task, name: str, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
) -> dict[int | float, Count]:
    """Token accuracy for each value of an annotation of the task, or for each column where ``name`` is ``"position"``.

    Columns are those of the labels, counted from 0.
    """
    input_ids, labels = np.asarray(input_ids), np.asarray(labels)
    notes = dict(task.annotate(input_ids, labels))
    notes["position"] = np.broadcast_to(np.arange(labels.shape[1]), labels.shape)
    check_names([name], notes, f"annotation of task {task.key!r}")
    due, targets = align(predictions, labels, task.head)
    return accuracy_by(notes[name], due, targets, notes["score"] & (targets != IGNORE_INDEX))


def count_predictions(
    task: Task,
    input_ids: np.ndarray,
    labels: np.ndarray,
    predictions: np.ndarray,
    token_loss: np.ndarray | None = None,
) -> dict[str, Count]:
    """Counts of every metric of the task over some rows; counts of further rows are added with :func:`add_counts`.

    Args:
        task: The law whose rows these are, with the knobs of the rows.
        input_ids: Ids (n, L), padded at will.
        labels: Labels (n, L), ``IGNORE_INDEX`` where a position is padding or not supervised.
        predictions: Outputs (n, L) at each position: class ids, or real numbers for regression.
        token_loss: Loss (n, L) of the output at each position.

    Raises:
        ValueError: If shapes differ, or a label is outside the classes.
    """
    input_ids, labels = np.asarray(input_ids), np.asarray(labels)
    due, targets = align(predictions, labels, task.head)
    if input_ids.shape != labels.shape:
        raise ValueError(f"input_ids {input_ids.shape} and labels {labels.shape} must have one shape (n, L)")
    supervised = targets != IGNORE_INDEX
    notes = task.annotate(input_ids, labels)
    score = notes["score"] & supervised
    if task.problem_type == "regression":
        counts = {"mse": mse(due, targets, score)}
    else:
        counts = _classification_counts(task, due, targets, score, supervised, notes)
    extra = getattr(task, "extra_metrics", None)
    if extra is not None:
        counts.update({name: Count(*pair) for name, pair in extra(input_ids, labels, due).items()})
    if token_loss is not None:
        losses, _ = align(token_loss, labels, task.head)
        counts["loss"] = Count(float(losses[supervised].astype(np.float64).sum()), int(supervised.sum()))
    return counts


def _classification_counts(
    task: Task,
    due: np.ndarray,
    targets: np.ndarray,
    score: np.ndarray,
    supervised: np.ndarray,
    notes: Mapping[str, np.ndarray],
) -> dict[str, Count]:
    """Accuracies over the scored positions, and macro recalls where classes are few and stand at their own position."""
    outside = supervised & ((targets < 0) | (targets >= task.num_labels))
    if outside.any():
        raise ValueError(f"labels must be {IGNORE_INDEX} or in [0, {task.num_labels - 1}], got {targets[outside][0]}")
    counts = {
        "token_accuracy": token_accuracy(due, targets, score),
        "sequence_accuracy": sequence_accuracy(due, targets, score),
    }
    if task.category == "associative":
        counts["recall"] = counts["token_accuracy"]
    if task.head == "token_classification":
        counts["macro_recall"] = macro_recall(due, targets, score, task.num_labels)
        if "depth" in notes:
            at_zero = score & (notes["depth"] == 0)
            counts["macro_recall_at_depth0"] = macro_recall(due, targets, at_zero, task.num_labels)
    return counts


def metric_names(task: Task, length: int) -> tuple[str, ...]:
    """Names of the metrics that are measured on rows of a task; two rows are asked."""
    input_ids, labels = task.sample(np.random.default_rng(0), length, 2)
    outputs = np.where(labels == IGNORE_INDEX, np.zeros_like(labels), labels)
    return tuple(count_predictions(task, input_ids, labels, outputs, np.zeros(labels.shape)))


def add_counts(batches: Iterable[Mapping[str, Count]]) -> dict[str, Count]:
    """Sum the counts of batches, processes or segments, metric by metric."""
    sums: dict[str, Count] = {}
    for counts in batches:
        for name, count in counts.items():
            sums[name] = sums[name] + count if name in sums else count
    return sums


def metric_values(task: Task, length: int, counts: Mapping[str, Count]) -> dict[str, MetricValue]:
    """Divide: one :class:`MetricValue` for each count, with the chance level and the baselines of ``length``.

    Both are left out where the task does not work them out, see :attr:`hf_memory.tasks.base.Task.levels_until`.
    """
    return {
        name: MetricValue(
            count.value,
            *count.total,
            chance=task.known_chance(name, length),
            baselines=task.known_baselines(length) if name == task.headline_metric else {},
        )
        for name, count in counts.items()
    }


def evaluate_predictions(
    task: Task,
    length: int,
    input_ids: np.ndarray,
    labels: np.ndarray,
    predictions: np.ndarray,
    token_loss: np.ndarray | None = None,
) -> dict[str, MetricValue]:
    """Every metric of the task over rows of ``length``; see :func:`count_predictions` for the arrays."""
    counts = count_predictions(task, input_ids, labels, predictions, token_loss)
    return metric_values(task, length, counts)


def extrapolation_length(values: Mapping[int, float | Sequence[float]], threshold: float = REACHED) -> int:
    """The longest length that is reached with every shorter one; 0 where the shortest is not.

    Args:
        values: The headline metric by test length, one number or one for each seed. A length is reached where the
            mean over seeds is strictly above the threshold; NaN is not.
        threshold: The threshold.
    """
    reached = 0
    for length in sorted(values):
        if not float(np.mean(values[length])) > threshold:
            break
        reached = length
    return reached


def load(name: str) -> Any:
    """An ``evaluate.Metric`` of that name, built here: no network, no script, no file written.

    Its ``compute(predictions=..., references=...)`` takes aligned rows (see :func:`align`), counts the positions whose
    reference is not -100, and returns the value with its numerator and denominator.

    Raises:
        ValueError: If there is no such metric; the nearest is suggested.
    """
    check_names([name], EVALUATE_METRICS, "metric")
    return _evaluate_class()(config_name=name, keep_in_memory=True)


EVALUATE_METRICS = ("token_accuracy", "sequence_accuracy", "recall", "macro_recall", "mse")
"""Names that :func:`load` knows."""


def _count_rows(name: str, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[float]]) -> Count:
    """Count aligned rows of any lengths for one of the metrics that :func:`load` knows."""
    width = max(map(len, references), default=0)
    due, targets = np.zeros((len(references), width)), np.full((len(references), width), float(IGNORE_INDEX))
    for row, (predicted, reference) in enumerate(zip(predictions, references, strict=True)):
        due[row, : len(predicted)] = predicted
        targets[row, : len(reference)] = reference
    where = targets != IGNORE_INDEX
    if name == "mse":
        return mse(due, targets, where)
    if name == "macro_recall":
        return macro_recall(due, targets, where, int(targets.max(initial=0)) + 1)
    return {"sequence_accuracy": sequence_accuracy}.get(name, token_accuracy)(due, targets, where)


@functools.lru_cache(maxsize=1)
def _evaluate_class() -> type:
    """The subclass of ``evaluate.Metric``, defined on first use because its base is a heavy import."""
    import datasets
    import evaluate

    class MemoryMetric(evaluate.Metric):
        """Counts first, ratios last, behind the interface of ``evaluate``."""

        def _info(self) -> evaluate.MetricInfo:
            kind = "float64" if self.config_name == "mse" else "int64"
            column = datasets.Sequence(datasets.Value(kind))
            return evaluate.MetricInfo(
                description=f"{self.config_name} over the positions whose reference is not {IGNORE_INDEX}.",
                citation="",
                inputs_description="predictions and references: aligned rows of equal lengths, two by two.",
                features=datasets.Features({"predictions": column, "references": column}),
            )

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            count = _count_rows(self.config_name, predictions, references)
            numerator, denominator = count.total
            return {self.config_name: count.value, "numerator": numerator, "denominator": denominator}

    return MemoryMetric
