"""One plain page of results: tables and figures in a single HTML file that needs no network.

Every number on the page is read from result rows.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.experiments.results import SWEEP_ENDING, Row, recover_rows
from hf_memory.experiments.summary import check_comparable, chosen_rows, curves, reference_levels, studies, title
from hf_memory.reports.formats import UNKNOWN, rate, share, span, spread, words
from hf_memory.reports.length_plots import figure_name, plot_length_curves
from hf_memory.reports.pages import picture, write_single_page
from hf_memory.reports.plotting import png
from hf_memory.reports.probe_page import write_probe_page
from hf_memory.reports.tables import PageTable, TableCell, TableLine, to_csv
from hf_memory.reports.vectors import svg
from hf_memory.storage import find_files

Reader = Callable[[str], tuple[list[Row], list[str]]]
"""Finds rows, and says what could not be read."""

FACTS = ("reaches", "seeds", "parameters", "state bytes", "learning rate", "steps", "seconds")
"""Columns beside the values. ``reaches`` is the longest test length up to which the mean over seeds is above 0.9."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table: an arm, the chance level or a baseline.

    Attributes:
        name: Name of the arm or level.
        facts: Texts under :data:`FACTS`; empty for levels.
        cells: Length and text of the value there.
        level: Whether the line is a level and not an arm.
    """

    name: str
    facts: tuple[str, ...]
    cells: tuple[tuple[int, str], ...]
    level: bool


def length_table(rows: Sequence[Row], metric: str | None = None) -> tuple[list[int], list[Line]]:
    """The table of one study: its test lengths, then a line per arm, the chance level, and the baselines.

    Equal baselines share a line. A value is the mean over seeds, with the smallest and largest in brackets where there
    are several.
    """
    found = curves(rows, metric)
    lengths = sorted({length for points in found.values() for length in points})
    lines = []
    for arm, points in found.items():
        own = [row for row in rows if row.arm == arm]
        cells = tuple((length, spread(points[length].values) if length in points else "") for length in lengths)
        lines.append(Line(arm, _facts(own, metric), cells, level=False))
    levels: dict[tuple[tuple[int, str], ...], list[str]] = {}
    for name, by_length in reference_levels(rows, metric).items():
        cells = tuple((length, share(by_length[length]) if length in by_length else "") for length in lengths)
        levels.setdefault(cells, []).append(words(name))
    for cells, names in levels.items():
        lines.append(Line(", ".join(names), ("",) * len(FACTS), cells, level=True))
    return lengths, lines


def _facts(rows: Sequence[Row], metric: str | None) -> tuple[str, ...]:
    """What is known of an arm besides its values, in the order of :data:`FACTS`."""
    chosen = chosen_rows(rows, metric)
    best = chosen[0].learning_rate
    tried = {value for row in chosen for value in row.learning_rate_grid} | {row.learning_rate for row in rows}
    of_grid = f" (best of {len(tried)})" if len(tried) > 1 else ""
    seconds = {row.cell: row.train_seconds for row in chosen}
    points = curves(rows, metric)[rows[0].arm]
    return (
        str(extrapolation_length({length: point.values for length, point in points.items()})),
        str(len({row.seed for row in chosen})),
        span([row.parameters for row in chosen]),
        span([row.state_bytes for row in chosen if row.split.startswith("test_")]),
        rate(best) if best is None else f"{rate(best)}{of_grid}",
        span([row.steps for row in chosen]),
        span([None if value is None else round(value) for value in seconds.values()]),
    )


def note(rows: Sequence[Row], metric: str | None = None) -> str:
    """A sentence that says what the values of a study are."""
    row, name = rows[0], words(metric or rows[0].headline)
    counts = span(round(found.measured(metric).denominator) for found in rows if found.split.startswith("test_"))
    if row.probe is not None:
        return f"{name} on {counts} targets per test length; data version {row.data_version}."
    rules = ", ".join(sorted({found.stop_rule or UNKNOWN for found in rows}))
    schedules = ", ".join(sorted({found.schedule or UNKNOWN for found in rows}))
    return (
        f"{name} on {counts} targets per test length; data version {row.data_version}; training stopped: {rules}; "
        f"schedule: {schedules}."
    )


def study_csv(rows: Sequence[Row], metric: str | None = None) -> str:
    """The numbers behind a study's figure as CSV: one line per arm, length and seed."""
    check_comparable(rows)
    lines = []
    for row in sorted(rows, key=lambda row: (row.arm, row.length, row.cell)):
        if row.split.startswith("test_"):
            found = row.measured(metric)
            named = (row.arm, row.mixer, row.length, row.seed, row.learning_rate)
            lines.append((*named, found.value, found.denominator, found.chance, row.cell))
    head = ("arm", "mixer", "length", "seed", "learning_rate", "value", "targets", "chance", "cell")
    return to_csv(head, lines)


def write_report(
    results: str | Path, out: str | Path, heading: str = "Memory of sequence mixers", reader: Reader = recover_rows
) -> Path:
    """Write ``index.html`` with all studies of a results folder, and the PNG and CSV behind each figure.

    Args:
        results: The folder, one file, or whatever else ``reader`` finds.
        out: Folder of the page.
        heading: Title of the page.
        reader: Turns ``results`` into rows and a sentence for each thing that could not be read.

    Damaged files are named at the top of the page; what can be read of them is used. A folder with sweeps in it, or
    below it, gets the page of its sweeps instead, with their verdicts.

    Returns:
        The page.

    Raises:
        ValueError: If there are no rows, or rows of several data versions in one study.
    """
    if find_files(results, f"*{SWEEP_ENDING}", below=True):
        from hf_memory.reports.study_page import (
            write_study_page,  # with models and data behind it, which rows do not need
        )

        return write_study_page(results, out, heading)
    rows, problems = reader(str(results))
    if not rows:
        raise ValueError(f"results: {str(results)!r} holds no readable row: {'; '.join(problems)}")
    return write_page(rows, out, heading, problems)


def write_page(rows: Sequence[Row], out: str | Path, heading: str, problems: Sequence[str] = ()) -> Path:
    """Write the page of :func:`write_report` from rows at hand; rows of probes alone get the page of probes."""
    if all(row.probe is not None for row in rows):
        return write_probe_page(rows, out, heading, problems)
    sections, files = study_sections(rows)
    return write_single_page(out, "report.html", files, rows, heading=heading, problems=problems, sections=sections)


def study_sections(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """A table and a figure of each study, and the PNG and CSV behind each figure."""
    sections, files = [], {}
    for study in studies(rows):
        drawn, name = plot_length_curves(study), figure_name(study)
        files[f"{name}.png"], files[f"{name}.csv"] = png(drawn), study_csv(study).encode()
        figure = picture(svg(drawn), f"{study[0].headline} against test length")
        sections.append({"title": title(study), "table": _page_table(study, name), "figure": figure})
    return sections, files


def _page_table(study: Sequence[Row], name: str) -> PageTable:
    """The table of a study, with its values before the facts; lengths seen in training are shaded."""
    lengths, lines = length_table(study)
    low, high = study[0].train_length or (0, 0)
    shades = {length: "trained" if low <= length <= high else "" for length in lengths}
    found = [
        TableLine(
            (
                TableCell(line.name, kind="text"),
                *(TableCell(text, kind=shades[length]) for length, text in line.cells),
                *map(TableCell, line.facts),
            ),
            line.level,
        )
        for line in lines
    ]
    text = f"{note(study)} Lengths seen in training are shaded."
    return PageTable(name, "Values by test length", text, ("mixer", *map(str, lengths), *FACTS), tuple(found), False)
