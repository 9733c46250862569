"""Pages as single files: templates, CSS and scripts are put together here, and pictures lie within the page.

Of the templates in ``templates/``, ``base.html`` is the frame of every page, ``report.html`` and ``study_page.html``
are pages, and the others are parts of these.
"""

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from hf_memory.experiments.results import Row
from hf_memory.reports.formats import versions
from hf_memory.reports.plotting import Drawing, png
from hf_memory.reports.vectors import inline, svg
from hf_memory.storage import write_bytes, write_text

SCRIPTS = ("sortable.js", "figures.js")
"""What the script of a page consists of."""


@functools.cache
def templates() -> jinja2.Environment:
    """The templates, which escape every value and refuse names that they are not given."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("hf_memory.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_single_page(
    out: str | Path, template: str, files: Mapping[str, bytes], rows: Iterable[Row], **values: Any
) -> Path:
    """Write ``index.html`` and the files behind it, and return the page.

    Args:
        out: Folder of the page.
        template: Name of the template.
        files: Content of each further file by name.
        rows: Rows from which every number comes; the footer counts them.
        **values: What the template shows.
    """
    # Everything is computed before the first file is written, so that an error leaves nothing half-made.
    page = templates().get_template(template).render(footer=footer(rows), **_only_script(), **values)
    for name, content in files.items():
        write_bytes(Path(out) / name, content)
    return write_text(Path(out) / "index.html", page)


@functools.cache
def _only_script() -> dict[str, str]:
    """The script of all pages, and the policy by which a browser runs it and no other, and loads nothing."""
    folder = importlib.resources.files("hf_memory.reports") / "templates"
    script = "\n".join(folder.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; base-uri 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'"
    return {"script": script, "policy": policy}


def picture(vectors: bytes, alt: str, caption: str = "") -> dict[str, str]:
    """An SVG of :func:`hf_memory.reports.vectors.svg` as the part ``figure.html`` shows it."""
    return {"vectors": inline(vectors), "alt": alt, "caption": caption}


def drawing_files(drawing: Drawing) -> dict[str, bytes]:
    """Image, vectors and numbers of a figure by ending. Each is drawn once, since drawing moves the layout."""
    return {"png": png(drawing.figure), "svg": svg(drawing.figure), "csv": drawing.table.encode()}


def footer(rows: Iterable[Row]) -> str:
    """Where the numbers come from."""
    rows = list(rows)
    devices = sorted({device(row) for row in rows})
    used = versions(pair for row in rows for pair in row.versions.items())
    return f"{len(rows)} rows of {len({row.cell for row in rows})} runs on {'; '.join(devices)}. {used}."


def device(row: Row) -> str:
    """Where a row was measured."""
    return f"{row.device}, {row.backend} backend"
