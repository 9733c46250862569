"""Tables as texts: of a page, as Markdown, and as CSV."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
from typing import Any

from hf_memory.names import table_text


@dataclasses.dataclass(frozen=True)
class TableCell:
    """A text, the number by which it is sorted, and its class."""

    text: str
    key: float | None = None
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class TableLine:
    """A line of a table; a level is a chance level or a baseline."""

    cells: tuple[TableCell, ...]
    level: bool = False


@dataclasses.dataclass(frozen=True)
class PageTable:
    """A table of the page."""

    id: str
    title: str
    note: str
    columns: tuple[str, ...]
    lines: tuple[TableLine, ...]
    filter: bool = True

    def head_kind(self, column: int) -> str:
        """Classes that the head of a column shares with its cells."""
        words = self.lines[0].cells[column].kind.split() if self.lines else []
        return " ".join(word for word in words if word in ("text", "trained"))

    def led_by(self, *names: str) -> "PageTable":
        """The same table with these columns behind the first one: what matters is seen where few columns fit."""
        wanted = [self.columns.index(name) for name in names if name in self.columns[1:]]
        order = [0, *wanted, *(i for i in range(1, len(self.columns)) if i not in wanted)]
        lines = tuple(dataclasses.replace(line, cells=tuple(line.cells[i] for i in order)) for line in self.lines)
        return dataclasses.replace(self, columns=tuple(self.columns[i] for i in order), lines=lines)

    def texts(self) -> list[list[str]]:
        """The texts of all lines."""
        return [[cell.text for cell in line.cells] for line in self.lines]


def to_markdown(table: PageTable) -> str:
    """A table with its title and note, as Markdown. Columns without any text are left out."""
    own = [table.note, "", _filled_columns(table)] if table.lines else ["None."]
    return "\n".join([f"### {table.title}", "", *own, ""])


def noted_markdown(table: PageTable) -> str:
    """A table as Markdown without its title, its note below it. Columns without any text are left out."""
    return f"{_filled_columns(table)}\n\n{table.note}" if table.lines else "None."


def _filled_columns(table: PageTable) -> str:
    texts = table.texts()
    kept = [i for i in range(len(table.columns)) if any(line[i] for line in texts)]
    return markdown_table([table.columns[i] for i in kept], [[line[i] for i in kept] for line in texts])


def markdown_table(head: Sequence[Any], lines: Iterable[Sequence[Any]]) -> str:
    r"""A head and lines as a Markdown table, without a line break at its end.

    >>> print(markdown_table(["mixer", 32], [["lstm|wide", "0.960"]]))
    | mixer | 32 |
    |---|---|
    | lstm\|wide | 0.960 |
    """

    def line(values: Sequence[Any]) -> str:
        texts = (" ".join(str(value).split()).replace("\\", "\\\\").replace("|", "\\|") for value in values)
        return f"| {' | '.join(texts)} |"

    return "\n".join([line(head), "|---" * len(head) + "|", *map(line, lines)])


def to_csv(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A head and lines as CSV; a text that begins like a formula stays a text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in (head, *lines):
        writer.writerow([table_text(cell) if isinstance(cell, str) and not _is_number(cell) else cell for cell in line])
    return text.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
