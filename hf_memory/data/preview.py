"""Rows as text, with their labels and the region that is scored."""

from typing import Any

import numpy as np

from hf_memory.data.rows import RowSource
from hf_memory.data.specification import specify
from hf_memory.names import check_names
from hf_memory.tasks.base import IGNORE_INDEX, Task

_NAMES = ("input", "label", "score")


def symbols(task: Task) -> list[str]:
    """A readable name of each input id: the task's own, or the ids themselves."""
    own = getattr(task, "symbols", None)
    return [str(number) for number in range(task.vocab_size)] if own is None else list(own)


def label_text(task: Task, label: float) -> str:
    """A label as text: a symbol where classes have symbols, a number otherwise, a dot where nothing is due.

    Classes have the task's ``label_symbols``, or its ``symbols`` where there are as many classes as input ids.
    """
    if label == IGNORE_INDEX:
        return "."
    if task.problem_type == "regression":
        return f"{label:g}"
    own = getattr(task, "label_symbols", None)
    if own is None:
        own = symbols(task) if task.num_labels == task.vocab_size else None
    return str(int(label)) if own is None else own[int(label)]


def show(
    task: str, config: str | None = None, split: str = "train", num_rows: int = 3, *, width: int = 100, **overrides: Any
) -> str:
    """Rows of a split as text; nothing is stored.

    Under each token stand its label, or a dot, and a caret where metrics count the position. By the convention of
    causal heads a label stands where the answer would be read, one position after the output that must give it.

    Args:
        task: Key of the task.
        config: Name of a preset; the task's first one by default.
        split: Name of the split.
        num_rows: Number of rows.
        width: Number of characters in a line.
        **overrides: Keywords of every dataset and knobs of the task.

    Raises:
        ValueError: For unknown names, impossible values and a number of rows below 1.
    """
    specification = specify(task, config, **overrides)
    check_names([split], specification.splits, f"split of hf_memory/{task}")
    if num_rows < 1:
        raise ValueError(f"num_rows must be at least 1, got {num_rows}")
    source = RowSource(specification)
    texts: list[str] = []
    for block in range(source.num_blocks(split)):
        rows = source.block(split, block)
        laws = source.laws(split, block)
        for place in range(min(len(rows), num_rows - len(texts))):
            inside = slice(rows.offsets[place], rows.offsets[place + 1])
            header = f"hf_memory/{task} {specification.preset} {split}, row {len(texts)}"
            body = _row(laws[place], rows.input_ids[None, inside], rows.labels[None, inside], width)
            texts.append(f"{header}\n{body}")
        if len(texts) == num_rows:
            break
    return "\n\n".join(texts)


def _row(task: Task, input_ids: np.ndarray, labels: np.ndarray, width: int) -> str:
    """One row (1, L) in lines of ``width`` characters: tokens, labels and scores below each other."""
    score = task.annotate(input_ids, labels)["score"][0]
    names = symbols(task)
    columns = [
        (names[token], label_text(task, label), "^" if counts else "")
        for token, label, counts in zip(input_ids[0], labels[0], score, strict=True)
    ]
    cell = max(len(text) for column in columns for text in column)
    per_line = max(1, (width - len(_NAMES[0]) - 1) // (cell + 1))
    lines = []
    for start in range(0, len(columns), per_line):
        for index, name in enumerate(_NAMES):
            cells = " ".join(column[index].rjust(cell) for column in columns[start : start + per_line])
            lines.append(f"{name} {cells}".rstrip())
    return "\n".join(lines)
