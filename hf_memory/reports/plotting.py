"""What all figures share: canvas, curves over seeds, labels, and files.

Figures are drawn on a canvas of their own, never through ``pyplot``, so that no display and no global state is needed.
"""

import dataclasses
import io
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hf_memory.reports.formats import words
from hf_memory.reports.styles import GRID, LEGEND, TITLE, Style


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure with its numbers.

    Attributes:
        name: File name without its ending.
        caption: What it shows.
        figure: The figure.
        table: The numbers, as CSV.
        alt: What a reader who cannot see it should know; by default the caption.
    """

    name: str
    caption: str
    figure: Figure
    table: str
    alt: str = ""


def canvas() -> tuple[Figure, Axes]:
    """A figure of the page's size, with axes."""
    figure = Figure(figsize=(7.6, 4.4), dpi=150, layout="constrained")
    return figure, figure.subplots()


def draw_curve(axes: Axes, label: str, values: Mapping[float, Sequence[float]], style: Style) -> None:
    """Draw the mean over seeds as a line; where there are several, their range as a bar and each as a small point.

    Args:
        axes: Where to draw.
        label: Name in the legend.
        values: One value per seed at each place of the axis.
        style: Style of the arm.
    """
    places = sorted(values)
    axes.plot(
        places,
        [statistics.fmean(values[place]) for place in places],
        color=style.colour,
        linestyle=style.dash,
        linewidth=1.8,
        marker=style.marker,
        markersize=6,
        markerfacecolor=style.face,
        markeredgecolor=style.colour,
        label=label,
        zorder=3,
    )
    several = {place: values[place] for place in places if len(values[place]) > 1}
    if several:
        axes.vlines(list(several), [*map(min, several.values())], [*map(max, several.values())], style.colour, lw=1)
        x, y = zip(*((place, value) for place, found in several.items() for value in found), strict=True)
        axes.scatter(x, y, s=12, color=style.colour, edgecolors="white", linewidths=0.4, zorder=4)


def finish(axes: Axes, x: str, y: str, title: str) -> None:
    """Set labels, title, grid and legend."""
    axes.set_xlabel(x)
    axes.set_ylabel(words(y))
    axes.set_title(title, **TITLE)
    axes.grid(axis="y", **GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=3.2, **LEGEND)


def png(figure: Figure) -> bytes:
    """The figure as a PNG, without a date in it, so that equal rows give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, without a date in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
