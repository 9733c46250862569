"""Tables of a sweep: places of the grid, ticks and runs. Texts, with the numbers by which they sort.

A value at a rate that was best on the edge of its grid is a lower bound and carries "≥". A run that was not measured
is in no mean.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.reports.formats import brackets, count, fine_share, percent, rate, share, spread, words
from hf_memory.reports.study_axes import home_split, is_on_edge, label_of
from hf_memory.reports.tables import PageTable, TableCell, TableLine
from hf_memory.studies.outcomes import Result, Study
from hf_memory.studies.plans import search_place
from hf_memory.studies.statistics import best_of_n, cycle_reading, plateau, seed_reading, seeds_that_pass
from hf_memory.studies.verdicts import exact_interval

_CYCLES = "rows_3_of_5"

TICK = 0.9
"""Level above which a run passes in the table of ticks, and a length counts as reached."""

PLACE_FACTS = (
    *("learning rate", "seeds", "parameters per block", "parameters of blocks", "state bytes", "seconds"),
    "mean of seeds' bests",
)
"""Columns beside the values of a place."""

RUN_FACTS = (
    *("stage", "learning rate", "seed", "outcome", "steps", "tokens", "seconds", "clip", "groups", "stop rule"),
    *("evaluations", "on plateau"),
)
"""Columns beside the values of a run."""


def place_tables(study: Study, name: str) -> list[PageTable]:
    """One table for the chosen rates, one for the fixed one, and one of ticks for several test lengths."""
    tables = [_place_table(study, f"{name}-chosen", "At the chosen learning rates", "chosen")]
    if study.recipe.fixed_learning_rate is not None and len(study.recipe.learning_rates) > 1:
        title = f"With learning rate {rate(study.recipe.fixed_learning_rate)} for all"
        tables.append(_place_table(study, f"{name}-fixed", title, "fixed"))
    others = (
        tick_table(study, f"{name}-ticks"),
        readings_table(study, f"{name}-readings"),
        tries_table(study, f"{name}-tries"),
    )
    return [*tables, *(table for table in others if table is not None)]


def _place_table(study: Study, name: str, title: str, choose: str) -> PageTable:
    metric, axes, splits = study.recipe.metric_name, tuple(study.recipe.grid), _splits(study)
    lines = []
    for place in study.places():
        results = [result for result in study.at_rate(place, choose) or [] if result.is_known]
        if results:
            bound = choose == "chosen" and is_on_edge(study, place)
            values = (_spread([r.value(s, metric) for r in results if s in r.rows], bound) for s in splits)
            named = (TableCell(str(place[axis])) for axis in ("arm", *axes))
            lines.append(TableLine((*named, *_place_facts(study, place, results, choose), *values)))
    columns = ("arm", *axes, *PLACE_FACTS, *splits)
    note = (
        f"{words(metric)}: mean over seeds, smallest and largest in brackets. State bytes are those at the "
        "training length, seconds the median of training. Chance levels and baselines stand below. Behind ≥ the rate "
        "was best on the edge of the grid, so that a better one may lie beyond."
    )
    return PageTable(name, title, note, columns, (*lines, *_level_lines(study, splits, len(axes))))


def _splits(study: Study) -> list[str]:
    """The splits on which something was measured, in the order of the rows."""
    return list(dict.fromkeys(split for result in study.results for split in result.rows))


def _place_facts(
    study: Study, place: Mapping[str, Any], results: Sequence[Result], choose: str
) -> tuple[TableCell, ...]:
    """What is known of a place besides its values, in the order of :data:`PLACE_FACTS`."""
    choice, used = study.choice(place), results[0].cell.learning_rate
    searched = choice if choose == "chosen" else None
    edge = ", on the edge" if searched and is_on_edge(study, place) else ""
    first = next((row for result in results for row in result.rows.values()), None)
    return (
        TableCell(f"{rate(used)} (best of {len(searched.curve) if searched else 1}{edge})", used),
        TableCell(str(len(results))),
        _number(first.parameters_per_block if first else None),
        _number(first.parameters_non_embedding if first else None),
        _number(next((r.rows[home_split(r)].state_bytes for r in results if r.rows), None)),
        _number(_usual_seconds(results)),
        TableCell("" if choice is None else share(choice.best_per_seed)),
    )


def _level_lines(study: Study, splits: Sequence[str], axes: int) -> list[TableLine]:
    """Chance level and baselines of each training set, where they are known."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    metric = study.recipe.metric_name
    for result in study.results:
        data = str(result.cell.place.get("config", ""))
        for split, row in result.rows.items():
            measured = row.measured(metric)
            levels = {"chance": measured.chance, **measured.baselines}
            for name, value in levels.items():
                if value is not None and math.isfinite(value):
                    found.setdefault((data, words(name)), {})[split] = value
    position = list(study.recipe.grid).index("config") if "config" in study.recipe.grid else None
    lines = []
    for (data, name), values in found.items():
        place = [TableCell(data if index == position else "") for index in range(axes)]
        facts = [TableCell("")] * len(PLACE_FACTS)
        cells = [TableCell(share(values[split]) if split in values else "") for split in splits]
        lines.append(TableLine((TableCell(name), *place, *facts, *cells), level=True))
    return lines


