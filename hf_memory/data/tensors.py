"""Rows in memory, fetched a whole batch at a time.

A loader that asks a ``datasets.Dataset`` for rows spends more time on them than a small model does on its step. Here a
batch is one indexing operation, and the collator passes it through.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import Dataset

from hf_memory.data.collator import Batch, right_mask
from hf_memory.tasks.base import IGNORE_INDEX


class TensorRows(Dataset[Batch]):
    """A map-style dataset for ``Trainer`` and ``DataLoader`` whose rows lie in memory.

    Use it with :class:`hf_memory.data.collator.MemoryCollator`, ``remove_unused_columns=False`` and no loader workers.

    Args:
        rows: A ``datasets.Dataset`` with ``input_ids`` and ``labels``, or a mapping of these names to arrays (n, L) or
            to sequences of rows of unlike lengths.

    Raises:
        ValueError: Where a column is missing, or the two differ in shape.
    """

    gives_batches = True
    """What is fetched is collated already."""

    def __init__(self, rows: datasets.Dataset | Mapping[str, Any]) -> None:
        names = rows.column_names if isinstance(rows, datasets.Dataset) else list(rows)
        if not {"input_ids", "labels"} <= set(names):
            raise ValueError(f"rows must have the columns 'input_ids' and 'labels', got {names}")
        if isinstance(rows, datasets.Dataset):
            table = rows.select_columns(["input_ids", "labels"]).with_format("arrow")[:]
            (ids, lengths), (labels, label_lengths) = (_from_arrow(table[name]) for name in ("input_ids", "labels"))
        else:
            (ids, lengths), (labels, label_lengths) = (_from_rows(rows[name]) for name in ("input_ids", "labels"))
        if not np.array_equal(lengths, label_lengths):
            raise ValueError("labels must have the shape of input_ids")
        self.lengths = torch.from_numpy(lengths)
        self.uniform = bool(len(lengths)) and bool((lengths == lengths[0]).all())
        self._ids, self._labels = torch.from_numpy(_narrow(ids)), torch.from_numpy(_narrow(labels))
        if self.uniform:
            self._ids = self._ids.view(len(lengths), -1)
            self._labels = self._labels.view(len(lengths), -1)
        self._starts = self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Batch:
        """One row: ``input_ids`` (T,) and ``labels`` (T,)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}")
        return {name: column[0] for name, column in self.__getitems__([index % len(self)]).items()}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A batch: ``input_ids`` (B, T) int64, ``labels`` (B, T), and ``attention_mask`` where lengths differ."""
        chosen = torch.as_tensor(indices)
        if self.uniform:
            return {"input_ids": self._ids[chosen].long(), "labels": _targets(self._labels[chosen])}
        lengths = self.lengths[chosen]
        mask = right_mask(lengths)
        inside = mask.bool()
        # Positions beyond a row's end point at its start and are overwritten.
        flat = self._starts[chosen, None] + torch.arange(mask.shape[1]) * mask
        batch = {
            "input_ids": self._ids[flat].long().masked_fill(~inside, 0),
            "labels": _targets(self._labels[flat]).masked_fill(~inside, IGNORE_INDEX),
        }
        return batch if bool(inside.all()) else {**batch, "attention_mask": mask}


class StackedRows(Dataset[Batch]):
    """Rows of several datasets side by side: a batch holds as many of each, along an axis of its own.

    Shorter rows are filled up at their right ends, where no output of theirs depends on what stands there.

    Args:
        parts: The datasets.

    Raises:
        ValueError: Where the datasets differ in their number of rows.
    """

    def __init__(self, parts: Sequence[TensorRows]) -> None:
        if len(counts := sorted({len(part) for part in parts})) != 1:
            raise ValueError(f"parts must hold equally many rows, got {counts}")
        self.parts = list(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitems__(self, indices: torch.Tensor) -> Batch:
        """A batch: ``input_ids`` (R, B, T) and ``labels`` (R, B, T) of the rows with these indices (R, B)."""
        batches = [part.__getitems__(own) for part, own in zip(self.parts, indices, strict=True)]
        length = max(batch["labels"].shape[1] for batch in batches)
        filled = {"input_ids": 0, "labels": IGNORE_INDEX}
        return {
            name: torch.stack([F.pad(own[name], (0, length - own[name].shape[1]), value=value) for own in batches])
            for name, value in filled.items()
        }


def _targets(labels: torch.Tensor) -> torch.Tensor:
    """Labels in the type that losses ask for."""
    return labels if labels.is_floating_point() else labels.long()


def _narrow(values: np.ndarray) -> np.ndarray:
    """Values in the narrowest type that holds them all: float32, or a signed integer of up to 32 bits."""
    if values.dtype.kind == "f" or not len(values):
        return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
    low, high = int(values.min()), int(values.max())
    fitting = (kind for kind in (np.int8, np.int16) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return values.astype(next(fitting, np.int32))


def _from_arrow(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values end to end, and lengths (n,), of a column of lists."""
    lists = column.combine_chunks()
    return lists.flatten().to_numpy(), np.asarray(lists.value_lengths(), dtype=np.int64)


def _from_rows(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values end to end, and lengths (n,), of an array or of a sequence of rows."""
    arrays = [np.asarray(row) for row in rows]
    lengths = np.array([len(row) for row in arrays], dtype=np.int64)
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64), lengths
