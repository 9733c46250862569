"""Running the cells of a study: the pool of workers, attempts after a crash, and a bar with the time that is left."""

import dataclasses
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tqdm.auto import tqdm

from hf_memory.experiments.results import cell_path, recover_cell
from hf_memory.storage import clear_claim
from hf_memory.studies.cells import Cell, Outcome, as_stacks, state_of
from hf_memory.studies.other_code import OtherCode
from hf_memory.studies.workers import LocalWorkers, Workers

logger = logging.getLogger(__name__)

BACKENDS = ("local", "ray")

ReuseOther = Literal["report", "overwrite", "accept"]
"""What becomes of finished cells that other code made: they are named and stand, run again, or stand where a sample of
them that is run again gives equal numbers.
"""


@dataclasses.dataclass(frozen=True)
class Shard:
    """One part of the cells of every stage, for a job that need not see those that run the other parts.

    Attributes:
        number: Which part, counted from 1.
        count: Number of parts.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``"2/8"``.

        Raises:
            ValueError: It is no part.
        """
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        shard = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not 1 <= shard.number <= shard.count:
            raise ValueError(f"shard must be i/n with i from 1 to n, such as 2/8, got {text!r}")
        return shard

    def of(self, cells: Sequence[Cell], seconds: Mapping[str, float]) -> list[Cell]:
        """Its cells, the same whatever is finished; the longest are dealt out first, so that parts take equally long.

        Args:
            cells: All cells of a stage.
            seconds: Estimated time of a run at each place, by :func:`key`.
        """
        dealt = sorted(cells, key=lambda cell: (-seconds[key(cell.place)], cell.digest))
        return dealt[self.number - 1 :: self.count]


WHOLE = Shard()
"""All cells."""


class OtherShardsOpenError(Exception):
    """Cells of other parts are not finished, and what follows needs them."""


def check_backend(backend: str) -> None:
    """Raise a ``ValueError`` for the name of no backend."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def make_workers(backend: str, workers: int | None, gpu_share: float = 0.0) -> Workers:
    """The backend of a name. Raises a ``ValueError`` for an unknown one, and where ``ray`` is not installed."""
    check_backend(backend)
    if backend == "ray":
        from hf_memory.studies.ray import RayWorkers

        return RayWorkers(workers, gpu_share)
    return LocalWorkers(workers)


class Runner:
    """Runs cells into a folder, and shows how far they are. Use it as a context manager.

    Args:
        name: Title of the bar.
        results: Folder of the cells.
        workers: The pool.
        seconds: Estimated time of a run at each place, by :func:`key`.
        stack: Cells that are trained as one stacked model, at most.
        progress: Show the bar.
        other_code: What becomes of finished cells that other code made.
        shard: The part of the cells that is run.
    """

    def __init__(
        self,
        name: str,
        results: Path,
        workers: Workers,
        seconds: Mapping[str, float],
        stack: int,
        progress: bool,
        other_code: ReuseOther = "report",
        shard: Shard = WHOLE,
    ):
        self.results, self.workers, self.stack, self._seconds = results, workers, stack, seconds
        self._shard = shard
        self._other_code: ReuseOther = other_code
        self._bar = tqdm(desc=name, unit="cell", disable=not progress, dynamic_ncols=True)
        self._estimated = self._taken = 0.0
        self._open: dict[str, float] = {}

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def run(self, cells: Sequence[Cell]) -> None:
        """Run cells until each is finished or has failed for good; one that crashes stays open for some attempts.

        Raises:
            OtherShardsOpenError: Cells of other parts are open when those of this one are not.
        """
        own = self._shard.of(cells, self._seconds)
        self._check_finished(own)
        self._bar.total = (self._bar.total or 0) + len(own)
        self._bar.update(len(own) - len(self._still_open(own)))
        while todo := self._still_open(own):
            self._run(todo)
        for cell in own:  # a worker may outlive a sweep that was killed, and die of it while this one runs
            clear_claim(cell_path(self.results, cell.digest))
        if others := self._still_open(cells):
            part = f"{self._shard.number}/{self._shard.count}"
            raise OtherShardsOpenError(
                f"shard {part} is finished; open cells of other shards: {len(others)}; "
                "when those are in this folder too, run the same again for what follows them"
            )

    def say(self, sentence: str) -> None:
        """Print a line above the bar."""
        self._bar.write(sentence)

    def _still_open(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in cells if state_of(self.results, cell) == "open"]

    def _run(self, todo: Sequence[Cell]) -> None:
        self._open = {cell.digest: self._seconds[key(cell.place)] for cell in todo}
        self._show_time()
        # The longest cells first, so that no worker is left with one at the end.
        stacks = as_stacks(sorted(todo, key=lambda cell: -self._open[cell.digest]), self.stack, self.workers.size)
        self.workers.run(stacks, self.results, self._report)

    def _check_finished(self, cells: Sequence[Cell]) -> None:
        """Set damaged files aside, so that their cells run again, and name or run again what other code made."""
        other = OtherCode(self.results)
        for cell in cells:
            path = cell_path(self.results, cell.digest)
            rows, problems = recover_cell(path) if os.path.lexists(path) else ([], [])
            if problems:
                self._set_aside(cell, "damaged", "; ".join(problems))
            elif other.add(cell, rows) and self._other_code == "overwrite":
                self._set_aside(cell, "superseded", f"other code made it ({rows[0].code})")
        if other.found and self._other_code == "accept":
            for made in other.accept(self.workers):
                self.say(made.sentence)
        if other.found and self._other_code != "overwrite":
            self.say(other.sentence)

    def _set_aside(self, cell: Cell, ending: str, why: str) -> None:
        """Rename the file of a cell, or what lies in its place, so that the cell runs again."""
        path = cell_path(self.results, cell.digest)
        aside = path.with_name(f"{path.name}.{ending}")
        path.replace(aside)
        self.say(f"{cell.name} runs again: {why}; the file is kept as {aside.name}")

    def _report(self, cell: Cell, outcome: Outcome, text: str, seconds: float) -> None:
        """Note that a cell has ended."""
        estimate = self._open.pop(cell.digest, 0.0)
        if outcome == "trained":
            self._estimated, self._taken = self._estimated + estimate, self._taken + seconds
        if outcome in ("failed", "crashed"):
            again = "; it is tried again" if outcome == "crashed" else ""
            self.say(f"{cell.name}: {text}{again}")
            logger.error("%s %s: %s", cell.name, outcome, text)
        self._bar.update(outcome != "crashed")
        self._show_time()

    def _show_time(self) -> None:
        """Time left: the estimates of the open cells, corrected by what finished ones took."""
        factor = self._taken / self._estimated if self._estimated else 1.0
        left = factor * sum(self._open.values()) / self.workers.size
        self._bar.set_postfix_str(f"about {duration(left)} left in this stage")


def key(place: Any) -> str:
    """A place as a text, the same for equal places."""
    return repr(sorted(place.items()))


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(42.4), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
