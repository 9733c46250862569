"""Finished runs that other code made: which they are, and whether today's code still makes their numbers.

Rows hold a digest of the code that trained their model (:mod:`hf_memory.experiments.code`). Code also changes where no
number does, so a sample of such runs can be made again: what came of it stands in ``accepted.json`` beside the rows,
and runs whose code made equal numbers are not reported any more.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from hf_memory.data.folders import working_folder
from hf_memory.experiments.provenance import versions
from hf_memory.experiments.results import Row, cell_path, read_rows
from hf_memory.storage import decode, encode, write_text
from hf_memory.studies.cells import Cell, Outcome
from hf_memory.studies.workers import Workers

logger = logging.getLogger(__name__)

RECORD = "accepted.json"
"""Name of the record in a folder of results."""


@dataclasses.dataclass(frozen=True)
class Change:
    """Code that made finished runs, and what stands in its place today; both are digests."""

    before: str
    now: str


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """A finished run that was made again with today's code.

    Attributes:
        before: Digest of the code that made the committed rows.
        now: Digest of the code that made them again.
        cell: Digest of the run.
        name: The run, for people.
        equal: Whether each metric of each split has the same counts and value.
        difference: Largest difference of a value; NaN where the rows do not have the same splits and metrics.
        same_weights: Whether the weights are the same to the bit.
        versions: Versions of the packages that took part.
    """

    before: str
    now: str
    cell: str
    name: str
    equal: bool
    difference: float
    same_weights: bool
    versions: dict[str, str]

    @property
    def sentence(self) -> str:
        """What came of it, for people."""
        found = "the same numbers" if self.equal else f"other numbers (the largest difference is {self.difference:g})"
        weights = f" and {'the same' if self.same_weights else 'other'} weights" if self.equal else ""
        return f"{self.name}, made again: code {self.now} makes {found}{weights} as code {self.before}"


class OtherCode:
    """Finished cells of a folder that other code made, by :class:`Change`."""

    def __init__(self, results: Path):
        self.results = results
        self.found: dict[Change, list[Cell]] = {}
        self._digests: dict[str, str] = {}
        self._accepted = {Change(own.before, own.now) for own in read_accepted(results) if own.equal}

    def add(self, cell: Cell, rows: Sequence[Row]) -> bool:
        """Note a finished cell; whether other code made it, which was not found to make the same numbers."""
        if not rows or not rows[0].code:
            return False
        change = Change(rows[0].code, self._code(cell))
        if change.before == change.now or change in self._accepted:
            return False
        self.found.setdefault(change, []).append(cell)
        return True

    @property
    def sentence(self) -> str:
        """How many there are, and what can be done, for people."""
        names = [cell.name for cells in self.found.values() for cell in cells]
        return (
            f"{len(names)} finished runs were made by other code and stand as they are: {names[0]}"
            f"{f' and {len(names) - 1} more' if names[1:] else ''}; overwrite runs them again, accept-other-code a "
            "sample of them"
        )

    def _code(self, cell: Cell) -> str:
        """Digest of today's code of a cell; it depends on what is trained, and not on how."""
        key = json.dumps(encode([cell.mixer, dict(cell.fields), cell.task, cell.config, dict(cell.data)]), default=str)
        if key not in self._digests:
            self._digests[key] = cell.experiment().code()
        return self._digests[key]

    def accept(self, workers: Workers) -> list[Acceptance]:
        """Run one cell of each change again, and record what came of it."""
        sample = {change: _sample(self.results, cells) for change, cells in self.found.items()}
        with working_folder(self.results, "again") as folder:
            workers.run([(cell,) for cell in sample.values()], folder, _report)
            new = [_compare(change, cell, self.results, folder) for change, cell in sample.items()]
        known = read_accepted(self.results)
        content = json.dumps([encode(dataclasses.asdict(own)) for own in [*known, *new]], indent=2, allow_nan=False)
        write_text(self.results / RECORD, content + "\n")
        for change in [Change(own.before, own.now) for own in new if own.equal]:
            self._accepted.add(change)
            del self.found[change]
        return new


def read_accepted(results: Path) -> list[Acceptance]:
    """What is recorded of runs that were made again; a record that is damaged counts as none, and is logged."""
    path = results / RECORD
    if not path.is_file():
        return []
    try:
        return [Acceptance(**own) for own in decode(json.loads(path.read_text(encoding="utf-8")))]
    except (ValueError, TypeError):
        logger.warning("damaged record of runs that were made again: %s", path)
        return []


def _sample(results: Path, cells: Sequence[Cell]) -> Cell:
    """The run that took the least time, of those that were trained alone where there are some."""
    rows = {cell.digest: read_rows(cell_path(results, cell.digest))[0] for cell in cells}
    return min(cells, key=lambda cell: ("stack" in rows[cell.digest].backend, rows[cell.digest].train_seconds or 0.0))


def _compare(change: Change, cell: Cell, results: Path, again: Path) -> Acceptance:
    """Compare the rows of a run with those that it leaves today; a run that fails today is not equal."""
    old = {row.split: row for row in read_rows(cell_path(results, cell.digest))}
    path = cell_path(again, cell.digest)
    new = {row.split: row for row in read_rows(path)} if path.exists() else {}
    weights = [{row.weights_sha256 for row in rows.values()} for rows in (old, new)]
    return Acceptance(
        before=change.before,
        now=change.now,
        cell=cell.digest,
        name=cell.name,
        equal=_numbers(old) == _numbers(new),
        difference=_difference(old, new),
        same_weights=weights[0] == weights[1],
        versions=versions(),
    )


def _numbers(rows: dict[str, Row]) -> str:
    """Counts and values of each metric of each split, as a text, in which NaN equals NaN."""
    metrics = {
        split: {name: dataclasses.astuple(own)[:3] for name, own in row.metrics.items()} for split, row in rows.items()
    }
    return json.dumps(encode(metrics), sort_keys=True)


def _difference(old: dict[str, Row], new: dict[str, Row]) -> float:
    """Largest difference of a value."""
    if {split: row.metrics.keys() for split, row in old.items()} != {s: row.metrics.keys() for s, row in new.items()}:
        return math.nan
    pairs = [(own, new[split].metrics[name]) for split, row in old.items() for name, own in row.metrics.items()]
    return max(0.0 if math.isnan(a.value) and math.isnan(b.value) else abs(a.value - b.value) for a, b in pairs)


def _report(cell: Cell, outcome: Outcome, text: str, seconds: float) -> None:
    """Say that a run was made again."""
    logger.info("%s, made again: %s %s(%.0f s)", cell.name, outcome, f"{text} " if text else "", seconds)
