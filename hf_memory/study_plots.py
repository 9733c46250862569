"""Figures of a sweep: learning rates, state, width, and the course of training, each with the numbers behind it.

Seeds are drawn everywhere, and so are the chance level and, where a task has them, the baselines.
"""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hf_memory.outcomes import Result, Study
from hf_memory.plotting import Style, plot_length_curves, style_of
from hf_memory.results import Row
from hf_memory.studies import FOUR_POINTS
from hf_memory.summary import studies as split_studies


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure with its numbers.

    Attributes:
        name: File name without its ending.
        caption: What it shows.
        figure: The figure.
        table: The numbers, as CSV.
    """

    name: str
    caption: str
    figure: Figure
    table: str


def draw_study(study: Study) -> list[Drawing]:
    """All figures for which a sweep has something to show."""
    drawings = [*length_drawings(study)]
    for group, results in by_task(study).items():
        drawings += [
            drawing
            for drawing in (
                rate_drawing(study, group, results),
                state_drawing(study, group, results),
                size_drawing(study, group, results),
                *training_drawings(study, group, results),
            )
            if drawing is not None
        ]
    return drawings


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


def length_drawings(study: Study) -> list[Drawing]:
    """The metric against test length, one figure for each training set, at the chosen rates."""
    rows: list[Row] = []
    for place in study.places():
        results = study.at_rate(place, "chosen") or []
        for result in results:
            rows += [dataclasses.replace(row, arm=arm_label(place)) for row in result.rows.values()]
    drawings = []
    for group in split_studies(rows) if rows else []:
        tests = [row for row in group if row.split == f"test_{row.length}"]
        if len({row.length for row in tests}) < 2:
            continue
        metric = study.recipe.metric_name
        low, high = group[0].train_length
        name = "-".join(filter(None, (study.recipe.name, *map(str, group[0].task_knobs.values()), f"{low}-{high}")))
        table = [
            (row.arm, row.length, row.seed, row.learning_rate, row.value(metric), row.measured(metric).chance, row.cell)
            for row in tests
        ]
        drawings.append(
            Drawing(
                f"{name}-length",
                "Against test length, at the rate chosen on validation; the trained range is shaded, points are seeds.",
                plot_length_curves(group, metric),
                to_csv(("arm", "length", "seed", "learning_rate", "value", "chance", "cell"), table),
            )
        )
    return drawings


def rate_drawing(study: Study, group: str, results: Sequence[Result]) -> Drawing | None:
    """``validation`` against learning rate, with the four points of Zoology's grid marked."""
    searched = [result for result in results if result.cell.stage == "search"]
    if len({result.cell.learning_rate for result in searched}) < 2:
        return None
    metric, (figure, axes) = study.recipe.metric_name, _canvas()
    table = []
    for label, own in _by_curve(searched).items():
        values: dict[float, list[float]] = {}
        for result in own:
            value = result.value("validation", metric)
            values.setdefault(result.cell.learning_rate, []).append(value)
            table.append((label, result.cell.learning_rate, result.cell.seed, value, result.has_failed, result.digest))
        _line(axes, label, values, styles_of(study)[own[0].arm])
    for rate in FOUR_POINTS:
        axes.axvline(rate, color="#b0b0b0", linewidth=0.8, linestyle=(0, (2, 3)), zorder=0)
    axes.set_xscale("log")
    _levels(axes, study, searched, "validation")
    _finish(axes, "peak learning rate (dashed: the four points of Arora et al., 2024)", metric, group)
    return Drawing(
        _name(study, group, "rates"),
        "Validation against learning rate. A run that failed or diverged counts as chance.",
        figure,
        to_csv(("arm", "learning_rate", "seed", "value", "failed", "cell"), table),
    )


def state_drawing(study: Study, group: str, results: Sequence[Result]) -> Drawing | None:
    """The metric at the training length against bytes of state, with the best value for so many bytes."""
    found = _headline(study, results)
    points = [(row.state_bytes, label, result, row) for label, result, row in found]
    if len({size for size, *_ in points}) < 2:
        return None
    metric, (figure, axes) = study.recipe.metric_name, _canvas()
    table, means = [], []
    for label in dict.fromkeys(label for _, label, _, _ in points):
        own = [(size, result, row) for size, name, result, row in points if name == label]
        values = {own[0][0]: [result.value(row.split, metric) for _, result, row in own]}
        _line(axes, label, values, styles_of(study)[own[0][1].arm])
        means.append((own[0][0], statistics.fmean(values[own[0][0]])))
        table += [
            (label, size, result.cell.seed, result.value(row.split, metric), result.digest) for size, result, row in own
        ]
    frontier = frontier_of(means)
    axes.step(*zip(*frontier, strict=True), where="post", color="#777777", linewidth=1, label="frontier", zorder=1)
    axes.set_xscale("log", base=2)
    _levels(axes, study, results, points[0][3].split)
    _finish(axes, "bytes of state per sequence", metric, group)
    return Drawing(
        _name(study, group, "state"),
        "Against bytes of state at the training length; the frontier is the best mean with at most so many bytes.",
        figure,
        to_csv(("arm", "state_bytes", "seed", "value", "cell"), table),
    )


