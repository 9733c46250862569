"""Result rows on disk: one file per cell, written whole or not at all.

A *cell* is one training run with its evaluations. What defines it (task, model, optimiser, seeds, data version) has a
digest, and the digest is the file's name: a run that is started again finds what is finished. A file
``<digest>.jsonl`` is a header line, which holds the definition and the number of rows, and one line per :class:`Row`.
Nothing appends to a file; readers concatenate. Values that JSON lacks (NaN, infinities) are written as strings.
"""

import dataclasses
import json
import logging
import os
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_memory.experiments.metrics import MetricValue
from hf_memory.storage import decode, digest, encode, write_text

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the file format."""

SWEEP_ENDING = ".sweep.json"
"""Ending of the record of a sweep, which lies beside its cells."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One evaluation of one trained model on one split.

    Attributes:
        cell: Digest of the run's definition, which is also the name of the file.
        arm: Name of the curve to which the row belongs; the mixer, where a study has one arm per mixer.
        mixer: Key of the sequence mixer.
        config_digest: Digest of the model's configuration.
        task: Key of the task.
        task_knobs: Knobs of the law.
        data_version: Version of the law and of numpy, which together fix the rows.
        split: Name of the split that was evaluated.
        length: Length of its rows, on the axis over which the task generalises.
        train_length: Shortest and longest training length.
        seed: Seed of the weights. This and the other facts of the training run are None where a checkpoint does not
            tell them.
        data_seed: Seed of the data and of their order, shared by all mixers of a study.
        learning_rate: Peak learning rate.
        learning_rate_grid: All learning rates that were tried to find it, itself included.
        schedule: Warm-up and decay of the learning rate.
        optim_groups: ``"documented"`` or ``"uniform"``, the mode of the optimiser's groups.
        stop_rule: When training stopped.
        steps: Optimiser steps taken.
        tokens: Tokens seen in training, without padding.
        parameters: All parameters.
        parameters_non_embedding: Parameters without embeddings and head.
        parameters_per_block: Parameters of one block, averaged over blocks.
        state_numbers: Numbers held per sequence after ``length`` tokens.
        state_bytes: Bytes that they take.
        headline: Name of the metric by which the task is judged.
        metrics: Values by name, each beside its counts, chance level and baselines.
        train_seconds: Wall time of training; an equal share of it where several runs were trained as one model.
        eval_seconds: Wall time of this evaluation.
        device: Device on which the model ran.
        backend: Backend of the recurrences, and how the run was trained where that was otherwise.
        versions: Versions of the packages that took part.
        weights_sha256: SHA-256 of the weights file; empty where the weights were not saved.
        code: Digest of the code that trained the model, see :func:`hf_memory.experiments.code.code_digest`; empty in
            rows from before there were any.
    """

    cell: str
    arm: str
    mixer: str
    config_digest: str
    task: str
    task_knobs: dict[str, Any]
    data_version: str
    split: str
    length: int
    train_length: tuple[int, int]
    seed: int | None
    data_seed: int | None
    learning_rate: float | None
    learning_rate_grid: tuple[float, ...]
    schedule: str | None
    optim_groups: str | None
    stop_rule: str | None
    steps: int | None
    tokens: int | None
    parameters: int
    parameters_non_embedding: int
    parameters_per_block: int
    state_numbers: int
    state_bytes: int
    headline: str
    metrics: dict[str, MetricValue]
    train_seconds: float | None
    eval_seconds: float
    device: str
    backend: str
    versions: dict[str, str]
    weights_sha256: str
    code: str = ""

    def value(self, metric: str | None = None) -> float:
        """Value of ``metric``, by default of the headline metric. Raises a ``ValueError`` where the row lacks it."""
        return self.measured(metric).value

    def measured(self, metric: str | None = None) -> MetricValue:
        """Value, counts, chance level and baselines of ``metric``, by default of the headline metric."""
        name = metric or self.headline
        if name not in self.metrics:
            raise ValueError(f"metric: {name!r} was not measured on {self.split!r} (known: {', '.join(self.metrics)})")
        return self.metrics[name]

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        return encode(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Row":
        """Rebuild a row. Raises a ``ValueError`` that names a field which is missing, unknown or of another type."""
        hints = typing.get_type_hints(cls)
        given = {"code": "", **values}
        missing, unknown = sorted(hints.keys() - given.keys()), sorted(given.keys() - hints.keys())
        if missing or unknown:
            raise ValueError(f"row: fields missing: {missing}, fields unknown: {unknown}")
        decoded = decode(given)
        return cls(**{name: _restore(name, decoded[name], hint) for name, hint in hints.items()})


def _restore(name: str, value: Any, hint: Any) -> Any:
    """Bring a decoded JSON value to the type of its field."""
    if name == "metrics":
        return {metric: MetricValue(**fields) for metric, fields in value.items()}
    kinds = [typing.get_origin(kind) or kind for kind in (typing.get_args(hint) if _is_union(hint) else [hint])]
    if tuple in kinds and isinstance(value, list):
        return tuple(value)
    if float in kinds and type(value) is int:
        return float(value)
    if not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"row: {name} must be of type {hint if _is_union(hint) else hint.__name__}, got {value!r}")
    return value


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType)


def cell_path(folder: str | os.PathLike[str], cell: str) -> Path:
    """The file of a cell."""
    return Path(folder) / f"{cell}.jsonl"


def write_cell(folder: str | os.PathLike[str], definition: Mapping[str, Any], rows: Sequence[Row]) -> Path:
    """Write the rows of a finished cell.

    Raises:
        ValueError: If there are no rows, or a row's ``cell`` is not the digest of ``definition``.
    """
    cell = digest(definition)
    if not rows:
        raise ValueError(f"rows: cell {cell} has none; a finished cell has at least one")
    strangers = sorted({row.cell for row in rows} - {cell})
    if strangers:
        raise ValueError(f"rows: cell must be {cell}, the digest of the definition, got {', '.join(strangers)}")
    header = {"format": FORMAT, "cell": cell, "rows": len(rows), "definition": encode(definition)}
    lines = [json.dumps(line, allow_nan=False) for line in [header, *(row.to_json() for row in rows)]]
    return write_text(cell_path(folder, cell), "\n".join(lines) + "\n")


def read_definition(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The definition in the header of a cell's file."""
    return decode(_header(Path(path), Path(path).read_text(errors="replace").split("\n"))["definition"])


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Read all rows of a folder, or of one file.

    Raises:
        ValueError: If there is no results file, or one is empty, cut short or damaged; the message names it.
    """
    rows, problems = recover_rows(path)
    if problems:
        raise ValueError("damaged results; run these cells again or read what is left of them: " + "; ".join(problems))
    return rows


def recover_rows(path: str | os.PathLike[str]) -> tuple[list[Row], list[str]]:
    """Read what can be read, and say what could not; arguments as for :func:`read_rows`.

    Returns:
        The rows, and one sentence for each thing that is wrong, with the file's name; each is also logged.

    Raises:
        ValueError: If there is no results file at all.
    """
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        below = sorted({str(file.parent) for file in path.rglob("*.jsonl")})
        hint = f"; these folders below it do: {', '.join(below)}" if below else ""
        raise ValueError(f"results: {str(path)!r} holds no file <cell>.jsonl{hint}")
    rows: list[Row] = []
    problems: list[str] = []
    for file in files:
        rows.extend(_read_file(file, problems))
    for problem in problems:
        logger.warning("damaged results: %s", problem)
    return rows, problems


def _header(file: Path, lines: list[str]) -> dict[str, Any]:
    """Parse the first line of a file. Raises a ``ValueError`` that says what is wrong with it."""
    if not any(lines):
        raise ValueError(f"{file} is empty")
    try:
        header = json.loads(lines[0])
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: line 1 is not JSON ({error.msg})") from error
    if not isinstance(header, dict) or not {"format", "cell", "rows", "definition"} <= header.keys():
        raise ValueError(f"{file}: line 1 is not a header with format, cell, rows and definition")
    if header["format"] != FORMAT:
        raise ValueError(f"{file}: format must be {FORMAT}, got {header['format']!r}")
    return header


def _read_file(file: Path, problems: list[str]) -> list[Row]:
    """Rows of one file; what is wrong with it is added to ``problems``."""
    lines = file.read_text(errors="replace").rstrip("\n").split("\n")
    try:
        header = _header(file, lines)
    except ValueError as error:
        problems.append(str(error))
        header = None
    rows: list[Row] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(Row.from_json(json.loads(line)))
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(f"{file}: line {number} is no row ({error})")
    if header is not None and len(lines) - 1 != header["rows"]:
        problems.append(f"{file}: {len(lines) - 1} rows, but its header says {header['rows']}")
    if header is not None and header["cell"] != file.stem:
        problems.append(f"{file}: holds cell {header['cell']}, which is not its name")
    return rows
