"""Figures of studies that measure more: parameters, loss beside recall, two times of testing, decays, and slices."""

import re
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hf_memory.experiments.further import DECAYS
from hf_memory.experiments.results import Row
from hf_memory.reports.formats import words
from hf_memory.reports.length_plots import set_lengths, shade_training
from hf_memory.reports.plotting import (
    Curve,
    Drawing,
    Frames,
    draw_curve,
    limit_share,
    mark_legend,
    name_panel,
    of_seed,
    plain,
)
from hf_memory.reports.study_axes import (
    arm_label,
    by_task,
    draw_levels,
    drawing_name,
    headline_rows,
    home_split,
    study_styles,
)
from hf_memory.reports.styles import LEGEND, PLATEAU, Style, style_of
from hf_memory.reports.tables import to_csv
from hf_memory.reports.vectors import mark_curve
from hf_memory.studies.outcomes import Result, Study

_TIMES = {"at the end": ("solid", "o"), "at the first crossing": ((0, (1, 1.2)), "s")}
"""Dash and marker of each time of testing."""
_SHIFTS = {"at the end": 1.0, "at the first crossing": 1.08}
"""Where points of each time stand beside their length, so that none hides another."""
_UNITS = {
    "age": "events since the binding",
    "rate": "updates of the key in its row",
    "updates": "updates of the key before the question",
}
"""What an annotation counts."""
_FEWEST = 20
"""Answers of a run without which its share of them is not drawn: it stands in the table of the figure alone."""


def detail_drawings(study: Study) -> list[Drawing]:
    """All of these figures for which a sweep has something to show."""
    asked = {measure.quantity for item in study.recipe.expectations for measure in item.measures}
    drawings = []
    for group, results in by_task(study).items():
        chosen = [result for place in study.places(results) for result in study.at_rate(place, "chosen") or []]
        known = [result for result in chosen if result.is_known]
        drawings += [course_drawing(study, group, known)] if known and "bump" in asked else []
        drawings += [crossing_drawing(study, group, known)] if any(r.crossing is not None for r in known) else []
        drawings += decay_drawings(study, group, known)
    return [*drawings, *slice_drawings(study)]


def parameters_drawing(study: Study, group: str, results: Sequence[Result]) -> Drawing | None:
    """The metric against the parameters of the blocks, one curve over the width for each arm and depth."""
    axis = next((name for name in ("width", "size") if len(study.recipe.grid.get(name, ())) > 1), None)
    depths = study.recipe.grid.get("depth", ())
    if axis is None or len(depths) < 2:
        return None
    metric, table = study.recipe.metric_name, []
    curves: dict[tuple[str, int], Curve] = {}
    mixers: dict[str, str] = {}
    for label, result, row in headline_rows(study, results):
        place, value = result.cell.place, result.value(row.split, metric)
        arm = arm_label({name: at for name, at in place.items() if name not in (axis, "depth")})
        at = curves.setdefault((arm, place["depth"]), {}).setdefault(float(row.parameters_non_embedding), [])
        at.append((of_seed(result.cell.seed), value))
        mixers[arm] = result.cell.mixer
        table.append((label, row.parameters_non_embedding, result.cell.seed, value, result.digest))
    if not curves:
        return None
    frames, shown = Frames(mixers, several=True), [line[3] for line in table]
    for (arm, depth), values in curves.items():
        draw_curve(frames.of(arm), str(depth), values, style_of(mixers[arm], list(depths).index(depth)))
    for axes in frames.axes:
        axes.set_xscale("log")
        shown += draw_levels(axes, study, results, "validation", named=frames.one)
        mark_legend(axes.legend(title="layers", title_fontsize=7, handlelength=2.4, **{**LEGEND, "fontsize": 7}))
    limit_share(frames.axes, shown)
    return Drawing(
        drawing_name(study, group, "parameters"),
        f"Against the parameters of the blocks, a panel for each arm and a curve over the {axis} for each depth; "
        "points are seeds.",
        frames.finish("parameters of the blocks, without embeddings", metric, group or study.recipe.title),
        to_csv(("arm", "parameters_non_embedding", "seed", "value", "cell"), table),
    )


