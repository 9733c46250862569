"""What result rows say: studies, choice by validation, and curves over length.

Needs the standard library only. Figures, tables and pages are made from these, never from numbers of their own.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from hf_memory.experiments.results import Row


@dataclasses.dataclass(frozen=True)
class Point:
    """Values of one arm at one length, one per seed.

    Attributes:
        values: Values in the order of the seeds.
        seeds: The seeds.
        targets: Number of targets behind each value.
    """

    values: tuple[float, ...]
    seeds: tuple[int | None, ...]
    targets: int

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The learning rate of one arm that was best on ``validation``.

    Attributes:
        learning_rate: The best rate by mean over seeds; a smaller one wins a tie.
        curve: Mean validation value by learning rate, in rising order.
        tries: Number of runs behind the curve.
        on_edge: Whether the best of several lies on the edge of the grid, so that a better one may lie beyond.
    """

    learning_rate: float
    curve: dict[float, float]
    tries: int
    on_edge: bool


def study_key(row: Row) -> tuple[str, str, tuple[int, int]]:
    """What rows must share to be compared: task, its knobs, and the training lengths."""
    return row.task, json.dumps(row.task_knobs, sort_keys=True), row.train_length or (0, 0)


def studies(rows: Iterable[Row]) -> list[list[Row]]:
    """Split rows into studies, groups whose values may stand in one plot.

    An arm that was run at several sizes is named with its parameters, and each is one of its own.

    Raises:
        ValueError: If one study holds rows of several data versions; the message names the cells of each.
    """
    groups: dict[tuple[str, str, tuple[int, int]], list[Row]] = {}
    for row in rows:
        groups.setdefault(study_key(row), []).append(row)
    for group in groups.values():
        check_comparable(group)
    return [_apart(groups[key]) for key in sorted(groups)]


def _apart(rows: Sequence[Row]) -> list[Row]:
    """The rows of a study; an arm that was run at several sizes is several ones, each with its parameters' number."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        sizes.setdefault(row.arm, set()).add(row.parameters)
    return [
        dataclasses.replace(row, arm=f"{row.arm}, {row.parameters:,} parameters") if len(sizes[row.arm]) > 1 else row
        for row in rows
    ]


def check_comparable(rows: Sequence[Row]) -> None:
    """Raise a ``ValueError`` where rows belong to different studies or to different data versions."""
    if not rows:
        raise ValueError("rows: at least one is needed, got none")
    if len({study_key(row) for row in rows}) > 1:
        names = sorted({f"{task} {knobs} trained at {lengths}" for task, knobs, lengths in map(study_key, rows)})
        raise ValueError(f"rows: one study at a time, got {'; '.join(names)}")
    cells: dict[str, set[str]] = {}
    for row in rows:
        cells.setdefault(row.data_version, set()).add(row.cell)
    if len(cells) > 1:
        listed = "; ".join(f"{version}: cells {', '.join(sorted(found))}" for version, found in sorted(cells.items()))
        raise ValueError(f"rows: data_version of {rows[0].task} must be one, got {listed}")


def title(rows: Sequence[Row]) -> str:
    """A line that names a study: the task, its knobs and the training lengths."""
    row = rows[0]
    knobs = ", ".join(f"{name} {value}" for name, value in row.task_knobs.items() if value is not None)
    named = f"{row.task}{f' ({knobs})' if knobs else ''}"
    if row.train_length is None:
        return named
    low, high = row.train_length
    return f"{named}, trained at {low if low == high else f'{low} to {high}'}"


def arms(rows: Iterable[Row]) -> list[str]:
    """Names of the arms, in the order in which they first appear."""
    return list(dict.fromkeys(row.arm for row in rows))


def best_learning_rate(rows: Sequence[Row], metric: str | None = None) -> Choice:
    """Choose among the learning rates of one arm by its rows on ``validation``, and by nothing else.

    A value that is not a number counts as the chance level, so that a diverged run is never dropped from a mean.

    Raises:
        ValueError: If the rows are of several arms, or none is of the validation split.
    """
    if len({row.arm for row in rows}) != 1:
        raise ValueError(f"rows: one arm at a time, got {arms(rows)}")
    values: dict[float, list[float]] = {}
    for row in rows:
        if row.split == "validation" and row.learning_rate is not None:
            values.setdefault(row.learning_rate, []).append(counted_value(row, metric))
    if not values:
        raise ValueError(f"rows: {rows[0].arm!r} has none of the split 'validation', by which a rate is chosen")
    curve = {rate: statistics.fmean(values[rate]) for rate in sorted(values)}
    best = max(curve, key=lambda rate: (curve[rate], -rate))
    edges = (min(curve), max(curve))
    return Choice(best, curve, sum(map(len, values.values())), len(curve) > 1 and best in edges)


def counted_value(row: Row, metric: str | None = None) -> float:
    """Value of a row as it enters means: the chance level where the value is not a number."""
    measured = row.measured(metric)
    return measured.chance if math.isnan(measured.value) and measured.chance is not None else measured.value


def chosen_rows(rows: Sequence[Row], metric: str | None = None) -> list[Row]:
    """The rows of one arm whose values count, all of one learning rate.

    Where a search had chosen the rate of some of the runs, the rows are theirs alone: those of the search itself were
    chosen for their luck as well. Of several rates that one counts which was best on ``validation``.
    """
    own = [row for row in rows if len(row.learning_rate_grid) > 1] or list(rows)
    if len({row.learning_rate for row in own}) < 2:
        return own
    best = best_learning_rate(own, metric).learning_rate
    return [row for row in own if row.learning_rate == best]


def curves(rows: Sequence[Row], metric: str | None = None) -> dict[str, dict[int, Point]]:
    """Values over the test lengths of one study, by arm and length.

    Only the splits ``test_<length>`` enter, of the rows that :func:`chosen_rows` names.
    """
    check_comparable(rows)
    result: dict[str, dict[int, Point]] = {}
    for arm in arms(rows):
        own = chosen_rows([row for row in rows if row.arm == arm], metric)
        by_length: dict[int, list[Row]] = {}
        for row in sorted(own, key=lambda row: (row.length, -1 if row.seed is None else row.seed)):
            if row.split == f"test_{row.length}":
                by_length.setdefault(row.length, []).append(row)
        if by_length:
            result[arm] = {
                length: Point(
                    tuple(counted_value(row, metric) for row in found),
                    tuple(row.seed for row in found),
                    round(found[0].measured(metric).denominator),
                )
                for length, found in by_length.items()
            }
    return result


def reference_levels(rows: Sequence[Row], metric: str | None = None) -> dict[str, dict[int, float]]:
    """Chance level (named ``chance``) and baselines over the test lengths of one study, by name and length."""
    levels: dict[str, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: row.length):
        if row.split != f"test_{row.length}":
            continue
        measured = row.measured(metric)
        found: Mapping[str, float | None] = {"chance": measured.chance, **measured.baselines}
        for name, value in found.items():
            if value is not None and math.isfinite(value):
                levels.setdefault(name, {})[row.length] = value
    return levels
