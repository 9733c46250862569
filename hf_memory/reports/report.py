"""One plain page of results: tables and figures in a single HTML file that needs no network.

Every number on the page is read from result rows.
"""

import base64
import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2

from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.experiments.results import SWEEP_ENDING, Row, recover_rows
from hf_memory.experiments.summary import best_learning_rate, check_comparable, curves, reference_levels, studies, title
from hf_memory.reports.plotting import figure_name, plot_length_curves, png
from hf_memory.storage import write_bytes, write_text

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ heading }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #444; }
tr.level td { color: #666; font-style: italic; } td.trained, th.trained { background: #eee; }
img { max-width: 100%; height: auto; } .wide { overflow-x: auto; } .note { color: #555; font-size: .9rem; }
.problem { background: #fdecea; border-left: 4px solid #b3261e; padding: .5rem 1rem; }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
{% for problem in problems %}<p class="problem">{{ problem }}</p>
{% endfor %}
{% for study in sections %}
<h2>{{ study.title }}</h2>
<p class="note">{{ study.note }} Lengths seen in training are shaded.</p>
<div class="wide"><table>
<thead><tr><th>mixer</th>{% for name in study.columns %}<th>{{ name }}</th>{% endfor %}
{% for length in study.lengths %}<th class="{{ study.shades[length] }}">{{ length }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for line in study.lines %}<tr{% if line.level %} class="level"{% endif %}><td>{{ line.name }}</td>
{% for cell in line.facts %}<td>{{ cell }}</td>{% endfor %}
{% for length, cell in line.cells %}<td class="{{ study.shades[length] }}">{{ cell }}</td>{% endfor %}
</tr>
{% endfor %}</tbody>
</table></div>
<img alt="{{ study.alt }}" src="data:image/png;base64,{{ study.image }}">
{% endfor %}
<p class="note">{{ footer }}</p>
</body>
</html>
"""

Reader = Callable[[str], tuple[list[Row], list[str]]]
"""Finds rows, and says what could not be read."""

FACTS = ("reaches", "seeds", "parameters", "state bytes", "learning rate", "steps", "seconds")
"""Columns beside the values. ``reaches`` is the longest test length up to which the mean over seeds is above 0.9."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table: an arm, the chance level or a baseline.

    Attributes:
        name: Name of the arm or level.
        facts: Texts under :data:`FACTS`; empty for levels.
        cells: Length and text of the value there.
        level: Whether the line is a level and not an arm.
    """

    name: str
    facts: tuple[str, ...]
    cells: tuple[tuple[int, str], ...]
    level: bool


def length_table(rows: Sequence[Row], metric: str | None = None) -> tuple[list[int], list[Line]]:
    """The table of one study: its test lengths, then a line per arm, the chance level, and the baselines.

    Equal baselines share a line. A value is the mean over seeds, with the smallest and largest in brackets where there
    are several.
    """
    found = curves(rows, metric)
    lengths = sorted({length for points in found.values() for length in points})
    lines = []
    for arm, points in found.items():
        own = [row for row in rows if row.arm == arm]
        cells = tuple((length, spread(points[length].values) if length in points else "") for length in lengths)
        lines.append(Line(arm, _facts(own, metric), cells, level=False))
    levels: dict[tuple[tuple[int, str], ...], list[str]] = {}
    for name, by_length in reference_levels(rows, metric).items():
        cells = tuple((length, f"{by_length[length]:.3f}" if length in by_length else "") for length in lengths)
        levels.setdefault(cells, []).append(name.replace("_", " "))
    for cells, names in levels.items():
        lines.append(Line(", ".join(names), ("",) * len(FACTS), cells, level=True))
    return lengths, lines


def spread(values: Sequence[float]) -> str:
    """Mean of the values, with their range where there are several."""
    mean = sum(values) / len(values)
    return f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} ({min(values):.3f}, {max(values):.3f})"


def _facts(rows: Sequence[Row], metric: str | None) -> tuple[str, ...]:
    """What is known of an arm besides its values, in the order of :data:`FACTS`."""
    rates = {row.learning_rate for row in rows}
    rate = best_learning_rate(rows, metric).learning_rate if len(rates) > 1 else rows[0].learning_rate
    chosen = [row for row in rows if row.learning_rate == rate]
    tried = {value for row in chosen for value in row.learning_rate_grid} | rates
    of_grid = f" (best of {len(tried)})" if len(tried) > 1 else ""
    seconds = {row.cell: row.train_seconds for row in chosen}
    points = curves(rows, metric)[rows[0].arm]
    return (
        str(extrapolation_length({length: point.values for length, point in points.items()})),
        str(len({row.seed for row in chosen})),
        _range([row.parameters for row in chosen]),
        _range([row.state_bytes for row in chosen if row.split.startswith("test_")]),
        "unknown" if rate is None else f"{rate:.3g}{of_grid}",
        _range([row.steps for row in chosen]),
        _range([None if value is None else round(value) for value in seconds.values()]),
    )


def _range(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "unknown"
    low, high = min(known), max(known)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def note(rows: Sequence[Row], metric: str | None = None) -> str:
    """A sentence that says what the values of a study are."""
    row = rows[0]
    targets = sorted({found.measured(metric).denominator for found in rows if found.split.startswith("test_")})
    counts = f"{targets[0]:,}" if targets[:1] == targets[-1:] else f"{targets[0]:,} to {targets[-1]:,}"
    name = (metric or row.headline).replace("_", " ")
    rules = ", ".join(sorted({found.stop_rule or "unknown" for found in rows}))
    schedules = ", ".join(sorted({found.schedule or "unknown" for found in rows}))
    return (
        f"{name} on {counts} targets per test length; data version {row.data_version}; training stopped: {rules}; "
        f"schedule: {schedules}."
    )


def study_csv(rows: Sequence[Row], metric: str | None = None) -> str:
    """The numbers behind a study's figure as CSV: one line per arm, length and seed."""
    check_comparable(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("arm", "mixer", "length", "seed", "learning_rate", "value", "targets", "chance", "cell"))
    for row in sorted(rows, key=lambda row: (row.arm, row.length, row.cell)):
        if row.split.startswith("test_"):
            found = row.measured(metric)
            writer.writerow((row.arm, row.mixer, row.length, row.seed, row.learning_rate, found.value,
                             found.denominator, found.chance, row.cell))  # fmt: skip
    return text.getvalue()


def write_report(
    results: str | Path, out: str | Path, heading: str = "Memory of sequence mixers", reader: Reader = recover_rows
) -> Path:
    """Write ``index.html`` with all studies of a results folder, and the PNG and CSV behind each figure.

    Args:
        results: The folder, one file, or whatever else ``reader`` finds.
        out: Folder of the page.
        heading: Title of the page.
        reader: Turns ``results`` into rows and a sentence for each thing that could not be read.

    Damaged files are named at the top of the page; what can be read of them is used. A folder with sweeps in it, or
    below it, gets the page of its sweeps instead, with their verdicts.

    Returns:
        The page.

    Raises:
        ValueError: If there are no rows, or rows of several data versions in one study.
    """
    if any(Path(results).rglob(f"*{SWEEP_ENDING}")):
        from hf_memory.reports.study_page import (
            write_study_page,  # with models and data behind it, which rows do not need
        )

        return write_study_page(results, out, heading)
    rows, problems = reader(str(results))
    if not rows:
        raise ValueError(f"results: {str(results)!r} holds no readable row: {'; '.join(problems)}")
    return write_page(rows, out, heading, problems)


def write_page(rows: Sequence[Row], out: str | Path, heading: str, problems: Sequence[str] = ()) -> Path:
    """Write the page of :func:`write_report` from rows at hand."""
    out = Path(out)
    sections, files = [], {}
    for study in studies(rows):
        image = png(plot_length_curves(study))
        name = figure_name(study)
        files[f"{name}.png"], files[f"{name}.csv"] = image, study_csv(study).encode()
        lengths, lines = length_table(study)
        low, high = study[0].train_length
        sections.append({
            "title": title(study),
            "note": note(study),
            "columns": FACTS,
            "lengths": lengths,
            "shades": {length: "trained" if low <= length <= high else "unseen" for length in lengths},
            "lines": lines,
            "alt": f"{study[0].headline} against test length",
            "image": base64.b64encode(image).decode(),
        })  # fmt: skip
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE)
    page = template.render(heading=heading, problems=problems, sections=sections, footer=_footer(rows))
    # Everything was computed before the first file is written, so that an error leaves nothing half-made.
    for name, content in files.items():
        write_bytes(out / name, content)
    return write_text(out / "index.html", page)


def _footer(rows: Sequence[Row]) -> str:
    """Where the numbers come from."""
    versions = sorted({f"{name} {version}" for row in rows for name, version in row.versions.items()})
    devices = sorted({f"{row.device}, backend {row.backend}" for row in rows})
    return f"{len(rows)} rows of {len({row.cell for row in rows})} runs on {'; '.join(devices)}. {', '.join(versions)}."