def course_drawing(study: Study, group: str, results: Sequence[Result]) -> Drawing:
    """Loss and metric on ``validation`` over the steps, a column for each arm, a line for each seed."""
    labels = list(dict.fromkeys(arm_label(result.cell.place) for result in results))
    metric, styles = study.recipe.metric_name, study_styles(study)
    figure = Figure(figsize=(max(7.6, 1.8 * len(labels)), 4.4), dpi=150, layout="constrained")
    grid = figure.subplots(2, len(labels), sharex=True, sharey="row", squeeze=False)
    table, shown = [], list[float]()
    for result in results:
        label = arm_label(result.cell.place)
        for axes, name in zip(grid[:, labels.index(label)], ("loss", metric), strict=True):
            curve = result.curve("validation", name)
            if curve:
                (line,) = axes.plot(
                    *zip(*curve, strict=True), color=styles[result.arm].colour, linewidth=1.2, alpha=0.85
                )
                mark_curve(line, label, f"{label}, {of_seed(result.cell.seed)}")
            table += [(label, result.cell.seed, name, step, value, result.digest) for step, value in curve]
            shown += [value for _, value in curve] if name == metric else []
    for column, label in enumerate(labels):
        name_panel(grid[0, column], label)
        for axes in grid[:, column]:
            plain(axes)
            axes.set_xscale("log")
            axes.tick_params(labelsize=7)
        shown += draw_levels(grid[1, column], study, results, "validation", named=False)
        if study.recipe.plateau is not None:
            grid[1, column].axhline(study.recipe.plateau, **PLATEAU)
    limit_share(grid[1], shown)
    grid[0, 0].set_ylabel("loss (nats)", fontsize=9)
    grid[1, 0].set_ylabel(words(metric), fontsize=9)
    figure.supxlabel("optimiser steps", fontsize=9)
    figure.suptitle(group or study.recipe.title, x=0.01, ha="left", fontsize=10)
    return Drawing(
        drawing_name(study, group, "course"),
        f"Loss above {words(metric)} on validation over training, a column for each arm and a line for each seed.",
        figure,
        to_csv(("arm", "seed", "metric", "steps", "value", "cell"), table),
    )


def crossing_drawing(study: Study, group: str, results: Sequence[Result]) -> Drawing:
    """The metric over the test length, at the first crossing and at the end, a panel for each arm."""
    metric, styles = study.recipe.metric_name, study_styles(study)
    frames = Frames((arm_label(result.cell.place) for result in results), several=True)
    table, shown, curves = [], list[float](), dict[tuple[str, str], Curve]()
    arms = {arm_label(result.cell.place): result.arm for result in results}
    for result in results:
        label = arm_label(result.cell.place)
        reads = {"at the end": result.value, "at the first crossing": result.at_crossing}
        for row in _tests(result):
            for time, read in reads.items():
                if time == "at the end" or result.crossing is not None:
                    value = read(row.split, metric)
                    at = curves.setdefault((label, time), {}).setdefault(row.length * _SHIFTS[time], [])
                    at.append((of_seed(result.cell.seed), value))
                    table.append((label, time, row.length, result.cell.seed, value, result.crossing, result.digest))
                    shown.append(value)
    for (label, time), values in curves.items():
        dash, marker = _TIMES[time]
        draw_curve(frames.of(label), time, values, Style(styles[arms[label]].colour, marker, dash == "solid", dash))
    _finish_lengths(frames, frames.axes, study, results, shown)
    figure = frames.finish("test length (training range shaded)", metric, group or study.recipe.title)
    _explain(figure, {time: Line2D([], [], color="#444444", linestyle=d, marker=m) for time, (d, m) in _TIMES.items()})
    level = results[0].cell.evaluate["crossing"]
    return Drawing(
        drawing_name(study, group, "crossing"),
        f"Against test length, where a run first passed {level:g} on validation and at its end; points are seeds.",
        figure,
        to_csv(("arm", "time", "length", "seed", "value", "crossing_steps", "cell"), table),
    )


