"""Result rows on disk: one file per cell, written whole or not at all.

A *cell* is one training run with its evaluations. What defines it (task, model, optimiser, seeds, data version) has a
digest, and the digest is the file's name: a run that is started again finds what is finished. A file
``<digest>.jsonl`` is a header line, which holds the definition, the number of rows and, since files have one, the
SHA-256 of all further lines; then comes one line per :class:`Row`.
Nothing appends to a file; readers concatenate. Values that JSON lacks (NaN, infinities) are written as strings.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.schema import Fields, Kind, ListOf, MapOf, Maybe, Number, Pair, Plain, Text
from hf_memory.storage import decode, digest, encode, parse_json, what_lies_at, write_text
from hf_memory.tasks.base import SPLIT_NAME

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the file format."""

SWEEP_ENDING = ".sweep.json"
"""Ending of the record of a sweep, which lies beside its cells."""

_SHARES = ("accuracy", "recall", "counterfactual", "induction")
"""Words of the metrics that are shares of one."""


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
        train_length: Shortest and longest training length; None where the model was trained on something else.
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
        kernels: What ran each operation that had a choice of kernels on a GPU, and why: by operation, device and facts,
            the name of the kernel, a colon and its proof, see :mod:`hf_memory.ops.backends.proof`; None for none.
        probe: How a model that was not trained on the task was asked, see :mod:`hf_memory.experiments.probing.cells`;
            None for all other rows.
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
    train_length: tuple[int, int] | None
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
    kernels: dict[str, str] | None = None
    probe: dict[str, Any] | None = None

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
        """The row as JSON values. Rows that are no probes do not speak of one, nor of kernels where none was chosen."""
        silent = {name for name in _OPTIONAL if getattr(self, name) is None}
        return encode({name: value for name, value in dataclasses.asdict(self).items() if name not in silent})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Row":
        """Rebuild a row. Raises a ``ValueError`` that names a field which is missing, unknown or of another type."""
        names = [field.name for field in dataclasses.fields(cls)]
        given = {"code": "", **dict.fromkeys(_OPTIONAL), **values}
        missing, unknown = sorted(set(names) - given.keys()), sorted(given.keys() - set(names))
        if missing or unknown:
            raise ValueError(f"row: fields missing: {missing}, fields unknown: {unknown}")
        decoded = decode(given)
        Fields(_KINDS).check(decoded, "row")
        for name in ("train_length", "learning_rate_grid"):
            decoded[name] = None if decoded[name] is None else tuple(decoded[name])
        for name in ("learning_rate", "train_seconds", "eval_seconds"):
            decoded[name] = None if decoded[name] is None else float(decoded[name])
        row = cls(**decoded | {"metrics": {name: MetricValue(**own) for name, own in decoded["metrics"].items()}})
        _check_agreement(row)
        return row


_OPTIONAL = ("kernels", "probe")
"""Fields that rows leave out where they have nothing to say."""

_COUNT = Number(0, 1 << 62, whole=True)
_RATE = Number(0, above=True)
_LEVEL = Number(finite=False)
_METRIC = Fields(
    {
        "value": _LEVEL,
        "numerator": _LEVEL,
        "denominator": Number(0),
        "chance": Maybe(Number()),
        "baselines": MapOf(Number()),
    },
    needed=("value", "numerator", "denominator"),
)
_WORD, _DIGEST = Text(pattern=r"(?s).+", form="a text that is not empty"), "[0-9a-f]{16}"
_KINDS: dict[str, Kind] = {
    "cell": Text(pattern=_DIGEST, form="a digest of 16 hexadecimal digits"),
    **dict.fromkeys(("arm", "mixer", "config_digest", "task", "data_version", "headline"), _WORD),
    "split": Text(pattern=SPLIT_NAME, form="train, validation, or the name of a test"),
    "task_knobs": MapOf(Plain()),
    "length": Number(1, 1 << 40, whole=True),
    "train_length": Maybe(Pair(*[Number(1, 1 << 40, whole=True)] * 2)),
    **dict.fromkeys(("seed", "data_seed", "steps", "tokens"), Maybe(_COUNT)),
    "learning_rate": Maybe(_RATE),
    "learning_rate_grid": ListOf(_RATE),
    **dict.fromkeys(("schedule", "stop_rule"), Maybe(_WORD)),
    "optim_groups": Maybe(Text(("documented", "uniform"))),
    **dict.fromkeys(("parameters", "parameters_non_embedding", "parameters_per_block"), _COUNT),
    **dict.fromkeys(("state_numbers", "state_bytes"), _COUNT),
    "metrics": MapOf(_METRIC, least=1),
    "train_seconds": Maybe(Number(0, finite=False)),
    "eval_seconds": Number(0, finite=False),
    **dict.fromkeys(("device", "backend"), _WORD),
    "versions": MapOf(_WORD),
    "weights_sha256": Text(pattern=f"|{_DIGEST}|[0-9a-f]{{64}}", form="a digest, or empty"),
    "code": Text(pattern=f"|{_DIGEST}", form="a digest of 16 hexadecimal digits, or empty"),
    "kernels": Maybe(MapOf(_WORD)),
    "probe": Maybe(MapOf(Plain())),
}


