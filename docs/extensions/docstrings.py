"""Docstrings as reStructuredText: equations become equations, and signs of mathematics do not become markup.

Docstrings of the package are written to be read in the code. What Sphinx would misread in them, asterisks, bars and
indented blocks, is written here as what it is.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from docs.extensions.notation import cells, inline, is_equation, letters

Symbols = frozenset[str] | None
"""The Greek letters that a text spells out; None where its sentences hold no symbols."""

BOLD = "\N{START OF GUARDED AREA}{}\N{END OF GUARDED AREA}"
"""Marks words of a docstring that a page shows in bold: two signs that no docstring holds."""

_SECTION = re.compile(r"^(Args|Attributes|Class attributes|Raises|Returns|Yields|Example|Examples|Note):$")
_ITEM = re.compile(r"^``[^`]+``\s{2,}")
_KEPT = re.compile(r"(``.+?``|:[\w:]+:`[^`]+`|`[^`]+`)", re.DOTALL)
_CONVOLUTION = re.compile(r"\* is a [\w ]*convolution")


def setup(app: Any) -> dict[str, Any]:
    """Read docstrings this way, before napoleon turns their sections into fields."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _process(_app: Any, kind: str, _name: str, _thing: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = rest("\n".join(lines)).splitlines()
    if kind in ("attribute", "data", "property"):
        lines.insert(0, "")  # what stands before a colon in the first line would be taken for the type


def rest(text: str, symbols: bool = False) -> str:
    """A docstring as reStructuredText.

    Args:
        text: The docstring without its indentation.
        symbols: Whether symbols in sentences, such as ``h_t``, are set as mathematics.
    """
    convolution = _CONVOLUTION.search(" ".join(text.split())) is not None
    greek = letters(text) if symbols else None
    parts, before = [], ""
    for block in blocks(text):
        parts.append(_block(block, before, greek, convolution))
        before = block
    return re.sub("\x96(.+?)\x97", r"**\1**", "\n\n".join(parts), flags=re.DOTALL) + "\n"


def blocks(text: str) -> list[str]:
    """The blocks of a docstring, which stand between empty lines; a section of arguments is one with its entries."""
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def _block(block: str, before: str, symbols: Symbols, convolution: bool) -> str:
    first = block.splitlines()[0]
    if block.startswith("    "):
        if before.rstrip().endswith("::") or _SECTION.match(before.splitlines()[0] if before else ""):
            return block
        return equations(block, convolution) if is_equation(block) else f"::\n\n{block}"
    if first.startswith((">>>", "* ", "- ")):
        return block if first.startswith(">>>") else "\n".join(_marked(block, symbols))
    if _SECTION.match(first):
        return "\n".join([first, *(escape(line) for line in block.splitlines()[1:])])
    if _ITEM.match(first):
        return "\n".join(_definitions(block, symbols))
    return escape(block, symbols)


def equations(block: str, convolution: bool = False) -> str:
    """A block of equations: a line of the docstring is a line of the page, which may break between its cells."""
    lines = [".. container:: equations", ""]
    for line in block.splitlines():
        lines += ["   .. container:: line", ""]
        for cell in cells(line, convolution):
            lines += ["      .. math::", "         :no-wrap:", "", f"         {cell}", ""]
    return "\n".join(lines).rstrip()


def escape(text: str, symbols: Symbols = None) -> str:
    """Text in which nothing but names in code, roles and emphasis of the author's own is markup."""
    parts = _KEPT.split(text)
    return "".join(_code(part) if index % 2 else _plain(part, symbols) for index, part in enumerate(parts))


def _code(part: str) -> str:
    """Names in code stay; between single backticks they are code as well."""
    return f"`{part}`" if part.startswith("`") and not part.startswith("``") else part


def _plain(text: str, symbols: Symbols) -> str:
    if symbols is None:
        return re.sub(r"([\\*|])|(?<=\w)_(?=\W|$)", lambda found: "\\" + found[0], text)
    parts = re.split(r"(:math:`[^`]+`)", inline(text, symbols))
    plain = [part if index % 2 else _plain(part, None) for index, part in enumerate(parts)]
    # Roles need room: what follows one without a space is set off by an escaped one.
    return re.sub(r"(:math:`[^`]+`)(?=[\w(])", r"\1\\ ", re.sub(r"(?<=[^\s(\[\-])(:math:`)", r"\\ \1", "".join(plain)))


def _marked(block: str, symbols: Symbols) -> Iterator[str]:
    """The items of a list, whose marks stay."""
    for line in block.splitlines():
        mark, text = (line[:2], line[2:]) if line.startswith(("* ", "- ")) else ("", line)
        yield mark + escape(text, symbols)


def _definitions(block: str, symbols: Symbols) -> Iterator[str]:
    """A list of names in code with what each means, which stands in a column of its own."""
    items: list[list[str]] = []
    for line in block.splitlines():
        if not line.startswith(" "):
            items.append([])
        items[-1].append(line.strip())
    for item in items:
        name, text = re.split(r"(?<=``)\s{2,}", " ".join(item), maxsplit=1)
        yield f"* {name}: {escape(text, symbols)}"


def list_table(head: Iterable[str], lines: Iterable[Iterable[str]], name: str = "facts") -> str:
    """A table whose cells are reStructuredText, inside of a box that scrolls on narrow screens."""
    rows = [list(head), *map(list, lines)]
    text = [".. list-table::", "   :header-rows: 1", f"   :class: {name}", ""]
    for row in rows:
        for index, cell in enumerate(row):
            text.append(f"   {'* -' if index == 0 else '  -'} {' '.join(cell.split())}")
    return "\n".join(text)


def heading(text: str, line: str) -> str:
    """A heading of a page or of a section."""
    return f"{text}\n{line * len(text)}"
