"""Sections that cards of models and of result rows share."""

from collections.abc import Sequence

from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import studies, title
from hf_memory.reports.formats import share
from hf_memory.reports.length_plots import figure_name
from hf_memory.reports.report import length_table, note
from hf_memory.reports.tables import markdown_table

FIGURES = "figures/hf_memory"
"""Folder of a repository in which the figures lie."""


def results_section(rows: Sequence[Row]) -> str:
    """Per study: a figure and a table of the headline metric by test length, with chance level and baselines."""
    return "\n\n".join(f"### {title(study)}\n\n{_study(study)}" for study in studies(rows))


def _study(rows: Sequence[Row]) -> str:
    lengths, lines = length_table(rows)
    if not lengths:
        values = [(row.split, row.length, share(row.value())) for row in rows]
        return markdown_table(["split", "length", "value"], values)
    figure = f"![{rows[0].headline} by test length]({FIGURES}/{figure_name(rows)}.png)"
    table = markdown_table(["", *lengths], [(line.name, *dict(line.cells).values()) for line in lines])
    return f"{note(rows)}\n\n{figure}\n\n{table}"
