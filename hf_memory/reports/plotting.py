"""Figures made from result rows.

Figures are drawn on a canvas of their own, never through ``pyplot``, so that no display and no global state is needed.
"""

import dataclasses
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import Point, curves, reference_levels, studies, title
from hf_memory.storage import write_bytes

PALETTE = ("#191980", "#ebac2f", "#59121e", "#7acc88", "#5e8deb", "#805e19", "#6d2feb", "#7abecc", "#335980")
"""Nine colours, at least 30 units of CIE Lab apart from each other in normal, protan and deutan vision."""

_MARKERS = "osD^vP*Xp"
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))

_FIRST = ("lstm", "attention", "delta_net", "lru", "mamba", "rnn", "linear_transformer", "gru", "hyena")
_SECOND = ("nru", "based", "qlstm", "s4d", "h3", "base_conv", "hybrid", "rwkv", "ids4")


@dataclasses.dataclass(frozen=True)
class Style:
    """How the curve of a mixer looks, wherever it is drawn.

    Attributes:
        colour: Colour of line and points.
        marker: Shape of the points.
        filled: Whether the points are filled. Mixers that share a colour differ in this and in the dash.
        dash: Dash pattern of the line.
    """

    colour: str
    marker: str
    filled: bool
    dash: Any


STYLES: dict[str, Style] = {
    **{key: Style(PALETTE[i], _MARKERS[i], True, _DASHES[0]) for i, key in enumerate(_FIRST)},
    **{key: Style(PALETTE[i], _MARKERS[(i + 4) % 9], False, _DASHES[1]) for i, key in enumerate(_SECOND)},
}
"""Style by mixer, fixed, so that figures can be compared."""


def style_of(mixer: str, variant: int = 0) -> Style:
    """Style of a mixer; later arms of one mixer keep its colour and change the dash and the marker."""
    base = STYLES.get(mixer, Style("#555555", "o", True, "solid"))
    if variant == 0:
        return base
    shifted = _MARKERS[(_MARKERS.index(base.marker) + 2 * variant) % len(_MARKERS)]
    return dataclasses.replace(base, marker=shifted, dash=_DASHES[1 + variant % 3], filled=variant % 2 == 0)


def arm_styles(rows: Sequence[Row]) -> dict[str, Style]:
    """Style by arm."""
    styles: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for row in rows:
        if row.arm not in styles:
            styles[row.arm] = style_of(row.mixer, seen.get(row.mixer, 0))
            seen[row.mixer] = seen.get(row.mixer, 0) + 1
    return styles