def frontier_of(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other beats with as little, in rising order.

    >>> frontier_of([(4, 0.5), (1, 0.2), (2, 0.1), (8, 0.4)])
    [(1, 0.2), (4, 0.5)]
    """
    best: list[tuple[float, float]] = []
    for size, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or value > best[-1][1]:
            best.append((size, value))
    return best


def size_drawing(study: Study, group: str, results: Sequence[Result]) -> Drawing | None:
    """The metric at the training length against width, one line for each arm and depth."""
    axis = next((name for name in ("width", "size") if len(study.recipe.grid.get(name, ())) > 1), None)
    if axis is None:
        return None
    metric, (figure, axes) = study.recipe.metric_name, _canvas()
    curves: dict[str, dict[float, list[float]]] = {}
    arms: dict[str, str] = {}
    table = []
    for label, result, row in _headline(study, results):
        rest = {name: value for name, value in result.cell.place.items() if name != axis}
        curve, size = arm_label(rest), float(result.cell.place[axis])
        curves.setdefault(curve, {}).setdefault(size, []).append(result.value(row.split, metric))
        arms[curve] = result.arm
        table.append((label, size, result.cell.place.get("depth"), row.parameters_non_embedding, result.cell.seed,
                      result.value(row.split, metric), result.digest))  # fmt: skip
    if not curves:
        return None
    for curve, values in curves.items():
        _line(axes, curve, values, styles_of(study)[arms[curve]])
    axes.set_xscale("log", base=2)
    _levels(axes, study, results, "validation")
    _finish(axes, axis, metric, group)
    header = ("arm", axis, "depth", "parameters_non_embedding", "seed", "value", "cell")
    return Drawing(
        _name(study, group, axis), f"Against {axis}, one line for each arm and depth.", figure, to_csv(header, table)
    )


def training_drawings(study: Study, group: str, results: Sequence[Result]) -> list[Drawing]:
    """The metric over the steps of training, one figure for each split that was looked at."""
    drawings = []
    chosen = [result for place in study.places(results) for result in study.at_rate(place, "chosen") or []]
    splits = dict.fromkeys(point.split for result in chosen for point in result.history)
    for split in splits:
        metric, (figure, axes) = study.recipe.metric_name, _canvas()
        table, seen = [], set[str]()
        for result in chosen:
            curve, label = result.curve(split, metric), arm_label(result.cell.place)
            if not curve:
                continue
            style = styles_of(study)[result.arm]
            axes.plot(*zip(*curve, strict=True), color=style.colour, linestyle=style.dash, linewidth=1.2, alpha=0.85,
                      label=None if label in seen else label)  # fmt: skip
            seen.add(label)
            table += [(label, result.cell.seed, step, value, result.digest) for step, value in curve]
        if study.recipe.plateau is not None:
            axes.axhline(study.recipe.plateau, color="#b3261e", linewidth=0.9, linestyle=(0, (4, 2)), label="plateau")
        axes.set_xscale("log")
        _levels(axes, study, chosen, split)
        _finish(axes, "steps", f"{metric} on {split}", group)
        drawings.append(
            Drawing(
                _name(study, group, f"training-{split}"),
                f"Over the course of training on {split}, one line for each seed at the chosen rate.",
                figure,
                to_csv(("arm", "seed", "steps", "value", "cell"), table),
            )
        )
    return drawings


def home_split(result: Result) -> str:
    """The test split at the training length where there is one, else ``validation``."""
    first = next(iter(result.rows.values()))
    name = f"test_{first.train_length[1]}"
    return name if name in result.rows else "validation"


def _headline(study: Study, results: Sequence[Result]) -> list[tuple[str, Result, Row]]:
    """Label, result and row at the training length of every run at its chosen rate that has rows."""
    found = []
    for place in study.places(results):
        for result in study.at_rate(place, "chosen") or []:
            if result.rows:
                found.append((arm_label(place), result, result.rows[home_split(result)]))
    return found


def _by_curve(results: Sequence[Result]) -> dict[str, list[Result]]:
    curves: dict[str, list[Result]] = {}
    for result in results:
        curves.setdefault(arm_label(result.cell.place), []).append(result)
    return curves


def _canvas() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.6, 4.4), dpi=150, layout="constrained")
    return figure, figure.subplots()


def _line(axes: Axes, label: str, values: Mapping[float, Sequence[float]], style: Style) -> None:
    """Draw the mean over seeds as a line and each seed as a point."""
    x = sorted(values)
    axes.plot(x, [statistics.fmean(values[at]) for at in x], color=style.colour, linestyle=style.dash, linewidth=1.6,
              marker=style.marker, markersize=6, markerfacecolor=style.colour if style.filled else "white",
              markeredgecolor=style.colour, label=label, zorder=3)  # fmt: skip
    several = [(at, value) for at in x for value in values[at] if len(values[at]) > 1]
    if several:
        axes.scatter(
            *zip(*several, strict=True), s=12, color=style.colour, edgecolors="white", linewidths=0.4, zorder=4
        )


def _levels(axes: Axes, study: Study, results: Sequence[Result], split: str) -> None:
    """Draw the chance level and the baselines of a split."""
    row = next((result.rows[split] for result in results if split in result.rows), None)
    if row is None or study.recipe.metric_name not in row.metrics:
        return
    measured = row.measured(study.recipe.metric_name)
    if measured.chance is not None and math.isfinite(measured.chance):
        axes.axhline(measured.chance, color="black", linestyle=":", linewidth=1.4, label="chance", zorder=2)
    for name, value in measured.baselines.items():
        if math.isfinite(value) and value != measured.chance:
            axes.axhline(value, color="#9a9a9a", linewidth=0.8, zorder=1)
            axes.annotate(name.replace("_", " "), (0.99, value), xycoords=("axes fraction", "data"), fontsize=7,
                          color="#6b6b6b", va="bottom", ha="right")  # fmt: skip


def _finish(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y.replace("_", " "))
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8, handlelength=3)


def _name(study: Study, group: str, kind: str) -> str:
    return "-".join(filter(None, (study.recipe.name, group.replace(", ", "-").replace(" ", "_"), kind)))


def to_csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Lines as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue()
