"""The figure of one study: a metric against test length."""

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
from hf_memory.reports.plotting import Frames, draw_curve, limit_share, name_level, of_seed, png
from hf_memory.reports.styles import BASELINE, CHANCE, TRAINED, arm_styles
from hf_memory.storage import write_bytes


def plot_length_curves(rows: Sequence[Row], metric: str | None = None) -> Figure:
    """Draw a metric of one study against test length.

    Lines are means over seeds, points are seeds; the training range is shaded, the chance level dotted and baselines
    are thin grey lines. Many arms have a panel each.

    Raises:
        ValueError: If the rows are of several studies or data versions, or hold no split ``test_<length>``.
    """
    found = curves(rows, metric)
    if not found:
        raise ValueError(f"rows: {title(rows)} has no split test_<length>")
    frames = Frames(found)
    lengths = sorted({length for points in found.values() for length in points})
    trained = rows[0].train_length
    values: list[float] = []
    for axes in frames.axes:
        shade_training(axes, trained, lengths)
        values += _draw_levels(axes, rows, metric, frames.one)
    styles = arm_styles((row.arm, row.mixer) for row in rows)
    for arm, points in found.items():
        named = {
            float(length): list(zip(map(of_seed, point.seeds), point.values, strict=True))
            for length, point in points.items()
        }
        draw_curve(frames.of(arm), arm, named, styles[arm])
        values += [value for point in points.values() for value in point.values]
    set_lengths(frames.axes, lengths)
    limit_share(frames.axes, values)
    shaded = "" if trained is None else " (training range shaded)"
    return frames.finish(f"test length{shaded}", metric or rows[0].headline, title(rows))


def shade_training(axes: Axes, train_length: tuple[int, int] | None, lengths: Sequence[int]) -> None:
    """Shade the lengths seen in training; a single length gets a band of a fixed width on the log axis."""
    low, high = train_length or (lengths[0], lengths[-1])
    band = 1.035
    if train_length is not None:
        axes.axvspan(low / band if low == high else low, high * band, zorder=0, **TRAINED)
    axes.set_xscale("log", base=2)
    margin = 1.12
    axes.set_xlim(min([low, *lengths]) / margin, max([high, *lengths]) * margin)


def _draw_levels(axes: Axes, rows: Sequence[Row], metric: str | None, named: bool) -> list[float]:
    """Draw chance level and baselines, with their names where there is room; returns their values."""
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
            below = bool(chance) and y[-1] < list(chance.values())[-1]
            if named:
                name_level(axes, ", ".join(map(words, names)), (x[-1], y[-1]), below)
    return [value for by_length in levels.values() for value in by_length.values()]


def set_lengths(frames: Sequence[Axes], lengths: Sequence[int]) -> None:
    """Put a tick at each length, in narrow panels at those of the ends and the middle."""
    shown = lengths if len(frames) == 1 else sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    for axes in frames:
        axes.xaxis.set_major_locator(FixedLocator(shown))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([str(length) for length in shown])


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
