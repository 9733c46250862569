"""Tables for the terminal: the numbers of the pages, in the same words."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import studies, title
from hf_memory.reports.formats import count, rate
from hf_memory.reports.report import FACTS, length_table, note
from hf_memory.reports.suite_page import entry_table
from hf_memory.studies.running import duration
from hf_memory.studies.suites import Score, Suite, by_memory
from hf_memory.studies.sweep import Line


def length_tables(rows: Sequence[Row], metric: str | None = None) -> Iterator[Table]:
    """One table per study: values over the test lengths, chance levels, parameters and state bytes.

    Args:
        rows: Result rows.
        metric: What is shown; the headline metric by default.
    """
    for study in studies(rows):
        lengths, lines = length_table(study, metric)
        table = Table(title=title(study), caption=note(study, metric))
        table.add_column("mixer")
        for name in (*map(str, lengths), *FACTS):
            table.add_column(name, justify="right")
        for line in lines:
            values: dict[int, Any] = dict(line.cells)
            style = "dim" if line.level else None
            table.add_row(line.name, *(values[length] for length in lengths), *line.facts, style=style)
        yield table


def suite_table(suite: Suite, scores: Sequence[Score]) -> Table:
    """What one mixer came to at each configuration of a suite; the caption has the number for each kind of memory."""
    found = entry_table(suite, {scores[0].entry.arm: list(scores)})
    kinds = "; ".join(f"{kind} {solved} of {planned}" for kind, (solved, planned) in by_memory(list(scores)).items())
    table = Table(title=f"{suite.name}: {scores[0].entry.arm}", caption=f"solved within the budget: {kinds}")
    shown = [found.columns.index(name) for name in ("memory", "configuration", "solved", "value", "reached", "steps")]
    for place in shown:
        table.add_column(found.columns[place], no_wrap=True)
    for line in found.texts():
        table.add_row(*(line[place] for place in shown))
    return table


def cells_table(heading: str, lines: Sequence[Line]) -> Table:
    """The cells of a recipe with sizes and estimated time."""
    table = Table(title=heading)
    for name in ("stage", "arm", "rate", "seed", "width", "per block", "blocks", "state bytes", "time"):
        table.add_column(name, justify="left" if name in ("stage", "arm") else "right", overflow="fold")
    for line in lines:
        chosen = "chosen" if line.learning_rate is None else rate(line.learning_rate)
        sizes = (line.hidden_size, line.parameters_per_block, line.parameters_non_embedding, line.state_bytes)
        table.add_row(line.stage, line.name, chosen, str(line.seed), *map(count, sizes), duration(line.seconds))
    return table
