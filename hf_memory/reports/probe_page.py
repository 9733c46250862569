"""The page of probes: what models that exist recall, over length and over the bytes of their states."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hf_memory.experiments.metrics import REACHED
from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import arms, curves, studies, title
from hf_memory.names import file_name
from hf_memory.reports.formats import brackets, count, share, words
from hf_memory.reports.length_plots import figure_name, plot_length_curves
from hf_memory.reports.pages import picture, write_single_page
from hf_memory.reports.plotting import Curve, canvas, draw_curve, finish, png, scale_bytes
from hf_memory.reports.styles import CHANCE, arm_styles
from hf_memory.reports.tables import PageTable, TableCell, TableLine, to_csv
from hf_memory.reports.vectors import svg

COLUMNS = (
    *("model", "architecture", "length", "size", "gap", "counterfactual recall", "recall", "calibrated", "greedy"),
    *("p among candidates", "p among all", "chance", "best rule", "state bytes", "recalled bits", "bits per byte"),
    "beyond context",
)
"""Columns of the table of rows."""

_SAYS = (
    "Brackets hold intervals of 95% that cluster by draw of words. Chance is a blind guess among a row's candidates; "
    "the best rule is the best of those that remember nothing of the query's key. A recall says what a model does with "
    "this text, not what its state could hold."
)
_IN_CONTEXT = (
    "The rule is to be inferred from examples in the prompt: a failure says nothing about what training could reach."
)


def write_probe_page(rows: Sequence[Row], out: str | Path, heading: str, problems: Sequence[str] = ()) -> Path:
    """Write ``index.html`` of probes, and the PNG and CSV behind each figure.

    Args:
        rows: Rows of probes.
        out: Folder of the page.
        heading: Title of the page.
        problems: Sentences at its top.
    """
    sections, files = [], dict[str, bytes]()
    for number, study in enumerate(studies(rows)):
        drawings = {f"{figure_name(study)}": plot_length_curves(study), f"{_name(study)}": plot_state_bytes(study)}
        files.update({f"{name}.png": png(figure) for name, figure in drawings.items()})
        table = row_table(study, f"rows-{number}")
        files[f"{_name(study)}.csv"] = to_csv(table.columns, table.texts()).encode()
        metric = words(study[0].headline)
        alts = (f"{metric} over length", f"{metric} over bytes of the state")
        sections.append({
            "id": f"probe-{number}",
            "title": title(study),
            "facts": facts(study[0]),
            "notes": [_SAYS, *([_IN_CONTEXT] if _about(study[0])["in_context"] else [])],
            "claims": [],
            "figures": [picture(svg(own), alt) for own, alt in zip(drawings.values(), alts, strict=True)],
            "tables": [table, reach_table(study, f"reach-{number}"), distance_table(study, f"distance-{number}")],
        })  # fmt: skip
    return write_single_page(out, "study_page.html", files, rows, heading=heading, problems=problems, sections=sections)


def facts(row: Row) -> dict[str, str]:
    """What is the same for all rows of a study."""
    about = _about(row)
    found = about["vocabularies"]
    sample = ", ".join(
        f"{key} {value}" for key, value in zip(found[0]["keys"][:3], found[0]["values"][:3], strict=False)
    )
    return {
        "format": f"{about['format']}, version {about['format_version']}",
        "words": f"{len(found)} draws, by the rule {about['words']}, such as {sample}",
        "rows": f"{about['rows_per_vocabulary']} of each draw; keys and values {about['roles']}",
        "data version": row.data_version,
    }


def plot_state_bytes(rows: Sequence[Row]) -> Figure:
    """Draw the headline metric of one study against the bytes of the live state, one point for each length."""
    figure, axes = canvas()
    styles = arm_styles((row.arm, row.mixer) for row in rows)
    for arm in arms(rows):
        own = sorted(_over_length(row for row in rows if row.arm == arm), key=lambda row: row.length)
        points: Curve = {}
        for row in own:
            points.setdefault(row.state_bytes, []).append((f"{count(row.length)} tokens", row.value()))
        draw_curve(axes, arm, points, styles[arm])
    levels = [row.measured().chance for row in _over_length(rows)]
    known = [level for level in levels if level is not None]
    if known:
        axes.axhline(max(known), **CHANCE)
    scale_bytes(axes, (row.state_bytes for row in _over_length(rows)))
    axes.set_ylim(-0.03, 1.03)
    finish(axes, "state per sequence", rows[0].headline, title(rows))
    return figure


def row_table(rows: Sequence[Row], name: str) -> PageTable:
    """All rows of a study, which sort by every column."""
    ordered = sorted(rows, key=lambda row: (row.arm, row.length, _about(row)["size"], _about(row)["gap"] or -1))
    lines = tuple(TableLine(tuple(_cells(row))) for row in ordered)
    note = "One line for each length, size of the context and gap between context and query, in tokens."
    return PageTable(name, "What was recalled", note, COLUMNS, lines)


def _cells(row: Row) -> list[TableCell]:
    """The cells of a row, in the order of :data:`COLUMNS`."""
    about = _about(row)
    recall = row.measured("recall")
    rules = {name: level for name, level in recall.baselines.items() if name != "prior"}
    best = max(rules, key=lambda rule: rules[rule], default="")
    bits = about.get("recalled_bits")
    ratio = None if bits is None or not row.state_bytes else bits / row.state_bytes
    measured = (
        *("counterfactual_recall", "recall", "recall_calibrated", "greedy_accuracy"),
        *("probability_among_candidates", "probability_among_all"),
    )
    return [
        TableCell(row.arm, kind="text"),
        TableCell(row.mixer, kind="text"),
        TableCell(count(row.length), row.length),
        TableCell(count(about["size"]), about["size"]),
        TableCell("all" if about["gap"] is None else count(about["gap"]), -1 if about["gap"] is None else about["gap"]),
        *(_share(row, metric) for metric in measured),
        TableCell("" if recall.chance is None else share(recall.chance), recall.chance),
        TableCell(f"{share(rules[best])} {words(best)}" if best else "", rules.get(best)),
        TableCell(count(row.state_bytes), row.state_bytes),
        TableCell("" if bits is None else f"{bits:.1f}", bits),
        TableCell("" if ratio is None else f"{ratio:.2g}", ratio),
        TableCell("yes" if about["beyond_context"] else "", float(about["beyond_context"])),
    ]


def _share(row: Row, metric: str) -> TableCell:
    """A value with its interval; empty where the row lacks it."""
    if metric not in row.metrics:
        return TableCell("")
    value, interval = row.value(metric), _about(row)["intervals"].get(metric)
    return TableCell(
        f"{share(value)} {brackets(interval[0], interval[1], digits=2)}" if interval else share(value), value
    )


def reach_table(rows: Sequence[Row], name: str) -> PageTable:
    """For each model, the first lengths at which the headline metric is lost."""
    lines = []
    for arm, points in curves(rows).items():
        reach = [falls_below({length: point.mean for length, point in points.items()}, part) for part in (None, 0.5)]
        start = points[min(points)].mean
        cells = (TableCell("never" if at is None else count(at), at) for at in reach)
        lines.append(TableLine((TableCell(arm, kind="text"), TableCell(share(start), start), *cells)))
    columns = ("model", "at the shortest length", f"below {REACHED:g} at", "below half of its start at")
    note = f"{words(rows[0].headline)} over length: the first measured length at which it is lower."
    return PageTable(name, "How far back", note, columns, tuple(lines), filter=False)


def falls_below(curve: Mapping[int, float], part: float | None = None) -> int | None:
    """The first length at which a curve is below :data:`REACHED`, or below a part of its start; None where it stays.

    >>> falls_below({64: 0.95, 128: 0.8, 256: 0.4}), falls_below({64: 0.95, 128: 0.8, 256: 0.4}, 0.5)
    (128, 256)
    """
    level = REACHED if part is None else part * curve[min(curve)]
    return next((length for length in sorted(curve) if curve[length] < level), None)


def distance_table(rows: Sequence[Row], name: str) -> PageTable:
    """Recall by the distance of what is recalled, over the rows of the longest length of each model."""
    prefix = "recall_at_distance_"
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for row in rows:
        for metric, measured in row.metrics.items():
            if metric.startswith(prefix):
                own = found.setdefault(row.arm, {})
                before = own.get(int(metric.removeprefix(prefix)), (0.0, 0.0))
                after = before[0] + measured.numerator, before[1] + measured.denominator
                own[int(metric.removeprefix(prefix))] = after
    distances = sorted({distance for own in found.values() for distance in own})
    lines = []
    for arm, own in found.items():
        values = [own[d][0] / own[d][1] if d in own else None for d in distances]
        cells = (TableCell("" if value is None else share(value), value) for value in values)
        lines.append(TableLine((TableCell(arm, kind="text"), *cells)))
    columns = ("model", *(f"from {count(distance)}" for distance in distances))
    note = "Recall by tokens between a value and its query, to the next power of two; all lengths, sizes and gaps."
    return PageTable(name, "By distance", note, columns, tuple(lines), filter=False)


def _over_length(rows: Any) -> list[Row]:
    """The rows of the curves over length."""
    return [row for row in rows if row.split == f"test_{row.length}"]


def _about(row: Row) -> Mapping[str, Any]:
    return row.probe or {}


def _name(rows: Sequence[Row]) -> str:
    return file_name(f"{rows[0].task}_{_about(rows[0])['format']}_state_bytes")
