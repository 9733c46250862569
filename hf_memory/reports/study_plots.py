"""Figures of a sweep: learning rates, state, width, and the course of training, each with the numbers behind it.

Seeds are drawn everywhere, and so are the chance level and, where a task has them, the baselines.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from matplotlib.ticker import FuncFormatter

from hf_memory.experiments.mechanisms import MEASURES
from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import studies as split_studies
from hf_memory.reports.formats import words
from hf_memory.reports.length_plots import plot_length_curves
from hf_memory.reports.plotting import (
    Curve,
    Drawing,
    Frames,
    canvas,
    draw_curve,
    finish,
    limit_share,
    of_seed,
    scale_bytes,
)
from hf_memory.reports.study_axes import (
    arm_label,
    by_task,
    draw_levels,
    drawing_name,
    headline_rows,
    study_styles,
)
from hf_memory.reports.study_details import detail_drawings, parameters_drawing
from hf_memory.reports.styles import FRONTIER, GUIDE, PLATEAU
from hf_memory.reports.tables import to_csv
from hf_memory.reports.vectors import mark_curve
from hf_memory.studies.outcomes import Result, Study
from hf_memory.studies.statistics import FOUR_POINTS
from hf_memory.tasks import task_class


def draw_study(study: Study) -> list[Drawing]:
    """All figures for which a sweep has something to show."""
    drawings = [*length_drawings(study), *detail_drawings(study)]
    for group, results in by_task(study).items():
        drawings += [
            drawing
            for drawing in (
                rate_drawing(study, group, results),
                state_drawing(study, group, results),
                size_drawing(study, group, results),
                parameters_drawing(study, group, results),
                *training_drawings(study, group, results),
            )
            if drawing is not None
        ]
    return drawings


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
        low, high = group[0].train_length or (0, 0)
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
    metric, frames = study.recipe.metric_name, Frames(_by_curve(searched))
    table, shown = [], list[float]()
    for label, own in _by_curve(searched).items():
        values: Curve = {}
        for result in own:
            value = result.value("validation", metric)
            values.setdefault(result.cell.learning_rate, []).append((of_seed(result.cell.seed), value))
            cell = result.cell
            table.append((label, cell.learning_rate, cell.seed, value, result.has_diverged, result.digest))
            shown.append(value)
        draw_curve(frames.of(label), label, values, study_styles(study)[own[0].arm])
    tried = [result.cell.learning_rate for result in searched]
    guides = FOUR_POINTS if min(tried) <= FOUR_POINTS[0] and max(tried) >= FOUR_POINTS[-1] else ()
    for axes in frames.axes:
        for rate in guides:
            axes.axvline(rate, **GUIDE)
        axes.set_xscale("log")
        shown += draw_levels(axes, study, searched, "validation", named=frames.one)
    limit_share(frames.axes, shown)
    dashed = " (dashed: the four points of Arora et al., 2024)" if guides else ""
    figure = frames.finish(f"peak learning rate{dashed}", metric, group or study.recipe.title)
    return Drawing(
        drawing_name(study, group, "rates"),
        "Validation against learning rate. A run that diverged counts as chance.",
        figure,
        to_csv(("arm", "learning_rate", "seed", "value", "diverged", "cell"), table),
    )


def state_drawing(study: Study, group: str, results: Sequence[Result]) -> Drawing | None:
    """The metric at the training length against bytes of state, with the best value for so many bytes."""
    found = headline_rows(study, results)
    points = [(row.state_bytes, label, result, row) for label, result, row in found]
    if len({size for size, *_ in points}) < 2:
        return None
    metric, (figure, axes) = study.recipe.metric_name, canvas()
    table, means = [], []
    for label in dict.fromkeys(label for _, label, _, _ in points):
        own = [(size, result, row) for size, name, result, row in points if name == label]
        values = [(of_seed(result.cell.seed), result.value(row.split, metric)) for _, result, row in own]
        draw_curve(axes, label, {own[0][0]: values}, study_styles(study)[own[0][1].arm])
        means.append((own[0][0], statistics.fmean(value for _, value in values)))
        table += [
            (label, size, result.cell.seed, result.value(row.split, metric), result.digest) for size, result, row in own
        ]
    frontier = frontier_of(means)
    axes.step(*zip(*frontier, strict=True), where="post", **FRONTIER)
    scale_bytes(axes, (size for size, *_ in points))
    shown = [result.value(row.split, metric) for _, _, result, row in points]
    limit_share([axes], [*shown, *draw_levels(axes, study, results, points[0][3].split)])
    finish(axes, "state per sequence", metric, group or study.recipe.title)
    return Drawing(
        drawing_name(study, group, "state"),
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
    metric = study.recipe.metric_name
    curves: dict[str, Curve] = {}
    arms: dict[str, str] = {}
    table = []
    for label, result, row in headline_rows(study, results):
        rest = {name: value for name, value in result.cell.place.items() if name != axis}
        curve, size = arm_label(rest), float(result.cell.place[axis])
        named = (of_seed(result.cell.seed), result.value(row.split, metric))
        curves.setdefault(curve, {}).setdefault(size, []).append(named)
        arms[curve] = result.arm
        table.append((label, size, result.cell.place.get("depth"), row.parameters_non_embedding, result.cell.seed,
                      result.value(row.split, metric), result.digest))  # fmt: skip
    if not curves:
        return None
    frames, shown = Frames(curves), [line[-2] for line in table]
    for curve, values in curves.items():
        draw_curve(frames.of(curve), curve, values, study_styles(study)[arms[curve]])
    for axes in frames.axes:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
        shown += draw_levels(axes, study, results, "validation", named=frames.one)
    limit_share(frames.axes, shown)
    unit = "channels" if axis == "width" else words(study.recipe.sizing["by"])
    figure = frames.finish(f"{axis} ({unit})", metric, group or study.recipe.title)
    header = ("arm", axis, "depth", "parameters_non_embedding", "seed", "value", "cell")
    caption = f"Against {axis}, one line for each arm and depth."
    return Drawing(drawing_name(study, group, axis), caption, figure, to_csv(header, table))


def training_drawings(study: Study, group: str, results: Sequence[Result]) -> list[Drawing]:
    """Metric, loss and mechanisms over the steps of training, a figure for each on each split that was looked at."""
    chosen = [result for place in study.places(results) for result in study.at_rate(place, "chosen") or []]
    seen = dict.fromkeys((point.split, name) for result in chosen for point in result.history for name in point.values)
    wanted = (study.recipe.metric_name, "loss", *MEASURES)
    shown = [(split, metric) for metric in wanted for split, name in seen if name == metric]
    return [_training_drawing(study, group, chosen, split, metric) for split, metric in shown]


def _training_drawing(study: Study, group: str, chosen: Sequence[Result], split: str, metric: str) -> Drawing:
    curves = [(result, result.curve(split, metric), arm_label(result.cell.place)) for result in chosen]
    frames = Frames(label for _, curve, label in curves if curve)
    table, seen = [], set[str]()
    for result, curve, label in curves:
        if not curve:
            continue
        style, axes = study_styles(study)[result.arm], frames.of(label)
        (line,) = axes.plot(*zip(*curve, strict=True), color=style.colour, linestyle=style.dash, linewidth=1.2,
                            alpha=0.85, label=None if label in seen else label)  # fmt: skip
        mark_curve(line, label, f"{label}, {of_seed(result.cell.seed)}")
        seen.add(label)
        table += [(label, result.cell.seed, step, value, result.digest) for step, value in curve]
    is_headline, shown = metric == study.recipe.metric_name, [line[3] for line in table]
    for axes in frames.axes:
        if study.recipe.plateau is not None and is_headline:
            axes.axhline(study.recipe.plateau, **PLATEAU)
        axes.set_xscale("log")
        shown += draw_levels(axes, study, chosen, split, metric, named=frames.one)
    if metric != "loss":
        limit_share(frames.axes, shown)
    unit = " (nats)" if metric == "loss" and task_class(study.recipe.task).problem_type == "classification" else ""
    figure = frames.finish("optimiser steps", f"{metric} on {split}{unit}", group or study.recipe.title)
    return Drawing(
        drawing_name(study, group, f"training-{split}" if is_headline else f"training-{split}-{metric}"),
        f"{words(metric)} over training on {split}, one line for each seed at the chosen rate.",
        figure,
        to_csv(("arm", "seed", "steps", "value", "cell"), table),
    )


def _by_curve(results: Sequence[Result]) -> dict[str, list[Result]]:
    curves: dict[str, list[Result]] = {}
    for result in results:
        curves.setdefault(arm_label(result.cell.place), []).append(result)
    return curves