def decay_drawings(study: Study, group: str, results: Sequence[Result]) -> list[Drawing]:
    """The metric over the test length, and what is left of the slowest and the middle number of a diagonal state."""
    metric = study.recipe.metric_name
    held = [result for result in results if any(DECAYS[0] in row.metrics for row in result.rows.values())]
    names = (metric, *DECAYS)
    curves: dict[tuple[str, str], Curve] = {}
    arms, table = {arm_label(result.cell.place): result.arm for result in held}, []
    for result in held:
        label = arm_label(result.cell.place)
        for row in _tests(result):
            for name in (name for name in names if name in row.metrics):
                value = result.value(row.split, name)
                at = curves.setdefault((name, label), {}).setdefault(row.length, [])
                at.append((of_seed(result.cell.seed), value))
                table.append((label, name, row.length, result.cell.seed, value, result.digest))
    if not table:
        return []
    titles = {metric: words(metric), DECAYS[0]: "left of the slowest number", DECAYS[1]: "left of the middle number"}
    frames = Frames((titles[name] for name in names), several=True)
    for (name, label), values in curves.items():
        draw_curve(frames.of(titles[name]), label, values, study_styles(study)[arms[label]])
    _finish_lengths(frames, frames.axes[:1], study, results, [0.0, *(line[4] for line in table)])
    figure = frames.finish("test length (training range shaded)", "share", group or study.recipe.title)
    _explain(figure, {label: _key(study_styles(study)[arm]) for label, arm in arms.items()})
    return [
        Drawing(
            drawing_name(study, group, "decays"),
            "At the end of training: the metric, and what is left of the slowest and of the middle number of a "
            "diagonal state when the first answer is due.",
            figure,
            to_csv(("arm", "metric", "length", "seed", "value", "cell"), table),
        )
    ]


def slice_drawings(study: Study) -> list[Drawing]:
    """Each metric told apart by annotations: a row for each training set and test, a column for each annotation.

    The tests are the one at the training length and the longest one, since who has learned errs rarely in the first.
    """
    wanted = study.recipe.evaluate.get("slices") or {}
    return [drawing for metric, names in wanted.items() if (drawing := _slices(study, metric, names)) is not None]


def _sliced_rows(study: Study) -> dict[tuple[str, int], list[tuple[str, Result, Row]]]:
    """By training set and tested length: label, result and row of each run at its chosen rate."""
    panels: dict[tuple[str, int], list[tuple[str, Result, Row]]] = {}
    for group, results in by_task(study).items():
        for label, result, home in headline_rows(study, results):
            for row in {row.length: row for row in (home, *_tests(result)[-1:])}.values():
                panels.setdefault((group, row.length), []).append((label, result, row))
    return panels