def split_length(split: str) -> int | None:
    """The longest length that the name of a split says; None where it says none.

    >>> [split_length(name) for name in ("test_64", "test_21_to_250", "test_128_kv8", "validation")]
    [64, 250, 128, None]
    """
    named = re.fullmatch(r"test_(?:\d+_to_)?(\d+)(?:_.*)?", split)
    return int(named[1]) if named else None


def _check_agreement(row: Row) -> None:
    """Raise a ``ValueError`` where fields of a row contradict each other."""
    if row.train_length is None and row.probe is None:
        raise ValueError("row: train_length must be shortest and longest, got null")
    low, high = row.train_length or (0, 0)
    if low > high:
        raise ValueError(f"row: train_length must be shortest and longest, got {low} and {high}")
    if not row.parameters_per_block <= row.parameters_non_embedding <= row.parameters:
        raise ValueError("row: parameters must be at least those without embeddings, and these those of a block")
    if row.learning_rate is not None and row.learning_rate_grid and row.learning_rate not in row.learning_rate_grid:
        raise ValueError(f"row: learning_rate {row.learning_rate:g} is not in its learning_rate_grid")
    named = split_length(row.split)
    if named not in (None, row.length):
        raise ValueError(f"row: length must be {named} for the split {row.split!r}, got {row.length}")
    if row.headline not in row.metrics:
        raise ValueError(f"row: headline {row.headline!r} is none of its metrics ({', '.join(row.metrics)})")
    has_diverged = all(math.isnan(metric.value) for metric in row.metrics.values())
    for name, metric in row.metrics.items():
        if not (has_diverged and math.isnan(metric.value)):
            _check_metric(name, metric)
    _check_macro(row.metrics)


def _check_macro(metrics: Mapping[str, MetricValue]) -> None:
    """Raise a ``ValueError`` unless macro recalls count the positions of the accuracy, or some of them."""
    whole = metrics.get("token_accuracy")
    if whole is None:
        return
    for name, metric in metrics.items():
        counts = (metric.numerator, metric.denominator), (whole.numerator, whole.denominator)
        is_some = metric.numerator <= whole.numerator and metric.denominator <= whole.denominator
        if (name == "macro_recall" and counts[0] != counts[1]) or (name.startswith("macro_recall_") and not is_some):
            raise ValueError(f"row: {name} counts {counts[0]}, and token_accuracy {counts[1]}")


