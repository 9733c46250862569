"""The figure of one study: a metric against test length."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import curves, reference_levels, studies, title
from hf_memory.names import file_name
from hf_memory.reports.formats import words
from hf_memory.reports.plotting import canvas, draw_curve, finish, png
from hf_memory.reports.styles import BASELINE, BASELINE_NAME, CHANCE, TRAINED, arm_styles
from hf_memory.storage import write_bytes


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
    figure, axes = canvas()
    lengths = sorted({length for points in found.values() for length in points})
    trained = rows[0].train_length
    _shade_training(axes, trained, lengths)
    values = _draw_levels(axes, rows, metric)
    styles = arm_styles((row.arm, row.mixer) for row in rows)
    for arm, points in found.items():
        draw_curve(axes, arm, {length: point.values for length, point in points.items()}, styles[arm])
        values += [value for point in points.values() for value in point.values]
    _set_scales(axes, lengths, values)
    shaded = "" if trained is None else " (training range shaded)"
    finish(axes, f"test length{shaded}", metric or rows[0].headline, title(rows))
    return figure


def _shade_training(axes: Axes, train_length: tuple[int, int] | None, lengths: Sequence[int]) -> None:
    """Shade the lengths seen in training; a single length gets a band of a fixed width on the log axis."""
    low, high = train_length or (lengths[0], lengths[-1])
    band = 1.035
    if train_length is not None:
        axes.axvspan(low / band if low == high else low, high * band, zorder=0, **TRAINED)
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
            axes.plot(x, y, **CHANCE)
        else:
            axes.plot(x, y, **BASELINE)
            side = "top" if chance and y[-1] < list(chance.values())[-1] else "bottom"
            axes.annotate(", ".join(map(words, names)), (x[-1], y[-1]), va=side, **BASELINE_NAME)
    return [value for by_length in levels.values() for value in by_length.values()]


def _set_scales(axes: Axes, lengths: Sequence[int], values: Sequence[float]) -> None:
    """Put a tick at each length, and show shares of one from chance to one."""
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(length) for length in lengths])
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) >= 0 and max(finite) <= 1:
        axes.set_ylim(max(-0.03, min(finite) - 0.08), 1.03)


def figure_name(rows: Sequence[Row], metric: str | None = None) -> str:
    """File name of the figure of a study, without its ending."""
    row = rows[0]
    low, high = row.train_length or (0, 0)
    knobs = "_".join(f"{name}_{value}" for name, value in row.task_knobs.items() if value is not None)
    lengths = str(low) if low == high else f"{low}-{high}"
    trained = () if row.train_length is None else ("at", lengths)
    name = "_".join(filter(None, (row.task, knobs, *trained, metric or row.headline)))
    return file_name(re.sub(r"[^A-Za-z0-9._-]+", "-", name))


def save_figures(rows: Sequence[Row], folder: str | Path, metric: str | None = None) -> list[Path]:
    """Write one PNG per study into ``folder`` and return the files.

    Studies without a split ``test_<length>`` have no figure.
    """
    return [
        write_bytes(Path(folder) / f"{figure_name(study, metric)}.png", png(plot_length_curves(study, metric)))
        for study in studies(rows)
        if curves(study, metric)
    ]
