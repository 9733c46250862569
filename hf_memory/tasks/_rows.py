"""Rows as they come from elsewhere: lists, columns of a dataset, tensors, rows of unlike lengths."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def takes_rows(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of arrays (n, L) take any rows, those of unlike lengths too.

    Rows of one length are handed on as one array. Rows of unlike lengths are computed length by length, and each result
    is as wide as the longest row: what stands behind a shorter one is -100, or False in a mask.
    """

    @functools.wraps(method)
    def wrapped(self: Any, input_ids: Any, *labels: Any, **named: Any) -> Any:
        columns = [read_rows("input_ids", input_ids), *(read_rows("labels", column) for column in labels)]
        more = {name: read_rows(name, column) for name, column in named.items()}
        if all(isinstance(column, np.ndarray) for column in (*columns, *more.values())):
            return method(self, *columns, **more)
        lengths = np.array([len(row) for row in columns[0]])
        for column in (*columns, *more.values()):
            if [len(row) for row in column] != lengths.tolist():
                raise ValueError("labels must be as long as input_ids in every row")
        places = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        parts = [
            method(self, *(_take(column, rows) for column in columns), **{n: _take(c, rows) for n, c in more.items()})
            for rows in places
        ]
        return _join(places, parts, len(lengths), int(lengths.max()))

    return wrapped


def knows_ids(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of ids (n, L) refuse those that its task does not have, of which arrays would make something."""

    @functools.wraps(method)
    def wrapped(self: Any, input_ids: np.ndarray) -> Any:
        wrong = (input_ids < 0) | (input_ids >= self.vocab_size)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise ValueError(
                f"input_ids must be ids of task {self.key!r}, from 0 to {self.vocab_size - 1}, "
                f"got {input_ids[row, column].item()} in row {row} at position {column}"
            )
        return method(self, input_ids)

    return wrapped


def read_rows(name: str, rows: Any) -> np.ndarray | list[np.ndarray]:
    """Rows (n, L) as an array, or a list of arrays where their lengths differ. Raises a ``ValueError`` for others."""
    if not isinstance(rows, np.ndarray):
        rows = rows[:] if isinstance(rows, Sequence) else rows  # a column of a dataset is read at once, not row by row
        parts = [np.asarray(row) for row in rows]
        if any(part.ndim != 1 for part in parts) or not parts:
            raise ValueError(f"{name} must be rows (n, L), each of them a sequence of numbers")
        if len({len(part) for part in parts}) > 1:
            return parts
        rows = np.stack(parts)
    if rows.ndim != 2:
        raise ValueError(f"{name} must be rows (n, L), got an array of shape {rows.shape}")
    return rows


def _take(column: Any, rows: np.ndarray) -> np.ndarray:
    return np.stack([column[row] for row in rows])


def _join(places: list[np.ndarray], parts: list[Any], num_rows: int, width: int) -> Any:
    """Put results for some of the rows each into one for all."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], dict):
        return {name: _join(places, [part[name] for part in parts], num_rows, width) for name in parts[0]}
    joined = np.full((num_rows, width), False if parts[0].dtype == bool else -100, dtype=parts[0].dtype)
    for rows, part in zip(places, parts, strict=True):
        joined[rows, : part.shape[1]] = part
    return joined