def tick_table(study: Study, name: str) -> PageTable | None:
    """How many seeds pass at each test length, beside accuracy per step for whole-sequence metrics."""
    metric = study.recipe.metric_name
    by_length = "sequence" in metric
    lengths = sorted(
        {row.length for r in study.results for row in r.rows.values() if row.split == f"test_{row.length}"}
    )
    if len(lengths) < 2:
        return None
    lines = []
    for place in study.places():
        results = [result for result in study.at_rate(place, "chosen") or [] if result.is_known]
        values = {
            length: [r.value(f"test_{length}", metric) for r in results if f"test_{length}" in r.rows]
            for length in lengths
        }
        values = {length: found for length, found in values.items() if found}
        if not values:
            continue
        first = min(values)
        cells = [TableCell(label_of(place)), _number(extrapolation_length(values, TICK))]
        for length in lengths:
            cells.append(_tick(values.get(length, []), length, values[first], first, by_length))
        lines.append(TableLine(tuple(cells)))
    note = f"Seeds above {TICK:g} of all seeds, at the chosen rate, with the 95 % interval of that share in brackets. "
    if by_length:
        note += "Then accuracy per step, and what independent errors at the shortest length would give."
    return PageTable(name, "Ticks", note, ("arm", "reaches", *map(str, lengths)), tuple(lines))


def readings_table(study: Study, name: str) -> PageTable | None:
    """Both readings of "three of five" where intervals are counted: over seeds, and over the cycles of a row."""
    splits = [split for split in _splits(study) if split == "test" or split.startswith("test_")]
    lines = []
    for place in study.places():
        results = [result for result in study.at_rate(place, "chosen") or [] if result.is_known]
        if not results or not all(_CYCLES in result.rows["validation"].metrics for result in results):
            continue
        cells = (_reading([result for result in results if split in result.rows], split) for split in splits)
        lines.append(TableLine((TableCell(label_of(place)), *cells)))
    if not lines:
        return None
    note = (
        f"Runs with at least {TICK:g} of all intervals exact, of phase tests with as many rows exact, out of all runs; "
        "✓ where these are three of five. Behind the stroke, where rows have five intervals: runs more than half of "
        "whose rows have three exact among the first five."
    )
    return PageTable(name, "Three of five", note, ("arm", *splits), tuple(lines))


def _reading(results: Sequence[Result], split: str) -> TableCell:
    """How many runs pass on one split, by both readings."""
    if not results:
        return TableCell("")
    is_phase_test = any(kind in split for kind in ("two_isi", "double_isi"))
    shares = [result.value(split, "rows_exact" if is_phase_test else "exact_offsets") for result in results]
    passed, total = seed_reading(shares, TICK)
    text = f"{'✓' if passed >= 0.6 * total else '✗'} {passed}/{total}"
    if all(result.rows[split].measured(_CYCLES).denominator for result in results):
        text += f" | {cycle_reading([result.value(split, _CYCLES) for result in results])[0]}/{total}"
    return TableCell(text, passed / total)


def tries_table(study: Study, name: str) -> PageTable | None:
    """What is reached on ``validation`` by trying 1, 2, ... of the rates: a longer search favours noisy mixers."""
    rates = sorted({result.cell.learning_rate for result in study.results if result.cell.stage == "search"})
    if len(rates) < 2:
        return None
    lines = []
    for place in study.places():
        choice = study.choice(place)
        if choice is None or search_place(study.recipe, place) != place:
            continue
        found = [TableCell(share(value), value) for value in best_of_n(list(choice.curve.values()))]
        lines.append(TableLine((TableCell(label_of(place)), *found)))
    note = "Expected best on validation of so many rates drawn from the grid, from the mean over seeds of each rate."
    columns = ("arm", *(f"best of {count}" for count in range(1, len(rates) + 1)))
    return PageTable(name, "Best of how many tries", note, columns, tuple(lines), filter=False)


