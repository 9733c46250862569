"""Figures that lie beside committed rows, for pages of Markdown.

Each is a PNG of few colours that names the rows from which it was drawn, so that one that is out of date is found.
"""

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hf_memory.reports.plotting import png
from hf_memory.storage import digest, write_bytes
from hf_memory.studies.outcomes import Study

FIGURES = "figures"
"""Name of their folder, beside those of the rows."""

_ROWS = "Rows"
"""The text of a PNG that names its rows."""

_COLOURS = 64
"""Lines, marks and letters need no more, and the file has a third of the bytes."""


def rows_digest(studies: Iterable[Study]) -> str:
    """Digest of the title and claims of some sweeps, their rows and their histories."""
    return digest({"studies": [_content(study) for study in studies]})


def _content(study: Study) -> list[Any]:
    recipe = study.recipe.to_json()
    runs = [
        [result.digest, [row.to_json() for row in result.rows.values()], list(map(dataclasses.astuple, result.history))]
        for result in study.results
    ]
    return [recipe["title"], recipe["expectations"], runs]


def write_figure(path: Path, figure: Figure, rows: str) -> None:
    """Write a figure with the digest of its rows."""
    image = Image.open(io.BytesIO(png(figure))).convert("RGB")
    told, small = PngInfo(), io.BytesIO()
    told.add_text(_ROWS, rows)
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True, pnginfo=told)
    path.parent.mkdir(exist_ok=True)
    write_bytes(path, small.getvalue())


def drawn_from(path: Path) -> str | None:
    """The digest of the rows of a figure; None where it tells none."""
    with Image.open(path) as image:
        return image.info.get(_ROWS)