def _slices(study: Study, metric: str, annotations: Sequence[str]) -> Drawing | None:
    panels = _sliced_rows(study)
    if not panels:
        return None
    figure = Figure(figsize=(7.6, 0.9 + 2.4 * len(panels)), dpi=150, layout="constrained")
    grid = figure.subplots(len(panels), len(annotations), sharey=True, sharex="col", squeeze=False)
    styles, table, labels = study_styles(study), [], dict[str, str]()
    for line, ((group, length), found) in zip(grid, panels.items(), strict=True):
        labels |= {label: result.arm for label, result, _ in found}
        for axes, annotation in zip(line, annotations, strict=True):
            curves: dict[str, Curve] = {}
            for label, result, row in found:
                for name, low in _slice_names(row.metrics, metric, annotation):
                    seed, value, answers = result.cell.seed, row.value(name), row.metrics[name].denominator
                    if answers >= _FEWEST:
                        curves.setdefault(label, {}).setdefault(_place(low), []).append((of_seed(seed), value))
                    table.append((group, length, label, annotation, low, seed, value, answers, result.digest))
            _draw_slices(axes, curves, {label: styles[arm] for label, arm in labels.items()})
            name_panel(axes, f"{group or study.recipe.title}, {length} tokens")
    for axes, annotation in zip(grid[-1], annotations, strict=True):
        axes.set_xlabel(_UNITS.get(annotation, words(annotation)), fontsize=8)
    shown = [value for *_, value, answers, _ in table if answers >= _FEWEST]
    if metric == study.recipe.metric_name:
        limit_share(grid.ravel(), shown, 0.0)
    else:  # a share of errors, which is small where all is well
        grid[0, 0].set_ylim(-0.02 * max(shown, default=1.0), 1.08 * max(shown, default=1.0) or 1.0)
    figure.supylabel(f"{words(metric)}, share of answers", fontsize=9)
    _explain(figure, {label: _key(styles[arm]) for label, arm in labels.items()})
    return Drawing(
        drawing_name(study, "", f"{metric}-slices"),
        f"{words(metric)} at the training length and at the longest test, by {' and by '.join(annotations)}, at the "
        f"end of training; points are seeds, each of at least {_FEWEST} answers.",
        figure,
        to_csv(("data", "length", "arm", "annotation", "from", "seed", "value", "answers", "cell"), table),
    )


def _draw_slices(axes: Axes, curves: Mapping[str, Curve], styles: Mapping[str, Style]) -> None:
    for label, values in curves.items():
        draw_curve(axes, label, values, styles[label])
    places = sorted({place for values in curves.values() for place in values})
    axes.set_xticks(places, [_bin(int(place)) for place in places], fontsize=7)
    axes.tick_params(labelsize=7)
    plain(axes)


def _slice_names(metrics: Iterable[str], metric: str, annotation: str) -> list[tuple[str, int]]:
    """Names of the slices of a metric, with the smallest value of each."""
    pattern = re.compile(re.escape(f"{metric}_at_{annotation}_") + r"(\d+)(_to_\d+)?")
    return [(name, int(found[1])) for name in metrics if (found := pattern.fullmatch(name))]


def _place(low: int) -> float:
    """Place on the axis: 0, 1, 2, 3 for values from 0, 1, 2 and 4."""
    return float(low.bit_length())


def _bin(place: int) -> str:
    """The values at a place of the axis."""
    if place < 2:
        return str(place)
    low = 1 << (place - 1)
    return f"{low}-{2 * low - 1}"


def _tests(result: Result) -> list:
    """Rows of the tests by length, in their order."""
    return sorted((r for r in result.rows.values() if r.split == f"test_{r.length}"), key=lambda row: row.length)


def _finish_lengths(
    frames: Frames, levelled: Sequence[Axes], study: Study, results: Sequence[Result], shown: list[float]
) -> None:
    """Scales, the trained range, and in some axes the chance level of figures over test length."""
    row = results[0].rows[home_split(results[0])]
    lengths = sorted({row.length for result in results for row in _tests(result)})
    for axes in frames.axes:
        shade_training(axes, row.train_length, [*lengths, round(1.15 * lengths[-1])])
    for axes in levelled:
        shown += draw_levels(axes, study, results, row.split, named=False)
    set_lengths(frames.axes, lengths)
    limit_share(frames.axes, shown)


def _key(style: Style) -> Line2D:
    return Line2D([], [], color=style.colour, linestyle=style.dash, marker=style.marker, markerfacecolor=style.face)


def _explain(figure: Figure, lines: Mapping[str, Line2D]) -> None:
    """One legend for all panels: two names fit beside the title, more stand beside the panels and take their width."""
    place = {"loc": "outside upper right", "ncols": 2} if len(lines) <= 2 else {"loc": "outside right center"}
    mark_legend(figure.legend(lines.values(), lines.keys(), handlelength=3.2, **place, **LEGEND))
