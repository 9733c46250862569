"""The page of many results: one table of all models, sorted and filtered, above the report of each study."""

from collections.abc import Sequence
from pathlib import Path

from hf_memory.experiments.metrics import REACHED, extrapolation_length
from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import chosen_rows, curves, reference_levels, studies, title
from hf_memory.reports.formats import UNKNOWN, count, rate, share, spread, words
from hf_memory.reports.pages import write_single_page
from hf_memory.reports.report import study_sections
from hf_memory.reports.tables import PageTable, TableCell, TableLine, to_csv

COLUMNS = (
    *("model", "value", "at length", "task", "reaches", "chance", "state bytes", "parameters", "training FLOPs"),
    *("learning rate", "seeds", "metric", "study"),
)
BOUNDS = ("state bytes", "parameters", "training FLOPs")

NOTE = (
    "One line for each model of each study: its mean over seeds at the longest test length, at the learning rate that "
    "was best, and without the runs of a search that others followed; and the longest length up to which it is above "
    f"{REACHED:g}. State bytes are those at that length. "
    "Training FLOPs are 6 times the parameters without embeddings times the tokens seen, an estimate that leaves out "
    "embeddings and the head, and what a recurrence computes beyond its parameters."
)


def leaderboard(rows: Sequence[Row]) -> PageTable:
    """The table of all models."""
    lines = [_line(study, arm) for study in studies(rows) for arm in curves(study)]
    lines.sort(key=lambda line: (line.cells[COLUMNS.index("task")].text, -(line.cells[1].key or 0.0)))
    return PageTable("leaderboard", "All models", NOTE, COLUMNS, tuple(lines))


def _line(study: Sequence[Row], arm: str) -> TableLine:
    """What is known of an arm, in the order of :data:`COLUMNS`."""
    own = chosen_rows([row for row in study if row.arm == arm])
    points = {length: point.values for length, point in curves(own)[arm].items()}
    longest = max(points)
    row = next(row for row in own if row.length == longest and row.split.startswith("test_"))
    chance = reference_levels(study).get("chance", {}).get(longest)
    flops = None if row.tokens is None else 6.0 * row.parameters_non_embedding * row.tokens
    mean = sum(points[longest]) / len(points[longest])
    return TableLine((
        TableCell(arm, kind="text"),
        TableCell(spread(points[longest]), mean),
        TableCell(count(longest), float(longest)),
        TableCell(row.task, kind="text"),
        TableCell(count(extrapolation_length(points))),
        TableCell("" if chance is None else share(chance)),
        TableCell(count(row.state_bytes), float(row.state_bytes)),
        TableCell(count(row.parameters), float(row.parameters)),
        TableCell(UNKNOWN if flops is None else f"{flops:.2e}", flops),
        TableCell(rate(row.learning_rate), row.learning_rate),
        TableCell(str(len({row.seed for row in own}))),
        TableCell(words(row.headline), kind="text"),
        TableCell(title(study), kind="text"),
    ))  # fmt: skip


def write_leaderboard(rows: Sequence[Row], out: str | Path, heading: str, problems: Sequence[str] = ()) -> Path:
    """Write ``index.html`` with the table of all models and each study's report, and the files behind them.

    Args:
        rows: Result rows.
        out: Folder of the page.
        heading: Title of the page.
        problems: A sentence for each thing that could not be read.

    Returns:
        The page.
    """
    sections, files = study_sections(rows)
    board = leaderboard(rows)
    files[f"{board.id}.csv"] = to_csv(board.columns, board.texts()).encode()
    choices = {"task": sorted({row.task for row in rows})}
    return write_single_page(
        out, "leaderboard.html", files, rows, heading=heading, problems=problems, sections=sections, board=board,
        choices=choices, bounds=BOUNDS,
    )  # fmt: skip
