"""Figures that lie beside committed rows, for pages of Markdown.

Each is a PNG of few colours that names the rows from which it was drawn, so that one that is out of date is found.
"""

import dataclasses
import hashlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hf_memory.reports.plotting import png
from hf_memory.storage import encode, write_bytes
from hf_memory.studies.outcomes import Study

FIGURES = "figures"
"""Name of their folder, beside those of the rows."""

_ROWS = "Rows"
"""The text of a PNG that names its rows."""

_COLOURS = 64
"""Lines, marks and letters need no more, and the file has a third of the bytes."""


def rows_digest(studies: Iterable[Study]) -> str:
    """SHA-256 of the title and claims of some sweeps, their rows and their histories."""
    digest = hashlib.sha256()

    def add(*values: Any) -> None:
        digest.update(json.dumps(encode(values), sort_keys=True).encode())

    for study in studies:
        recipe = study.recipe.to_json()
        add(recipe["title"], recipe["expectations"])
        for result in study.results:
            rows = [row.to_json() for row in result.rows.values()]
            add(result.digest, rows, [dataclasses.astuple(point) for point in result.history])
    return digest.hexdigest()


def write_figure(path: Path, figure: Figure, digest: str) -> None:
    """Write a figure with the digest of its rows."""
    image = Image.open(io.BytesIO(png(figure))).convert("RGB")
    told, small = PngInfo(), io.BytesIO()
    told.add_text(_ROWS, digest)
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True, pnginfo=told)
    path.parent.mkdir(exist_ok=True)
    write_bytes(path, small.getvalue())


def drawn_from(path: Path) -> str | None:
    """The digest of the rows of a figure; None where it tells none."""
    with Image.open(path) as image:
        return image.info.get(_ROWS)
