"""Tables from codes to outputs: fitted on some rows, scored on others, with a standard error."""

import dataclasses
import functools
import math

import numpy as np

from hf_memory.tasks.base import IGNORE_INDEX, Task

_RECENT = 4
_BLOCKS = 50


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a task and the answers that a metric counts.

    Attributes:
        task: The law.
        metric: The metric.
        ids: Ids (n, L).
        labels: Labels (n, L).
        scored: Positions (n, L) that the metric counts.
        candidates: Positions (n, L) whose ids may be answers; ``None`` where answers are classes.
    """

    task: Task
    metric: str
    ids: np.ndarray
    labels: np.ndarray
    scored: np.ndarray
    candidates: np.ndarray | None

    @classmethod
    def draw(cls, task: Task, length: int, rng: np.random.Generator, num_rows: int, metric: str) -> "Rows":
        """Draw rows."""
        ids, labels = task.sample(rng, length, num_rows)
        notes = task.annotate(ids, labels)
        scored = notes["score"] & (labels != IGNORE_INDEX)
        if metric == "macro_recall_at_depth0":
            scored = scored & (notes["depth"] == 0)
        return cls(task, metric, ids, labels, scored, task.candidates(ids, labels))

    def read(self, column_values: np.ndarray, start: int = 0) -> np.ndarray:
        """What is known (n, L) when the output is due, given what is known once each column is read.

        An output of a causal head comes one column before its label; ``start`` stands before the first column.
        """
        if self.task.head == "token_classification":
            return column_values
        return np.concatenate([np.full_like(column_values[:, :1], start), column_values[:, :-1]], axis=1)

    @functools.cached_property
    def supervised(self) -> np.ndarray:
        """Positions (n, L) that have a label."""
        return self.labels != IGNORE_INDEX

    @functools.cached_property
    def symbols(self) -> tuple[np.ndarray, int]:
        """Ids (n, L), as their roles where answers are ids of the row, and the number of them."""
        if self.candidates is None:
            return self.ids, self.task.vocab_size
        return np.where(self.candidates, 1, np.where(self.ids == 0, 0, 2)), 3

    num_recent = _RECENT

    @functools.cached_property
    def counter_flags(self) -> dict[str, np.ndarray]:
        """What counters of brackets say (n, L) of every prefix: whether they are at zero, and whether one was below.

        ``bigram``: whether a closing bracket has come right after an opening one of another type.
        """
        types = self.task.vocab_size // 2
        opens, kind = self.ids < types, self.ids % types
        step = np.where(opens, 1, -1).astype(np.int32)
        depth = np.cumsum(step, axis=1, dtype=np.int32)
        flags = {"zero": depth == 0, "below": np.minimum.accumulate(depth, axis=1) < 0}
        flags["type_zero"], flags["type_below"] = np.ones_like(opens), np.zeros_like(opens)
        for one in range(types):
            count = np.cumsum(np.where(kind == one, step, 0), axis=1, dtype=np.int32)
            flags["type_zero"] &= count == 0
            flags["type_below"] |= np.minimum.accumulate(count, axis=1) < 0
        bigram = np.zeros_like(opens)
        bigram[:, 1:] = opens[:, :-1] & ~opens[:, 1:] & (kind[:, 1:] != kind[:, :-1])
        return {**flags, "bigram": np.logical_or.accumulate(bigram, axis=1)}

    @functools.cached_property
    def targets(self) -> np.ndarray:
        """Labels (m,) of the scored positions."""
        return self.labels[self.scored].astype(np.int64)

    @functools.cached_property
    def places(self) -> np.ndarray:
        """Ids (m, K) at every place that an output may name: a column, or a candidate counted back from the last.

        -1 where a row has no candidate there that comes before the answer.
        """
        candidates = np.zeros_like(self.scored) if self.candidates is None else self.candidates
        row, column = np.nonzero(self.scored)
        known = np.where(candidates, self.ids, -1)
        columns = np.flatnonzero(candidates.any(axis=0))
        fixed = np.where(columns < column[:, None], known[row][:, columns], -1)
        # Candidates of a row side by side, after columns that name none.
        order = np.argsort(~candidates, axis=1, kind="stable")
        packed = np.pad(np.take_along_axis(known, order, axis=1), ((0, 0), (_RECENT, 0)), constant_values=-1)
        count = np.cumsum(candidates, axis=1)[row, column - 1]
        recent = packed[row[:, None], count[:, None] + _RECENT - 1 - np.arange(_RECENT)]
        return np.concatenate([fixed, recent], axis=1)


def fit_and_predict(fit: Rows, fresh: Rows, codes: np.ndarray, fresh_codes: np.ndarray) -> np.ndarray:
    """Outputs (m,) at the scored positions of fresh rows, by the best table from codes (n, L) to outputs."""
    known, group = np.unique(codes[fit.scored], return_inverse=True)
    if fit.candidates is None:
        outputs, group_of_output = np.unique(fit.targets, return_inverse=True)
        # A macro recall weighs every class alike, however rare.
        weights = np.ones(len(fit.targets))
        if fit.metric.startswith("macro_recall"):
            weights = 1.0 / np.bincount(group_of_output)[group_of_output]
        flat = group * len(outputs) + group_of_output
        table = np.bincount(flat, weights, minlength=len(known) * len(outputs)).reshape(len(known), -1)
    else:
        hits = fit.places == fit.targets[:, None]
        table = np.stack([np.bincount(group, hit, minlength=len(known)) for hit in hits.T], axis=1)
    best = np.append(table.argmax(axis=1), table.sum(axis=0).argmax())
    wanted = fresh_codes[fresh.scored]
    entry = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    # A code that was never seen gets the output that is best without one.
    choice = best[np.where(known[entry] == wanted, entry, len(known))]
    return outputs[choice] if fit.candidates is None else fresh.places[np.arange(len(choice)), choice]


def score(rows: Rows, outputs: np.ndarray) -> tuple[float, float]:
    """Value of the metric for outputs (m,) at the scored positions, and its standard error over rows.

    Both are NaN where the rows hold nothing that counts.
    """
    right, wanted = _counts(rows, outputs)
    total = wanted.sum(axis=0)
    present = total > 0
    if not present.any():
        return math.nan, math.nan
    right, wanted, total = right[:, present], wanted[:, present], total[present]
    value = right.sum(axis=0) / total
    # The ratio of two sums over rows, to first order.
    influence = ((right - value * wanted) / total).mean(axis=1)
    return float(value.mean()), float(np.sqrt(np.square(influence).sum()))


def _counts(rows: Rows, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Right answers and answers (u, C), for each row, or block of rows, and class."""
    row, num_rows = np.nonzero(rows.scored)[0], len(rows.ids)
    right = outputs == rows.targets
    if rows.metric.startswith("macro_recall"):
        classes = rows.task.num_labels
        cell, size = row * classes + rows.targets, num_rows * classes
        counts = np.bincount(cell, right, minlength=size), np.bincount(cell, minlength=size).astype(np.float64)
        return counts[0].reshape(-1, classes), counts[1].reshape(-1, classes)
    if rows.metric in ("token_accuracy", "recall"):
        return np.bincount(row, right, minlength=num_rows)[:, None], np.bincount(row, minlength=num_rows)[:, None]
    if rows.metric == "sequence_accuracy":
        return (np.bincount(row, ~right, minlength=num_rows) == 0)[:, None].astype(float), np.ones((num_rows, 1))
    extra = getattr(rows.task, "extra_metrics", None)
    written = rows.labels.copy()
    written[rows.scored] = outputs
    pairs = (
        []
        if extra is None
        else [
            extra(rows.ids[block], rows.labels[block], written[block]).get(rows.metric)
            for block in np.array_split(np.arange(num_rows), _BLOCKS)
        ]
    )
    if not pairs or None in pairs:
        name = f"metric of task {rows.task.key!r}"
        raise ValueError(f"{name} must be an accuracy, a recall or a count of its own, got {rows.metric!r}")
    counted = np.array(pairs, dtype=np.float64)
    return counted[:, :1], counted[:, 1:]
