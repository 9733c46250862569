"""From rows to a batch: padding on the right, and a mask only where it says something."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hf_memory.tasks.base import IGNORE_INDEX

Batch = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class MemoryCollator:
    """Collate rows of a dataset.

    Rows of unlike length are padded on the right: ids with ``pad_id``, labels with -100, the mask with 0. Where all
    rows are equally long there is no ``attention_mask``, because models run faster without one. A batch that is a
    mapping already, as :class:`hf_memory.data.tensors.TensorRows` makes it, passes through.

    Attributes:
        pad_id: Id that stands under padding. It is masked, so any valid id will do.
    """

    pad_id: int = 0

    def __call__(self, rows: Sequence[Mapping[str, Any]] | Mapping[str, torch.Tensor]) -> Batch:
        """Make a batch.

        Args:
            rows: Rows with ``input_ids`` (T,) and, where they have them, ``labels`` (T,) and ``attention_mask`` (T,).

        Returns:
            ``input_ids`` (B, T) int64, ``labels`` (B, T) int64 or float32, ``attention_mask`` (B, T) int64.

        Raises:
            ValueError: Where there are no rows, or a row's columns differ in length.
        """
        if isinstance(rows, Mapping):
            return dict(rows)
        if not rows:
            raise ValueError("rows must hold at least one row, got none")
        if "input_ids" not in rows[0]:
            raise ValueError(
                f"rows must have 'input_ids' and, for training, 'labels', got {sorted(rows[0])}; Trainer takes away "
                "what the model does not know, unless remove_unused_columns=False"
            )
        if any(set(row) != set(rows[0]) for row in rows):
            raise ValueError(f"rows must have the same columns, those of the first are {sorted(rows[0])}")
        ids = [np.asarray(row["input_ids"]) for row in rows]
        lengths = np.array([len(row) for row in ids])
        batch = {"input_ids": _pad(ids, self.pad_id, lengths, "input_ids")}
        if "labels" in rows[0]:
            batch["labels"] = _pad([np.asarray(row["labels"]) for row in rows], IGNORE_INDEX, lengths, "labels")
        if "attention_mask" in rows[0]:
            masks = [np.asarray(row["attention_mask"]) for row in rows]
            batch["attention_mask"] = _pad(masks, 0, lengths, "attention_mask")
        elif (lengths != lengths[0]).any():
            batch["attention_mask"] = right_mask(torch.from_numpy(lengths))
        return batch


def right_mask(lengths: torch.Tensor) -> torch.Tensor:
    """Mask (B, T) int64 of rows with these lengths (B,), padded on the right."""
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()


def _pad(rows: list[np.ndarray], fill: int, lengths: np.ndarray, name: str) -> torch.Tensor:
    """Rows side by side in a tensor (B, T) int64, or float32 where they hold real numbers."""
    if [len(row) for row in rows] != lengths.tolist():
        raise ValueError(f"{name} must be as long as input_ids in every row")
    dtype = np.float32 if rows[0].dtype.kind == "f" else np.int64
    if (lengths == lengths[0]).all():
        return torch.from_numpy(np.stack(rows).astype(dtype))
    padded = np.full((len(rows), int(lengths.max())), fill, dtype=dtype)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(padded)
