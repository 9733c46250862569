"""What all figures share: canvas, curves over seeds, labels, and files.

Figures are drawn on a canvas of their own, never through ``pyplot``, so that no display and no global state is needed.
"""

import dataclasses
import io
import itertools
import math
import re
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter

from hf_memory.reports.formats import fine_share, size_in_bytes, words
from hf_memory.reports.styles import BASELINE_NAME, GRID, INK, LEGEND, NAME, TITLE, Style
from hf_memory.reports.vectors import curve_of, mark_curve, mark_name, mark_points

APART = 0.25
"""Seeds of which two neighbours are further apart than this share of one are of two kinds, and have no mean."""

MOST = 6
"""Curves of a frame; where there are more, each has a panel of its own."""

_COLUMNS, _LETTERS = 4, 26
_GAP, _SMALL_GAP = 0.045, 0.036
"""Least distance between names at the ends of lines, and height of those of levels, as shares of a frame's height."""
_LEVEL = "level"
"""Marks the name of a level."""


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


Values = Mapping[float, Sequence[tuple[str, float]]]
"""What a curve shows: at each place of the axis values with their names, such as ``seed 3``."""


Curve = dict[float, list[tuple[str, float]]]
"""The same while it is gathered."""


def of_seed(seed: int | None) -> str:
    """The name of the value of a seed."""
    return "no seed" if seed is None else f"seed {seed}"


def draw_curve(axes: Axes, label: str, values: Values, style: Style) -> None:
    """Draw the mean over seeds as a line; where there are several, their range as a bar and each as a small point.

    Where the seeds are of two kinds there is no mean, and the line is interrupted. Each point says its curve, its name
    and its value when it is pointed at.

    Args:
        axes: Where to draw.
        label: Name of the curve.
        values: One value per seed at each place of the axis.
        style: Style of the arm.
    """
    places = sorted(values)
    numbers = {place: [value for _, value in values[place]] for place in places}
    (line,) = axes.plot(
        places,
        [middle(numbers[place]) for place in places],
        color=style.colour,
        linestyle=style.dash,
        linewidth=1.8,
        marker=style.marker,
        markersize=6 * style.size,
        markerfacecolor=style.face,
        markeredgecolor=style.colour,
        label=label,
        zorder=3,
    )
    mark_curve(line, label)
    several = [place for place in places if len(numbers[place]) > 1]
    if several:
        low, high = ([edge(numbers[place]) for place in several] for edge in (min, max))
        bars = axes.vlines(several, low, high, style.colour, lw=1)
        mark_curve(bars, label)
    for alone in (True, False):  # a single value is the point of the line, and what lies on it says so unseen
        own = [(place, *pair) for place in places for pair in values[place] if (place not in several) is alone]
        if own:
            _draw_points(axes, label, own, style, hidden=alone)


def _draw_points(
    axes: Axes, label: str, values: Sequence[tuple[float, str, float]], style: Style, hidden: bool
) -> None:
    """Draw values, a place, a name and a number each, as points that say what they are."""
    edge = "white" if style.filled else style.colour
    look: dict[str, Any] = {"marker": style.marker, "facecolors": style.face, "edgecolors": edge, "linewidths": 0.5}
    look |= {"s": 36, "alpha": 0} if hidden else {"s": 16 * style.size**2}
    places, names, numbers = zip(*values, strict=True)
    points = axes.scatter(places, numbers, zorder=4, **look)
    texts = [f"{label}, {name}: {fine_share(value)}" for name, value in zip(names, numbers, strict=True)]
    mark_points(points, label, texts)


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
    """Set labels, title and grid, and name each line at its end, or in a legend where some curve has one point."""
    _join_levels(axes)
    axes.set_xlabel(x)
    axes.set_ylabel(words(y))
    axes.set_title(title, **TITLE)
    plain(axes)
    ends = line_ends(axes)
    if ends:
        _name_ends(axes, ends)
        return
    legend = axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=3.2, **LEGEND)
    mark_legend(legend)


def mark_legend(legend: Legend) -> None:
    """Make the texts of a legend names of curves."""
    for text in legend.get_texts():
        mark_name(text, text.get_text())


