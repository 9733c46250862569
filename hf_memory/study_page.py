"""The page of sweeps: verdicts first, then tables that sort and filter, then figures; one file that needs no network.

Every number is read from result rows, errors of failed cells, and histories.
"""

import base64
import dataclasses
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from hf_memory.judging import Judgement, judge_study
from hf_memory.metrics import extrapolation_length
from hf_memory.outcomes import Result, Study, find_records, read_study
from hf_memory.plotting import png
from hf_memory.storage import write_bytes, write_text
from hf_memory.studies import binomial_interval, seeds_that_pass
from hf_memory.study_plots import Drawing, draw_study, label_of, to_csv

TICK = 0.9
"""Level above which a run passes in the table of ticks, and a length counts as reached."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ heading }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h3 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top; }
th:first-child, td:first-child, .text { text-align: left; } thead th { border-bottom: 2px solid #444; }
th button { font: inherit; font-weight: bold; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " \\2191"; } th[aria-sort=descending] button::after { content: " \\2193"; }
input { font: inherit; padding: .15rem .5rem; width: 16rem; } img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; } .note { color: #555; font-size: .9rem; } figure { margin: 1.5rem 0; }
.problem { background: #fdecea; border-left: 4px solid #b3261e; padding: .5rem 1rem; }
.agrees, .disagrees, .undecided { font-weight: bold; white-space: nowrap; }
.agrees { color: #14612e; } .disagrees { color: #a3260f; } .undecided { color: #6b5b00; }
tr.level td { color: #666; font-style: italic; }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
{% for problem in problems %}<p class="problem">{{ problem }}</p>
{% endfor %}
{% for section in sections %}
<h2 id="{{ section.id }}">{{ section.title }}</h2>
<p><b>Claim.</b> {{ section.claim }} <span class="note">({{ section.source }})</span></p>
<p class="note">{{ section.paper }}</p>
{% for line in section.notes %}<p class="note">{{ line }}</p>
{% endfor %}
{% for table in section.tables %}
<h3>{{ table.title }}</h3>
<p class="note">{{ table.note }}</p>
{% if table.filter %}<p><label>Show rows with <input type="search" data-filter="{{ table.id }}"></label></p>{% endif %}
<div class="wide"><table id="{{ table.id }}" class="sortable">
<thead><tr>{% for name in table.columns %}<th scope="col"><button type="button">{{ name }}</button></th>{% endfor %}</tr>
</thead><tbody>
{% for line in table.lines %}<tr{% if line.level %} class="level"{% endif %}>\
{% for cell in line.cells %}<td{% if cell.kind %} class="{{ cell.kind }}"{% endif %}\
{% if cell.key is not none %} data-key="{{ cell.key }}"{% endif %}>{{ cell.text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}
{% for figure in section.figures %}
<figure><img alt="{{ figure.caption }}" src="data:image/png;base64,{{ figure.image }}">
<figcaption class="note">{{ figure.caption }} Files: {{ figure.name }}.svg, .png, .csv.</figcaption></figure>
{% endfor %}
{% endfor %}
<p class="note">{{ footer }}</p>
<script>
function keyOf(cell) {
  const text = cell.dataset.key ?? cell.textContent;
  return text !== "" && !isNaN(text) ? Number(text) : text;
}
function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
  return typeof a === "number" ? -1 : 1;
}
document.querySelectorAll("table.sortable").forEach(table => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => sign * compare(keyOf(a.cells[column]), keyOf(b.cells[column])));
    rows.forEach(row => table.tBodies[0].append(row));
  }));
});
document.querySelectorAll("input[data-filter]").forEach(input => input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\\s+/).filter(word => word);
  for (const row of document.getElementById(input.dataset.filter).tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
}));
</script>
</body>
</html>
"""


@dataclasses.dataclass(frozen=True)
class TableCell:
    """A text, the number by which it is sorted, and its class."""

    text: str
    key: float | None = None
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class TableLine:
    """A line of a table; a level is a chance level or a baseline."""

    cells: tuple[TableCell, ...]
    level: bool = False