def _check_metric(name: str, metric: MetricValue) -> None:
    """Raise a ``ValueError`` unless a value is its numerator over its denominator, and a share of one where it is one.

    A macro recall is a mean of ratios, of which a row holds the sums alone.
    """
    is_share = any(word in name for word in _SHARES)
    if is_share and not (math.isnan(metric.value) or 0 <= metric.numerator <= metric.denominator):
        raise ValueError(f"row: {name} must have a numerator from 0 to its denominator, got {metric.numerator:g}")
    if is_share and not (math.isnan(metric.value) or 0 <= metric.value <= 1):
        raise ValueError(f"row: {name} must be from 0 to 1, got {metric.value:g}")
    for level, found in {"chance": metric.chance, **metric.baselines}.items():
        if is_share and found is not None and not 0 <= found <= 1:
            raise ValueError(f"row: {level} of {name} must be from 0 to 1, got {found:g}")
    if "macro_" in name and metric.denominator:
        ends = (metric.numerator == 0, metric.numerator == metric.denominator)
        if math.isnan(metric.value) or ends != (metric.value == 0, metric.value == 1):
            raise ValueError(f"row: {name} is {metric.value:g}, with {metric.numerator:g} of {metric.denominator:g}")
        return
    if metric.denominator == 0 and metric.numerator != 0:
        raise ValueError(f"row: {name} must have a numerator of 0 where there are no targets, got {metric.numerator:g}")
    ratio = metric.numerator / metric.denominator if metric.denominator else math.nan
    if not (math.isnan(ratio) and math.isnan(metric.value)) and not math.isclose(metric.value, ratio, rel_tol=1e-9):
        raise ValueError(f"row: {name} must be {ratio:g}, numerator over denominator, got {metric.value:g}")


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
    if strangers := sorted({row.cell for row in rows} - {cell}):
        raise ValueError(f"rows: cell must be {cell}, the digest of the definition, got {', '.join(strangers)}")
    lines = [json.dumps(row.to_json(), allow_nan=False) for row in rows]
    header = {"format": FORMAT, "cell": cell, "rows": len(rows), "definition": encode(definition)}
    head = json.dumps(header | {"sha256": _sha256(lines)}, allow_nan=False)
    return write_text(cell_path(folder, cell), "\n".join([head, *lines]) + "\n")


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_definition(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The definition in the header of a cell's file."""
    lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
    return decode(_header(Path(path), lines)["definition"])


def result_files(path: str | os.PathLike[str], below: bool = False) -> list[Path]:
    """The file itself, or those of a folder, one for each cell; with ``below`` also those of all folders in it.

    Raises:
        ValueError: There is none.
    """
    path = Path(path)
    if not path.is_dir() and os.path.lexists(path):
        return [path]
    every = sorted(path.rglob("*.jsonl"))
    files = {file.name: file for file in reversed(every) if below or file.parent == path}
    if not files:
        hint = f"; these folders below it do: {', '.join(sorted({str(file.parent) for file in every}))}"
        raise ValueError(f"results: {str(path)!r} holds no file <cell>.jsonl{hint if every else ''}")
    return list(files.values())[::-1]


def read_rows(path: str | os.PathLike[str], below: bool = False) -> list[Row]:
    """Read all rows of a folder, or of one file; arguments as for :func:`result_files`.

    Raises:
        ValueError: If there is no results file, or one is empty, cut short or damaged; the message names it.
    """
    rows, problems = recover_rows(path, below)
    if problems:
        raise ValueError("damaged results; run these cells again or read what is left of them: " + "; ".join(problems))
    return rows


def recover_rows(path: str | os.PathLike[str], below: bool = False) -> tuple[list[Row], list[str]]:
    """Read what can be read, and say what could not; arguments as for :func:`result_files`.

    Returns:
        The rows, and one sentence for each thing that is wrong, with the file's name; each is also logged.

    Raises:
        ValueError: If there is no results file at all.
    """
    rows, problems = list[Row](), list[str]()
    for file in result_files(path, below):
        found, faults = recover_cell(file)
        rows, problems = [*rows, *found], [*problems, *faults]
    return rows, problems


def recover_cell(file: Path) -> tuple[list[Row], list[str]]:
    """Read what can be read of the file of one cell, and say what could not, as :func:`recover_rows`."""
    problems: list[str] = []
    rows = _read_file(file, problems)
    for problem in problems:
        logger.warning("damaged results: %s", problem)
    return rows, problems


def _header(file: Path, lines: list[str]) -> dict[str, Any]:
    """Parse the first line of a file. Raises a ``ValueError`` that says what is wrong with it."""
    if not any(lines):
        raise ValueError(f"{file} is empty")
    try:
        header = parse_json(lines[0])
    except ValueError as error:
        raise ValueError(f"{file}: line 1 is not JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(header, dict) or not {"format", "cell", "rows", "definition"} <= header.keys():
        raise ValueError(f"{file}: line 1 is not a header with format, cell, rows and definition")
    if header["format"] != FORMAT or not isinstance(header["definition"], dict):
        raise ValueError(f"{file}: format must be {FORMAT} with a definition of keys, got {header['format']!r}")
    return header


def _read_file(file: Path, problems: list[str]) -> list[Row]:
    """Rows of one file; what is wrong with it is added to ``problems``."""
    if what := what_lies_at(file):  # a pipe would be waited for without end
        problems.append(f"{file} is {what}")
        return []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    except OSError as error:
        problems.append(f"{file} cannot be read ({error.strerror})")
        return []
    try:
        header = _header(file, lines)
    except ValueError as error:
        problems.append(str(error))
        header = None
    rows: list[Row] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            row = Row.from_json(parse_json(line))
            _check_belongs(row, rows, header)
            rows.append(row)
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(f"{file}: line {number} is no row ({error})")
    if header is not None:
        problems += _header_faults(file, header, lines[1:])
    return rows


def _check_belongs(row: Row, before: Sequence[Row], header: Mapping[str, Any] | None) -> None:
    """Raise a ``ValueError`` for a row of another run than the one in the header, and for a split that is there."""
    if row.split in {other.split for other in before}:
        raise ValueError(f"row: split {row.split!r} is there already")
    if header is not None and row.cell != header["cell"]:
        raise ValueError(f"row: cell {row.cell} is not that of its file")
    for name in ("arm", "mixer", "task", "seed"):
        known = header["definition"].get(name) if header is not None else None
        if known is not None and known != getattr(row, name):
            raise ValueError(f"row: {name} must be {known!r} as in the header, got {getattr(row, name)!r}")


def _header_faults(file: Path, header: Mapping[str, Any], lines: Sequence[str]) -> list[str]:
    """What is wrong with a header that can be read."""
    faults = []
    if len(lines) != header["rows"]:
        faults.append(f"{file}: {len(lines)} rows, but its header says {header['rows']}")
    elif header.get("sha256", _sha256(lines)) != _sha256(lines):
        faults.append(f"{file}: its rows were changed after they were written")
    if header["cell"] != file.stem:
        faults.append(f"{file}: holds cell {header['cell']}, which is not its name")
    elif digest(header["definition"]) != header["cell"]:
        faults.append(f"{file}: its definition is that of the cell {digest(header['definition'])}")
    return faults