def plot_length_curves(rows: Sequence[Row], metric: str | None = None) -> Figure:
    """Draw a metric of one study against test length.

    Lines are means over seeds, points are seeds; the training range is shaded, the chance level dotted and baselines
    are thin grey lines.

    Raises:
        ValueError: If the rows are of several studies or data versions, or hold no split ``test_<length>``.
    """
    found = curves(rows, metric)
    if not found:
        raise ValueError(f"rows: {title(rows)} has no split test_<length>")
    figure = Figure(figsize=(7.6, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    lengths = sorted({length for points in found.values() for length in points})
    _shade_training(axes, rows[0].train_length, lengths)
    levels = _draw_levels(axes, rows, metric)
    styles = arm_styles(rows)
    for arm, points in found.items():
        _draw_arm(axes, arm, points, styles[arm])
    values = [value for points in found.values() for point in points.values() for value in point.values]
    _finish(axes, rows, metric or rows[0].headline, lengths, values + levels)
    return figure


def _draw_arm(axes: Axes, arm: str, points: Mapping[int, Point], style: Style) -> None:
    """Draw the mean over seeds as a line, their range as bars and each seed as a small point."""
    lengths = list(points)
    axes.plot(
        lengths,
        [point.mean for point in points.values()],
        color=style.colour,
        linestyle=style.dash,
        linewidth=1.8,
        marker=style.marker,
        markersize=6,
        markerfacecolor=style.colour if style.filled else "white",
        markeredgecolor=style.colour,
        label=arm,
        zorder=3,
    )
    several = {length: point.values for length, point in points.items() if len(point.values) > 1}
    if several:
        axes.vlines(list(several), [*map(min, several.values())], [*map(max, several.values())], style.colour, lw=1)
        x, y = zip(*((length, value) for length, values in several.items() for value in values), strict=True)
        axes.scatter(x, y, s=12, color=style.colour, edgecolors="white", linewidths=0.4, zorder=4)


def _shade_training(axes: Axes, train_length: tuple[int, int], lengths: Sequence[int]) -> None:
    """Shade the lengths seen in training; a single length gets a band of a fixed width on the log axis."""
    low, high = train_length
    band = 1.035
    axes.axvspan(low / band if low == high else low, high * band, color="#d9d9d9", linewidth=0, zorder=0)
    axes.set_xscale("log", base=2)
    margin = 1.12
    axes.set_xlim(min([low, *lengths]) / margin, max([high, *lengths]) * margin)


def _draw_levels(axes: Axes, rows: Sequence[Row], metric: str | None) -> list[float]:
    """Draw chance level and baselines; returns their values."""
    levels = reference_levels(rows, metric)
    chance = levels.get("chance", {})
    shown: dict[tuple[float, ...], list[str]] = {}
    for name, by_length in levels.items():
        # Heuristics that are no better than chance, or equal to each other, would be drawn on top of each other.
        if name == "chance" or any(abs(value - chance.get(length, -1.0)) > 0.02 for length, value in by_length.items()):
            shown.setdefault(tuple(by_length.values()), []).append(name)
    for names in shown.values():
        x: list[float] = [*levels[names[0]]]
        y = list(levels[names[0]].values())
        if len(x) == 1:
            x, y = [x[0] / 1.1, x[0] * 1.1], [y[0], y[0]]
        if names[0] == "chance":
            axes.plot(x, y, color="black", linestyle=":", linewidth=1.4, label="chance", zorder=2)
        else:
            axes.plot(x, y, color="#9a9a9a", linestyle="-", linewidth=0.8, zorder=1)
            label = ", ".join(name.replace("_", " ") for name in names)
            side = "top" if chance and y[-1] < list(chance.values())[-1] else "bottom"
            axes.annotate(label, (x[-1], y[-1]), fontsize=7, color="#6b6b6b", va=side, ha="right", zorder=5)
    return [value for by_length in levels.values() for value in by_length.values()]


def _finish(axes: Axes, rows: Sequence[Row], metric: str, lengths: Sequence[int], values: Sequence[float]) -> None:
    """Set scales, ticks, labels and the legend."""
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(length) for length in lengths])
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) >= 0 and max(finite) <= 1:
        axes.set_ylim(max(-0.03, min(finite) - 0.08), 1.03)
    axes.set_xlabel("test length (training range shaded)")
    axes.set_ylabel(metric.replace("_", " "))
    axes.set_title(title(rows), fontsize=10, loc="left", wrap=True)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5, handlelength=3.2)


def figure_name(rows: Sequence[Row], metric: str | None = None) -> str:
    """File name of the figure of a study, without its ending."""
    row = rows[0]
    low, high = row.train_length
    knobs = "_".join(f"{name}_{value}" for name, value in row.task_knobs.items() if value is not None)
    lengths = str(low) if low == high else f"{low}-{high}"
    name = "_".join(filter(None, (row.task, knobs, "at", lengths, metric or row.headline)))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def png(figure: Figure) -> bytes:
    """The figure as a PNG, without a date in it, so that equal rows give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def save_figures(rows: Sequence[Row], folder: str | Path, metric: str | None = None) -> list[Path]:
    """Write one PNG per study into ``folder`` and return the files."""
    return [
        write_bytes(Path(folder) / f"{figure_name(study, metric)}.png", png(plot_length_curves(study, metric)))
        for study in studies(rows)
    ]
