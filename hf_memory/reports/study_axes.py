"""What the figures of a sweep share: names, styles, lines over seeds, levels, and tables of numbers."""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hf_memory.reports.plotting import Style, style_of
from hf_memory.studies.outcomes import Result, Study


def by_task(study: Study) -> dict[str, list[Result]]:
    """Finished results by what was trained on: values of different data do not share a figure."""
    groups: dict[str, list[Result]] = {}
    for result in study.results:
        axes = {axis: value for axis, value in result.cell.place.items() if is_data_axis(axis)}
        if result.is_known:
            groups.setdefault(label_of(axes), []).append(result)
    return groups


def is_data_axis(axis: str) -> bool:
    """Whether an axis of the grid changes the data."""
    return axis in ("config", "length") or axis.startswith("data.")


def label_of(place: Mapping[str, Any]) -> str:
    """Values of axes in words, the arm's name first."""
    parts = [str(place["arm"])] if "arm" in place else []
    return ", ".join(
        [*parts, *(f"{axis.partition('.')[2] or axis} {value}" for axis, value in place.items() if axis != "arm")]
    )


def arm_label(place: Mapping[str, Any]) -> str:
    """Name of a curve: the arm with the axes that do not change the data."""
    return label_of({axis: value for axis, value in place.items() if not is_data_axis(axis)})


def styles_of(study: Study) -> dict[str, Style]:
    """Style by arm: the mixer's, varied for its later arms."""
    styles: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for name, arm in study.recipe.arms.items():
        styles[name] = style_of(arm["mixer"], seen.get(arm["mixer"], 0))
        seen[arm["mixer"]] = seen.get(arm["mixer"], 0) + 1
    return styles


def canvas() -> tuple[Figure, Axes]:
    """A figure of the page's size, with axes."""
    figure = Figure(figsize=(7.6, 4.4), dpi=150, layout="constrained")
    return figure, figure.subplots()


def draw_line(axes: Axes, label: str, values: Mapping[float, Sequence[float]], style: Style) -> None:
    """Draw the mean over seeds as a line and each seed as a point."""
    x = sorted(values)
    axes.plot(x, [statistics.fmean(values[at]) for at in x], color=style.colour, linestyle=style.dash, linewidth=1.6,
              marker=style.marker, markersize=6, markerfacecolor=style.colour if style.filled else "white",
              markeredgecolor=style.colour, label=label, zorder=3)  # fmt: skip
    several = [(at, value) for at in x for value in values[at] if len(values[at]) > 1]
    if several:
        across, up = zip(*several, strict=True)
        axes.scatter(across, up, s=12, color=style.colour, edgecolors="white", linewidths=0.4, zorder=4)


def draw_levels(axes: Axes, study: Study, results: Sequence[Result], split: str, metric: str | None = None) -> None:
    """Draw the chance level and the baselines of a split, for the recipe's metric or another one."""
    row, metric = next((r.rows[split] for r in results if split in r.rows), None), metric or study.recipe.metric_name
    if row is None or metric not in row.metrics:
        return
    measured = row.measured(metric)
    if measured.chance is not None and math.isfinite(measured.chance):
        axes.axhline(measured.chance, color="black", linestyle=":", linewidth=1.4, label="chance", zorder=2)
    equal: dict[float, list[str]] = {}
    for name, value in measured.baselines.items():
        if math.isfinite(value) and value != measured.chance:
            equal.setdefault(value, []).append(name.replace("_", " "))
    for value, names in equal.items():
        axes.axhline(value, color="#9a9a9a", linewidth=0.8, zorder=1)
        axes.annotate(", ".join(names), (0.99, value), xycoords=("axes fraction", "data"), fontsize=7, color="#6b6b6b",
                      va="bottom", ha="right")  # fmt: skip


def finish(axes: Axes, x: str, y: str, title: str) -> None:
    """Set labels, title, grid and legend."""
    axes.set_xlabel(x)
    axes.set_ylabel(y.replace("_", " "))
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8, handlelength=3)


def drawing_name(study: Study, group: str, kind: str) -> str:
    """File name of a figure."""
    return "-".join(filter(None, (study.recipe.name, group.replace(", ", "-").replace(" ", "_"), kind)))


def to_csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Lines as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue()
