"""The page of sweeps: verdicts first, then tables that sort and filter, then figures; one file that needs no network.

Every number is read from result rows, errors of failed cells, and histories.
"""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from hf_memory.reports.plotting import png
from hf_memory.reports.study_axes import label_of, to_csv
from hf_memory.reports.study_plots import Drawing, draw_study
from hf_memory.reports.study_tables import PageTable, cell_table, place_tables, to_markdown, verdict_table
from hf_memory.storage import write_bytes, write_text
from hf_memory.studies.judging import judge_study
from hf_memory.studies.outcomes import Study, find_records, read_study

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
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
input { font: inherit; padding: .15rem .5rem; width: 16rem; } img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; } .note { color: #555; font-size: .9rem; } figure { margin: 1.5rem 0; }
.problem { background: #fdecea; border-left: 4px solid #b3261e; padding: .5rem 1rem; }
.agrees, .disagrees, .undecided { font-weight: bold; white-space: nowrap; }
.agrees { color: #14612e; } .disagrees { color: #a3260f; } .undecided { color: #6b5b00; }
tr.level td { color: #666; font-style: italic; }
</style>
</head>
<body>
{% macro show(table) %}
<h3>{{ table.title }}</h3>
<p class="note">{{ table.note }}</p>
{% if table.filter %}<p><label>Show rows with <input type="search" data-filter="{{ table.id }}"></label></p>
{% endif %}
<div class="wide"><table id="{{ table.id }}" class="sortable">
<thead><tr>
{% for name in table.columns %}<th scope="col"\
{% if table.lines and table.lines[0].cells[loop.index0].kind == "text" %} class="text"{% endif %}>\
<button type="button">{{ name }}</button></th>{% endfor %}</tr>
</thead><tbody>
{% for line in table.lines %}<tr{% if line.level %} class="level"{% endif %}>\
{% for cell in line.cells %}<td{% if cell.kind %} class="{{ cell.kind }}"{% endif %}\
{% if cell.key is not none %} data-key="{{ cell.key }}"{% endif %}>{{ cell.text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endmacro %}
<h1>{{ heading }}</h1>
{% for problem in problems %}<p class="problem">{{ problem }}</p>
{% endfor %}
{% for section in sections %}
<h2 id="{{ section.id }}">{{ section.title }}</h2>
<p><b>Claim.</b> {{ section.claim }} <span class="note">({{ section.source }})</span></p>
<p class="note">{{ section.paper }}</p>
{% for line in section.notes %}<p class="note">{{ line }}</p>
{% endfor %}
{{ show(section.tables[0]) }}
{% for figure in section.figures %}
<figure><img alt="{{ figure.caption }}" src="data:image/png;base64,{{ figure.image }}">
<figcaption class="note">{{ figure.caption }} Files: {{ figure.name }}.svg, .png, .csv.</figcaption></figure>
{% endfor %}
{% for table in section.tables[1:] %}{{ show(table) }}{% endfor %}
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
    const level = row => Number(row.classList.contains("level"));  // chance and baselines stay below
    rows.sort((a, b) => level(a) - level(b) || sign * compare(keyOf(a.cells[column]), keyOf(b.cells[column])));
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
    files[f"{name}.md"] = "\n".join(to_markdown(table) for table in tables[:-1]).encode()  # all but the single runs
    figures = []
    for drawing in drawings:
        own = _drawing_files(drawing)
        file = f"{drawing.name}-{recipe.profile}"
        files.update({f"{file}.{ending}": content for ending, content in own.items()})
        image = base64.b64encode(own["png"]).decode()
        figures.append({"name": file, "caption": drawing.caption, "image": image})
    section = {
        "id": name,
        "title": f"{recipe.title or recipe.name}, profile {recipe.profile}",
        "claim": recipe.claim,
        "source": recipe.source,
        "paper": recipe.paper,
        "notes": _notes(study),
        "tables": tables,
        "figures": figures,
    }
    return section, files


def _drawing_files(drawing: Drawing) -> dict[str, bytes]:
    """Image, vectors and numbers of a figure by ending. Each is drawn once, since drawing moves the layout."""
    return {"png": png(drawing.figure), "svg": svg(drawing.figure), "csv": drawing.table.encode()}


def svg(figure: Figure) -> bytes:
    """The figure as SVG, without a date in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _notes(study: Study) -> list[str]:
    """Settings, what is missing, and the positive control, a sentence each."""
    recipe, results = study.recipe, study.results
    known = [result for result in results if result.is_known]
    failed = [result for result in results if result.has_diverged or result.error]
    rows = [row for result in results for row in result.rows.values()]
    notes = [
        f"{len(known)} of {len(results)} runs have ended; {len(failed)} failed or diverged and count as chance. "
        f"Sized by {recipe.sizing['by'].replace('_', ' ')}; metric {recipe.metric_name.replace('_', ' ')}."
    ]
    if rows:
        texts = {f"{row.stop_rule}; {row.schedule}; optimiser groups {row.optim_groups}" for row in rows}
        versions = sorted({row.data_version for row in rows})
        notes.append(f"Training: {' | '.join(sorted(texts))}. Data version {', '.join(versions)}.")
    if recipe.sizing["by"] != "hidden":
        sizes = [f"{label_of(size['place'])}: {size['reached']:,} of {size['target']:,}" for size in study.sizes]
        notes.append(f"{recipe.sizing['by'].replace('_', ' ')}, reached of wanted: {'; '.join(sizes)}.")
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


def _table_csv(table: PageTable) -> str:
    return to_csv(table.columns, [[cell.text for cell in line.cells] for line in table.lines])


def _footer(studies: Sequence[Study]) -> str:
    """Where the numbers come from."""
    rows = [row for study in studies for result in study.results for row in result.rows.values()]
    versions = sorted({f"{name} {version}" for row in rows for name, version in row.versions.items()})
    devices = sorted({f"{row.device}, {row.backend} backend" for row in rows})
    return f"{len(rows)} rows of {len({row.cell for row in rows})} runs on {'; '.join(devices)}. {', '.join(versions)}."