def line_ends(axes: Axes) -> dict[str, tuple[float, float, Any]]:
    """Where each named line ends, with its colour; nothing where one of the curves has no end.

    A curve ends at the middle of its last values, since its line is interrupted where these are of two kinds. What
    crosses the whole frame, such as a level, ends nowhere: its place is NaN.
    """
    lines = {str(line.get_label()): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}
    points: dict[str, list[tuple[float, float]]] = {}
    for drawn in (*axes.collections, *axes.get_lines()):
        label = curve_of(drawn)
        if label is not None and isinstance(drawn, PathCollection | Line2D):
            places = drawn.get_offsets() if isinstance(drawn, PathCollection) else drawn.get_xydata()
            points.setdefault(label, []).extend((float(x), float(y)) for x, y in np.asarray(places) if np.isfinite(y))
    if any(len({x for x, _ in found}) < 2 for found in points.values()):
        return {}
    ends = {}
    for label, line in lines.items():
        if label in points:
            x = max(x for x, _ in points[label])
            y = statistics.median(y for at, y in points[label] if at == x)
        else:
            x, y = map(float, np.asarray(line.get_xydata())[-1])
            x = x if line.get_transform() == axes.transData else math.nan
        ends[label] = (x, y, line.get_color())
    return ends


def _name_ends(axes: Axes, ends: Mapping[str, tuple[float, float, Any]]) -> None:
    """Write the names of lines to the right of the axes, in their order and apart from each other."""
    heights = {label: _height(axes, y) for label, (_, y, _) in ends.items()}
    for label, height in spread_out(heights, _GAP).items():
        x, y, colour = ends[label]
        line = {"arrowstyle": "-", "color": colour, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 4}
        text = axes.annotate(
            label,
            (1.0, heights[label]) if math.isnan(x) else (x, y),
            (1.03, height),
            xycoords="axes fraction" if math.isnan(x) else "data",
            textcoords="axes fraction",
            color=INK,
            fontsize=LEGEND["fontsize"],
            va="center",
            annotation_clip=False,
            arrowprops=line,
        )
        mark_name(text, label)


def name_level(axes: Axes, text: str, place: tuple[float, float], below: bool = False, across: str = "data") -> None:
    """Write the name of a level that is no curve at a place on it, above or below its line.

    Args:
        axes: The frame. Names that would be written over each other are joined where it is finished.
        text: The name.
        place: Right end of the name, and the level.
        below: Whether it stands below the line.
        across: Coordinates of the right end, as matplotlib names them.
    """
    side = "top" if below else "bottom"
    axes.annotate(text, place, xycoords=(across, "data"), va=side, gid=_LEVEL, **BASELINE_NAME)


def _join_levels(axes: Axes) -> None:
    """Let levels so near each other that their names would be written over each other share one text."""
    texts = [text for text in axes.texts if isinstance(text, Annotation) and text.get_gid() == _LEVEL]
    below = {text: text.get_verticalalignment() == "top" for text in texts}
    middles = {text: _height(axes, text.xy[1]) + _SMALL_GAP * (0.5 - below[text]) for text in texts}
    groups: list[list[Annotation]] = []
    for text in sorted(texts, key=lambda text: -middles[text]):
        if not groups or middles[groups[-1][-1]] - middles[text] >= _SMALL_GAP:
            groups.append([])
        groups[-1].append(text)
    for group in groups:
        lowest = all(below[text] for text in group)
        kept = (min if lowest else max)(group, key=lambda text: text.xy[1])
        kept.set(text=", ".join(text.get_text() for text in group), va="top" if lowest else "bottom")
        for text in group:
            if text is not kept:
                text.remove()


def _height(axes: Axes, y: float) -> float:
    """A value as a share of the height of the axes."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((axes.get_xlim()[0], y)))[1])


def spread_out(heights: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights that keep their order and are at least a gap apart, each group of neighbours around its middle.

    >>> spread_out({"a": 0.5, "b": 0.5, "c": 0.9}, 0.1)
    {'a': 0.45, 'b': 0.55, 'c': 0.9}
    """
    groups: list[list[str]] = []
    for label in sorted(heights, key=lambda label: heights[label]):
        groups.append([label])
        while len(groups) > 1 and _bottom(groups[-1], heights, gap) - _top(groups[-2], heights, gap) < gap - 1e-9:
            groups[-2:] = [groups[-2] + groups[-1]]
    return {
        label: round(_bottom(group, heights, gap) + gap * place, 6)
        for group in groups
        for place, label in enumerate(group)
    }


def _bottom(group: Sequence[str], heights: Mapping[str, float], gap: float) -> float:
    return statistics.fmean(heights[label] for label in group) - gap * (len(group) - 1) / 2


def _top(group: Sequence[str], heights: Mapping[str, float], gap: float) -> float:
    return _bottom(group, heights, gap) + gap * (len(group) - 1)


def name_panel(axes: Axes, label: str) -> None:
    """Set the name of a panel, in several lines where it is long; an arm of a longer name breaks at an underscore."""
    longer = re.compile(rf"\S{{{_LETTERS + 1},}}")
    words = longer.sub(lambda word: word[0].replace("_", "_ "), label)
    mark_name(axes.set_title(textwrap.fill(words, _LETTERS).replace("_ ", "_"), **NAME), label)


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