@dataclasses.dataclass(frozen=True)
class PageTable:
    """A table of the page."""

    id: str
    title: str
    note: str
    columns: tuple[str, ...]
    lines: tuple[TableLine, ...]
    filter: bool = True


def write_study_page(results: str | Path, out: str | Path, heading: str = "Memory of sequence mixers") -> Path:
    """Write ``index.html`` with every sweep below a folder, and SVG, PNG and CSV of each figure and table.

    Raises:
        ValueError: If there is no sweep, a record is damaged, or rows are of several data versions in one sweep.
    """
    out = Path(out)
    records = find_records(Path(results))
    if not records:
        raise ValueError(f"results: {str(results)!r} holds no record of a sweep")
    sections, files, problems = [], dict[str, bytes](), list[str]()
    seen = [read_study(record) for record in records]
    for study in seen:
        section, own = _section(study)
        sections.append(section)
        files.update(own)
        problems += study.problems
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE)
    page = template.render(heading=heading, problems=problems, sections=sections, footer=_footer(seen))
    # Everything was computed before the first file is written, so that an error leaves nothing half-made.
    for name, content in files.items():
        write_bytes(out / name, content)
    return write_text(out / "index.html", page)


def _section(study: Study) -> tuple[dict[str, Any], dict[str, bytes]]:
    """One sweep of the page, and its files."""
    recipe, name = study.recipe, f"{study.recipe.name}-{study.recipe.profile}"
    tables = [verdict_table(judge_study(study), f"{name}-verdicts"), *place_tables(study, name)]
    tables += [cell_table(study, f"{name}-cells")]
    drawings = draw_study(study)
    files = {f"{table.id}.csv": _table_csv(table).encode() for table in tables}
    for drawing in drawings:
        files.update(_drawing_files(study, drawing))
    section = {
        "id": name,
        "title": f"{recipe.title or recipe.name}, profile {recipe.profile}",
        "claim": recipe.claim,
        "source": recipe.source,
        "paper": recipe.paper,
        "notes": _notes(study),
        "tables": tables,
        "figures": [
            {
                "name": f"{d.name}-{recipe.profile}",
                "caption": d.caption,
                "image": base64.b64encode(png(d.figure)).decode(),
            }
            for d in drawings
        ],
    }
    return section, files


def _drawing_files(study: Study, drawing: Drawing) -> dict[str, bytes]:
    name = f"{drawing.name}-{study.recipe.profile}"
    contents = {"png": png(drawing.figure), "svg": svg(drawing.figure), "csv": drawing.table.encode()}
    return {f"{name}.{ending}": content for ending, content in contents.items()}


