"""What all figures share: canvas, curves over seeds, labels, and files.

Figures are drawn on a canvas of their own, never through ``pyplot``, so that no display and no global state is needed.
"""

import dataclasses
import io
import itertools
import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hf_memory.reports.formats import size_in_bytes, words
from hf_memory.reports.styles import GRID, LEGEND, NAME, TITLE, Style

APART = 0.25
"""Seeds of which two neighbours are further apart than this share of one are of two kinds, and have no mean."""

MOST = 6
"""Curves of a frame; where there are more, each has a panel of its own."""

_COLUMNS, _LETTERS = 4, 26


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


class Frames:
    """The axes of some curves: one frame for few of them, else a panel for each, all with the same scales.

    Args:
        labels: Names of the curves, in order.
        several: Whether each has a panel of its own however few there are.
    """

    def __init__(self, labels: Iterable[str], several: bool = False):
        self._labels = list(dict.fromkeys(labels))
        self.one = len(self._labels) <= MOST and not several
        if self.one:
            self.figure, frame = canvas()
            self.axes = [frame]
            return
        columns = min(_COLUMNS, len(self._labels))
        rows = math.ceil(len(self._labels) / columns)
        self.figure = Figure(figsize=(7.6, 1.1 + 1.75 * rows), dpi=150, layout="constrained")
        grid = self.figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for unused in grid[len(self._labels) :]:
            unused.set_visible(False)
        for above in grid[: len(self._labels)][-columns:]:
            above.tick_params(labelbottom=True)  # where the panel below is not used
        self.axes = list(grid[: len(self._labels)])

    def of(self, label: str) -> Axes:
        """The axes of a curve."""
        return self.axes[0] if self.one else self.axes[self._labels.index(label)]

    def finish(self, x: str, y: str, title: str) -> Figure:
        """Set labels, titles and grid, and a legend where curves share a frame; returns the figure."""
        if self.one:
            finish(self.axes[0], x, y, title)
            return self.figure
        for axes, label in zip(self.axes, self._labels, strict=True):
            name_panel(axes, label)
            plain(axes)
            axes.tick_params(labelsize=7)
        self.figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        self.figure.supxlabel(x, fontsize=9)
        self.figure.supylabel(words(y), fontsize=9)
        return self.figure


def limit_share(axes: Iterable[Axes], values: Iterable[float], chance: float | None = None) -> None:
    """Let axes of shares of one reach from chance, or the smallest value below it, to one; others stay."""
    known = [value for value in (*values, *([] if chance is None else [chance])) if math.isfinite(value)]
    if known and min(known) >= 0 and max(known) <= 1:
        low, pad = min(known), 0.04 * (1 - min(known)) + 0.005
        for one in axes:
            one.set_ylim(low - pad, 1 + pad)


def is_of_two_kinds(values: Sequence[float]) -> bool:
    """Whether seeds fall into two groups, so that their mean is a value that no run has.

    >>> is_of_two_kinds([0.3, 0.31, 0.98]), is_of_two_kinds([0.7, 0.8, 0.9])
    (True, False)
    """
    return any(high - low > APART for low, high in itertools.pairwise(sorted(values)))


def middle(values: Sequence[float]) -> float:
    """The mean over seeds; NaN, which interrupts a line, where they are of two kinds."""
    return math.nan if is_of_two_kinds(values) else statistics.fmean(values)


def draw_curve(axes: Axes, label: str, values: Mapping[float, Sequence[float]], style: Style) -> None:
    """Draw the mean over seeds as a line; where there are several, their range as a bar and each as a small point.

    Where the seeds are of two kinds there is no mean, and the line is interrupted.

    Args:
        axes: Where to draw.
        label: Name in the legend.
        values: One value per seed at each place of the axis.
        style: Style of the arm.
    """
    places = sorted(values)
    axes.plot(
        places,
        [middle(values[place]) for place in places],
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
        edge = "white" if style.filled else style.colour
        look: dict[str, Any] = {"marker": style.marker, "facecolors": style.face, "edgecolors": edge, "linewidths": 0.5}
        axes.scatter(x, y, s=16, zorder=4, **look)


def scale_bytes(axes: Axes, sizes: Iterable[float]) -> None:
    """Set a logarithmic axis of bytes that reaches from the power of two below all sizes to the one above.

    Sizes of nothing have no place on it.
    """
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_in_bytes(size)))
    logs = [math.log2(size) for size in sizes if size > 0]
    if not logs:
        return
    # Ticks stand at powers of two: sizes that lie between two of them would have one tick or none.
    axes.set_xlim(2 ** (math.floor(min(logs)) - 0.1), 2 ** (math.ceil(max(logs)) + 0.1))


def finish(axes: Axes, x: str, y: str, title: str) -> None:
    """Set labels, title, grid and legend."""
    axes.set_xlabel(x)
    axes.set_ylabel(words(y))
    axes.set_title(title, **TITLE)
    plain(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=3.2, **LEGEND)


def name_panel(axes: Axes, label: str) -> None:
    """Set the name of a panel, in several lines where it is long."""
    axes.set_title(textwrap.fill(label, _LETTERS), **NAME)


def plain(axes: Axes) -> None:
    """Set the grid, and leave out what is no axis."""
    axes.grid(axis="y", **GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def png(figure: Figure) -> bytes:
    """The figure as a PNG, without a date in it, so that equal rows give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, without a date or random names in it, so that equal rows give equal bytes."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "hf_memory"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
