"""What the figures of a sweep share: names of places, curves, groups and files, the styles of arms, and levels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from hf_memory.experiments.results import Row
from hf_memory.names import file_name
from hf_memory.reports.formats import words
from hf_memory.reports.plotting import name_level
from hf_memory.reports.styles import BASELINE, CHANCE, Style, arm_styles
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


def drawing_name(study: Study, group: str, kind: str) -> str:
    """File name of a figure."""
    return file_name("-".join(filter(None, (study.recipe.name, group.replace(", ", "-").replace(" ", "_"), kind))))


def home_split(result: Result) -> str:
    """The test split at the training length where there is one, else ``validation``."""
    first = next(iter(result.rows.values()))
    name = f"test_{(first.train_length or (0, 0))[1]}"
    return name if name in result.rows else "validation"


def is_on_edge(study: Study, place: Mapping[str, Any]) -> bool:
    """Whether the rate of a place was searched and is best on the edge of the grid: a better one may lie beyond."""
    choice = study.choice(place)
    return choice is not None and choice.on_edge


def headline_rows(study: Study, results: Sequence[Result]) -> list[tuple[str, Result, Row]]:
    """Label, result and row at the training length of every run at its chosen rate that has rows."""
    found = []
    for place in study.places(results):
        for result in study.at_rate(place, "chosen") or []:
            if result.rows:
                found.append((arm_label(place), result, result.rows[home_split(result)]))
    return found


def study_styles(study: Study) -> dict[str, Style]:
    """Style by arm: the mixer's, varied for its later arms."""
    return arm_styles((name, arm["mixer"]) for name, arm in study.recipe.arms.items())


def draw_levels(
    axes: Axes, study: Study, results: Sequence[Result], split: str, metric: str | None = None, named: bool = True
) -> list[float]:
    """Draw the chance level and the baselines above it, for the recipe's metric or another one; returns chance.

    Small panels have no room for the names of baselines.
    """
    row, metric = next((r.rows[split] for r in results if split in r.rows), None), metric or study.recipe.metric_name
    if row is None or metric not in row.metrics:
        return []
    measured = row.measured(metric)
    levels = [level for level in (measured.chance,) if level is not None and math.isfinite(level)]
    for level in levels:
        axes.axhline(level, **CHANCE)
    equal: dict[float, list[str]] = {}
    for name, value in measured.baselines.items():
        if math.isfinite(value) and not any(value <= level for level in levels):
            equal.setdefault(value, []).append(words(name))
    for value, names in equal.items():
        axes.axhline(value, **BASELINE)
        if named:
            name_level(axes, ", ".join(names), (0.99, value), across="axes fraction")
    return levels
