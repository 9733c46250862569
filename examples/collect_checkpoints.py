"""Gather the best checkpoints of sweeps, one for each mixer and task that it solves, with rows, cards and an index.

    python examples/collect_checkpoints.py results --out examples/checkpoints

A run solves its task where the headline metric at the training length is at least `--solved`. Of the runs of a mixer
that do, the one counts that reaches the longest length, and of these the one with the best mean over all lengths. What
stands in the folder counts too, so that sweeps can be gathered one by one.
"""

import argparse
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.experiments.results import Row, cell_path, read_rows
from hf_memory.hub.studies import save_checkpoint
from hf_memory.reports.formats import count, share
from hf_memory.reports.tables import markdown_table
from hf_memory.storage import copy_folder, write_text
from hf_memory.studies.outcomes import find_records, read_study, runs_of_record
from hf_memory.studies.watched import checkpoint_path

MOST_BYTES = 5_000_000
"""Bytes of all checkpoints together: they lie in a repository of code."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A checkpoint of a run, with the file of its rows."""

    folder: Path
    file: Path
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Folder of the checkpoint of this mixer and task."""
        return f"{self.rows[0].task}-{self.rows[0].mixer}"

    @property
    def trained(self) -> int:
        """The longest length of the training set."""
        return (self.rows[0].train_length or (0, 1))[1]

    @property
    def lengths(self) -> dict[int, float]:
        """The headline metric by test length."""
        return {row.length: row.value() for row in self.rows if row.split == f"test_{row.length}"}

    @property
    def at_home(self) -> float:
        """The headline metric at the training length."""
        return self.lengths.get(self.trained, float("nan"))

    @property
    def reached(self) -> int:
        """The longest length up to which the metric holds."""
        return extrapolation_length(self.lengths)

    @property
    def rank(self) -> tuple[float, float]:
        """What is compared: how far it gets, as a multiple of the training length, and the mean over all lengths."""
        return self.reached / self.trained, float(np.mean(list(self.lengths.values())))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder with the results of sweeps, which kept their checkpoints")
    parser.add_argument("--out", type=Path, default=Path("examples/checkpoints"), help="folder to gather them in")
    parser.add_argument(
        "--solved", type=float, default=0.95, help="headline metric at the training length of a solution"
    )
    arguments = parser.parse_args(argv)

    best: dict[str, Candidate] = {}
    for candidate in (*standing(arguments.out), *candidates(arguments.results)):
        if candidate.at_home >= arguments.solved:
            best[candidate.name] = max(best.get(candidate.name, candidate), candidate, key=lambda one: one.rank)
    sizes = {name: sum(file.stat().st_size for file in one.folder.rglob("*")) for name, one in best.items()}
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        parser.error(
            f"together {sum(sizes.values())} bytes, at most {MOST_BYTES} are allowed; the largest is {largest}"
        )
    for name, candidate in best.items():
        if candidate.folder != arguments.out / name:
            save(candidate, arguments.out)
    ordered = [best[name] for name in sorted(best)]
    write_text(arguments.out / "README.md", index(ordered, arguments.solved))
    print(f"{len(ordered)} checkpoints of {sum(sizes.values())} bytes in {arguments.out}")


def standing(out: Path) -> Iterator[Candidate]:
    """What was gathered before."""
    for folder in sorted(path.parent for path in out.glob("*/model.safetensors")):
        (file,) = folder.glob("*.jsonl")
        yield Candidate(folder, file, tuple(read_rows(file)))


def candidates(results: Path) -> Iterator[Candidate]:
    """Every run of a sweep that kept its checkpoint."""
    for record in find_records(results):
        runs = runs_of_record(record)
        for result in read_study(record).results:
            folder = checkpoint_path(runs, result.digest)
            if result.is_known and folder.is_dir():
                yield Candidate(folder, cell_path(runs, result.digest), tuple(result.rows.values()))


def save(candidate: Candidate, out: Path) -> None:
    """Copy a checkpoint with its rows, and write its card and figure."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / candidate.name
        save_checkpoint(candidate.folder, folder, out.as_posix(), candidate.name, candidate.rows)
        shutil.copyfile(candidate.file, folder / candidate.file.name)
        copy_folder(folder, out / candidate.name)


def index(chosen: list[Candidate], solved: float) -> str:
    """The table of all checkpoints."""
    heads = ["checkpoint", "trained at", "value there", "reaches", "parameters", "state bytes", "arm", "seed"]
    lines = []
    for one in chosen:
        row = next(row for row in one.rows if row.split == f"test_{one.trained}")
        sizes = (count(row.parameters), count(row.state_bytes))
        link = f"[{one.name}]({one.name})"
        lines.append((link, one.trained, share(one.at_home), one.reached, *sizes, row.arm, row.seed))
    return (
        "# Small checkpoints\n\n"
        "One for each mixer and task that it solves: the run of the studies in `examples/results` that keeps its "
        f"headline metric above 0.9 up to the longest length, of those with at least {solved:g} at the training "
        "length. `examples/collect_checkpoints.py` gathers them. What has no checkpoint here was not solved within the "
        "budgets of these studies, which says nothing of what a mixer could learn, or did not fit: together they have "
        f"at most {MOST_BYTES / 1e6:g} MB.\n\n"
        f"{markdown_table(heads, lines)}\n"
    )


if __name__ == "__main__":
    main()