def svg(figure: Figure) -> bytes:
    """The figure as SVG, without a date in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _notes(study: Study) -> list[str]:
    """Settings, what is missing, and the positive control, a sentence each."""
    recipe, results = study.recipe, study.results
    known = [result for result in results if result.is_known]
    failed = [result for result in results if result.has_failed]
    rows = [row for result in results for row in result.rows.values()]
    notes = [
        f"{len(known)} of {len(results)} runs have ended, {len(failed)} of them failed or diverged and count as chance. "
        f"Sized by {recipe.sizing['by'].replace('_', ' ')}; metric {recipe.metric_name.replace('_', ' ')}."
    ]
    if rows:
        texts = {f"{row.stop_rule}; {row.schedule}; optimiser groups {row.optim_groups}" for row in rows}
        versions = sorted({row.data_version for row in rows})
        notes.append(f"Training: {' | '.join(sorted(texts))}. Data version {', '.join(versions)}.")
    if recipe.profile == "smoke":
        notes.append("The smoke profile proves nothing but that everything is in place.")
    control = study.control()
    if control is not None and recipe.control is not None:
        verdict = "works" if control[1] else "does not work, so nothing is decided"
        arms = ", ".join(recipe.control["arms"])
        notes.append(
            f"Positive control ({arms}): {control[0]:.3f}, wanted {recipe.control['at_least']:g}; it {verdict}."
        )
    return notes


def verdict_table(judgements: Sequence[Judgement], name: str) -> PageTable:
    """What was expected, and what came of it."""
    lines = []
    for judgement in judgements:
        expectation = judgement.expectation
        kind = "undecided" if judgement.verdict == "not decided" else judgement.verdict
        lines.append(
            TableLine(
                (
                    TableCell(expectation.claim, kind="text"),
                    TableCell(judgement.verdict, kind=kind),
                    TableCell(_numbers(list(judgement.left.values()))),
                    TableCell(_numbers(list(judgement.right.values()))),
                    TableCell(judgement.reason, kind="text"),
                    TableCell(expectation.text, kind="text"),
                    TableCell(expectation.because, kind="text"),
                )
            )
        )
    columns = ("claim", "verdict", "left, by seed", "right, by seed", "why", "measured", "because")
    note = "A relation holds where two thirds of the seeds say so; it is not decided where neither side has two thirds."
    return PageTable(name, "Verdicts", note, columns, tuple(lines), filter=False)


def place_tables(study: Study, name: str) -> list[PageTable]:
    """One table for the chosen rates, one for the fixed one, and one of ticks for several test lengths."""
    tables = [_place_table(study, f"{name}-chosen", "At the chosen learning rates", "chosen")]
    if study.recipe.fixed_learning_rate is not None and len(study.recipe.learning_rates) > 1:
        title = f"With learning rate {study.recipe.fixed_learning_rate:g} for all"
        tables.append(_place_table(study, f"{name}-fixed", title, "fixed"))
    ticks = tick_table(study, f"{name}-ticks")
    return [*tables, ticks] if ticks else tables


def _place_table(study: Study, name: str, title: str, rate: str) -> PageTable:
    metric, axes = study.recipe.metric_name, tuple(study.recipe.grid)
    splits = list(dict.fromkeys(split for result in study.results for split in result.rows))
    lines = []
    for place in study.places():
        results = [result for result in study.at_rate(place, rate) or [] if result.is_known]
        if not results:
            continue
        choice = study.choice(place)
        first = next((row for result in results for row in result.rows.values()), None)
        tried = len(choice.curve) if choice and rate == "chosen" else 1
        edge = ", on the edge" if choice and choice.on_edge and rate == "chosen" else ""
        lines.append(
            TableLine(
                (
                    TableCell(str(place["arm"])),
                    *(TableCell(str(place[axis])) for axis in axes),
                    TableCell(
                        f"{results[0].cell.learning_rate:.3g} (best of {tried}{edge})", results[0].cell.learning_rate
                    ),
                    TableCell(str(len(results))),
                    _number(first.parameters_per_block if first else None),
                    _number(first.parameters_non_embedding if first else None),
                    _number(max((row.state_bytes for r in results for row in r.rows.values()), default=None)),
                    _number(_mean_seconds(results)),
                    TableCell("" if choice is None else f"{choice.best_per_seed:.3f}"),
                    *(_spread([r.value(s, metric) for r in results if _has(r, s)]) for s in splits),
                )
            )
        )
    columns = (
        "arm", *axes, "learning rate", "seeds", "parameters per block", "parameters of blocks", "state bytes",
        "seconds", "mean of seeds' bests", *splits,
    )  # fmt: skip
    note = (
        f"{metric.replace('_', ' ')}: mean over seeds, smallest and largest in brackets. State bytes are those at the "
        "longest split. Chance levels and baselines stand below."
    )
    return PageTable(name, title, note, columns, (*lines, *_level_lines(study, splits, len(axes))))


def _has(result: Result, split: str) -> bool:
    """Whether a result has a value on a split; a failed one has chance there if its data have the split."""
    return split in result.rows or (result.error is not None and split in result.cell.experiment().specification.splits)


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
                    found.setdefault((data, name.replace("_", " ")), {})[split] = value
    position = list(study.recipe.grid).index("config") if "config" in study.recipe.grid else None
    lines = []
    for (data, name), values in found.items():
        place = [TableCell(data if index == position else "") for index in range(axes)]
        facts = [TableCell("")] * 7
        cells = [TableCell(f"{values[split]:.3f}" if split in values else "") for split in splits]
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
            length: [r.value(f"test_{length}", metric) for r in results if _has(r, f"test_{length}")]
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
    note = f"Seeds above {TICK:g} of all seeds, at the chosen rate, with the 95 % interval of one run in brackets. "
    if by_length:
        note += "Then accuracy per step, and what independent errors at the shortest length would give."
    return PageTable(name, "Ticks", note, ("arm", "reaches", *map(str, lengths)), tuple(lines))


def _tick(values: Sequence[float], length: int, first: Sequence[float], first_length: int, whole: bool) -> TableCell:
    """How many seeds pass at one length; for whole-sequence metrics with the accuracy per step."""
    if not values:
        return TableCell("")
    passed, total = seeds_that_pass(values, TICK)
    low, high = binomial_interval(passed, total)
    mark = "✓" if sum(values) / total > TICK else "✗"
    text = f"{mark} {passed}/{total} ({low:.2f}, {high:.2f})"
    mean, start = sum(values) / total, sum(first) / len(first)
    if whole:
        text += f", {mean ** (1 / length):.4f} a step, independent {start ** (length / first_length):.3f}"
    return TableCell(text, mean)


def cell_table(study: Study, name: str) -> PageTable:
    """Every run with its outcome, evaluations and cost."""
    metric, axes = study.recipe.metric_name, tuple(study.recipe.grid)
    splits = list(dict.fromkeys(split for result in study.results for split in result.rows))
    lines = []
    for result in study.results:
        row = next(iter(result.rows.values()), None)
        outcome = result.error or ("diverged" if result.has_failed else "finished" if row else "missing")
        training = result.cell.training
        lines.append(
            TableLine(
                (
                    TableCell(result.arm),
                    *(TableCell(str(result.cell.place[axis])) for axis in axes),
                    TableCell(result.cell.stage),
                    TableCell(f"{result.cell.learning_rate:g}"),
                    TableCell(str(result.cell.seed)),
                    TableCell(outcome, kind="text"),
                    _number(row.steps if row else None),
                    _number(row.tokens if row else None),
                    _number(row.train_seconds if row else None),
                    TableCell(f"{training['clip']:g}"),
                    TableCell(str(training["optim_groups"])),
                    TableCell(row.stop_rule or "" if row else "", kind="text"),
                    TableCell(str(result.cell.evaluate["points"])),
                    *(
                        TableCell(f"{result.value(s, metric):.4f}" if result.is_known and _has(result, s) else "")
                        for s in splits
                    ),
                    TableCell(result.digest),
                )
            )
        )
    columns = (
        "arm", *axes, "stage", "learning rate", "seed", "outcome", "steps", "tokens", "seconds", "clip", "groups",
        "stop rule", "evaluations", *splits, "cell",
    )  # fmt: skip
    return PageTable(name, "All runs", f"{metric.replace('_', ' ')} of each run.", columns, tuple(lines))


def _mean_seconds(results: Sequence[Result]) -> float | None:
    """Mean training time of the runs that have one."""
    seconds = [next(iter(r.rows.values())).train_seconds for r in results if r.rows]
    known = [value for value in seconds if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> TableCell:
    return TableCell("") if value is None else TableCell(f"{value:,.0f}", float(value))


def _spread(values: Sequence[float]) -> TableCell:
    """Mean of the values, with their range where there are several."""
    if not values:
        return TableCell("")
    mean = sum(values) / len(values)
    text = f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} ({min(values):.3f}, {max(values):.3f})"
    return TableCell(text, mean)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" if math.isfinite(value) else "never" if value > 0 else "none" for value in values)


def _table_csv(table: PageTable) -> str:
    return to_csv(table.columns, [[cell.text for cell in line.cells] for line in table.lines])


def _footer(studies: Sequence[Study]) -> str:
    """Where the numbers come from."""
    rows = [row for study in studies for result in study.results for row in result.rows.values()]
    versions = sorted({f"{name} {version}" for row in rows for name, version in row.versions.items()})
    devices = sorted({f"{row.device}, {row.backend} backend" for row in rows})
    return f"{len(rows)} rows of {len({row.cell for row in rows})} runs on {'; '.join(devices)}. {', '.join(versions)}."