def _tick(values: Sequence[float], length: int, first: Sequence[float], first_length: int, whole: bool) -> TableCell:
    """How many seeds pass at one length; for whole-sequence metrics with the accuracy per step."""
    if not values:
        return TableCell("")
    passed, total = seeds_that_pass(values, TICK)
    low, high = exact_interval(passed, total)
    mark = "✓" if sum(values) / total > TICK else "✗"
    text = f"{mark} {passed}/{total} {brackets(low, high, digits=2)}"
    mean, start = sum(values) / total, sum(first) / len(first)
    if whole:
        text += f", {fine_share(mean ** (1 / length))} a step, independent {share(start ** (length / first_length))}"
    return TableCell(text, mean)


def cell_table(study: Study, name: str) -> PageTable:
    """Every run with its outcome, evaluations and cost."""
    metric, axes, splits = study.recipe.metric_name, tuple(study.recipe.grid), _splits(study)
    lines = []
    for result in study.results:
        named = (TableCell(result.arm), *(TableCell(str(result.cell.place[axis])) for axis in axes))
        values = (_run_value(result, split, metric) for split in splits)
        lines.append(TableLine((*named, *_run_facts(study, result), *values, TableCell(result.digest))))
    columns = ("arm", *axes, *RUN_FACTS, *splits, "cell")
    return PageTable(name, "All runs", f"{words(metric)} of each run.", columns, tuple(lines))


def _run_facts(study: Study, result: Result) -> tuple[TableCell, ...]:
    """What is known of a run besides its values, in the order of :data:`RUN_FACTS`."""
    row, training = next(iter(result.rows.values()), None), result.cell.training
    crashed = f"crashed: {result.error}" if result.error else "missing"
    outcome = "diverged" if result.has_diverged else "finished" if row else crashed
    outcome = "; ".join([outcome, *result.problems])
    return (
        TableCell(result.cell.stage),
        TableCell(rate(result.cell.learning_rate)),
        TableCell(str(result.cell.seed)),
        TableCell(outcome, kind="text"),
        _number(row.steps if row else None),
        _number(row.tokens if row else None),
        _number(row.train_seconds if row else None),
        TableCell(f"{training['clip']:g}"),
        TableCell(str(training["optim_groups"])),
        TableCell(row.stop_rule or "" if row else "", kind="text"),
        TableCell(str(result.cell.evaluate["points"])),
        _plateau(study, result),
    )


def _plateau(study: Study, result: Result) -> TableCell:
    """Share of the steps that a run spent on the plateau, where the recipe has one."""
    level, curve = study.recipe.plateau, result.curve("validation", study.recipe.metric_name)
    if level is None or not curve:
        return TableCell("")
    part = plateau(curve, level)
    return TableCell(percent(part), part)


def _run_value(result: Result, split: str, metric: str) -> TableCell:
    """Value of one run; with its 95 % interval where whole sequences are counted, which are independent."""
    if not result.is_known or split not in result.rows:
        return TableCell("")
    value = result.value(split, metric)
    if result.has_diverged or "sequence" not in metric:
        return TableCell(fine_share(value), value)
    measured = result.rows[split].measured(metric)
    low, high = exact_interval(round(measured.numerator), round(measured.denominator))
    return TableCell(f"{fine_share(value)} {brackets(low, high)}", value)


def _usual_seconds(results: Sequence[Result]) -> float | None:
    """Median training time of the runs that have one: one run on a busy machine would move a mean."""
    seconds = [next(iter(r.rows.values())).train_seconds for r in results if r.rows]
    known = [value for value in seconds if value is not None]
    return statistics.median(known) if known else None


def _number(value: float | None) -> TableCell:
    return TableCell("") if value is None else TableCell(count(value), float(value))


def _spread(values: Sequence[float], bound: bool) -> TableCell:
    """Mean and range over seeds, marked where they are lower bounds."""
    return TableCell(f"{'≥ ' if bound else ''}{spread(values)}", sum(values) / len(values)) if values else TableCell("")
