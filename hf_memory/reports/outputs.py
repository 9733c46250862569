"""What a model outputs over time, beside what it should: the figure of counting, where a single step decides."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hf_memory.data.specification import Specification
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.evaluation import predict
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.names import check_names
from hf_memory.reports.styles import LEGEND, PALETTE, TRAINED
from hf_memory.tasks._intervals import MISSED, exact_intervals, find_intervals, is_double, offset_errors
from hf_memory.tasks.base import IGNORE_INDEX
from hf_memory.tasks.interval_counting import IntervalCounting

_MOST_STEPS = 1_000
"""Steps of a row that a panel shows."""


def plot_outputs(model: MemoryPreTrainedModel, specification: Specification, splits: Mapping[str, Any]) -> Figure:
    """Draw signal and output of one row of each split, with the step at which each on-interval ends.

    A full mark is an end that was foretold exactly; an open one is not, with its error in steps or the reason. The row
    is the one of median share of exact ends, so that it is neither the best nor the worst of its split.

    Args:
        model: A trained model with a head for regression.
        specification: What the splits are.
        splits: Rows by split name.

    Raises:
        ValueError: If the task is not interval counting, or there is no split.
    """
    if not isinstance(specification.task, IntervalCounting):
        raise ValueError(f"task: outputs over time are drawn for interval_counting, got {specification.task.key}")
    if not splits:
        raise ValueError("splits: at least one is needed")
    check_names(splits, specification.splits, "split")
    figure = Figure(figsize=(11.0, 1.5 + 1.25 * len(splits)), dpi=150, layout="constrained")
    panels = figure.subplots(len(splits), 1, squeeze=False)[:, 0]
    for axes, (name, rows) in zip(panels, splits.items(), strict=True):
        task = specification.splits[name].parts[0].task
        columns = predict(model, TensorRows(rows), 256)
        _draw_row(axes, name, task, columns)
    panels[-1].set_xlabel("step")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), **LEGEND)
    return figure


def _draw_row(axes: Axes, name: str, task: Any, columns: Mapping[str, np.ndarray]) -> None:
    ids, labels, outputs = columns["input_ids"], columns["labels"], columns["predictions"]
    intervals = find_intervals(ids, labels != IGNORE_INDEX)
    exact = exact_intervals(intervals, outputs, task.isi)
    errors = offset_errors(intervals, outputs, task.isi)
    share = np.bincount(intervals.row, exact, len(ids)) / np.maximum(np.bincount(intervals.row, minlength=len(ids)), 1)
    chosen = int(np.argsort(share, kind="stable")[len(ids) // 2])
    steps = np.arange(min(ids.shape[1], _MOST_STEPS))
    signal = ids[chosen, : len(steps)]
    # The last step has no successor to foretell.
    output = np.where(labels[chosen] != IGNORE_INDEX, outputs[chosen], np.nan)[: len(steps)]
    axes.fill_between(steps, signal, step="mid", label="input", **TRAINED)
    axes.axhline(0.5, color="black", linestyle=":", linewidth=1.0)
    axes.plot(steps, output, color=PALETTE[0], linewidth=1.2, label="output, the next input foretold")
    shown = (intervals.row == chosen) & (intervals.end < len(steps))
    for kind, filled in ((exact, True), (~exact, False)):
        ends = intervals.end[shown & kind]
        axes.plot(
            ends,
            np.full(len(ends), 1.25),
            linestyle="",
            marker="v",
            color=PALETTE[2],
            markerfacecolor=PALETTE[2] if filled else "white",
            label="end foretold at its step" if filled else "end not foretold at its step",
        )
    double = is_double(intervals, task.isi)
    for index in np.flatnonzero(shown & ~exact):
        end, error = intervals.end[index], errors[index]
        text = "missed" if abs(error) == MISSED else f"{error:+d}" if error else "not held until then"
        text = "no end in the middle" if double[index] and error >= 0 else text
        axes.annotate(text, (end, 1.25), xytext=(6, 0), textcoords="offset points", fontsize=7, va="center")
    axes.set_ylim(-0.35, 1.5)
    axes.set_xlim(-1, len(steps))
    axes.set_yticks([0, 1])
    counted = f"{int(exact.sum())} of {len(exact)} ends exact"
    axes.set_title(f"{name}: {counted}", fontsize=8.5, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
