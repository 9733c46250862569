"""The grid of a sweep in words: names of places, curves, groups of data, and files."""

from collections.abc import Mapping
from typing import Any

from hf_memory.names import file_name
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
