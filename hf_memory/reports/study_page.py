"""The page of sweeps: verdicts first, then tables that sort and filter, then figures; one file that needs no network.

Every number is read from result rows and histories. What was planned and not measured is named at the top.
"""

from pathlib import Path
from typing import Any

from hf_memory.names import file_name
from hf_memory.reports.formats import count, share, words
from hf_memory.reports.pages import drawing_files, picture, write_single_page
from hf_memory.reports.study_axes import label_of
from hf_memory.reports.study_plots import draw_study
from hf_memory.reports.study_tables import PLACE_FACTS, RUN_FACTS, cell_table, place_tables
from hf_memory.reports.tables import PageTable, to_csv, to_markdown
from hf_memory.reports.verdict_plots import verdict_drawing
from hf_memory.reports.verdict_tables import changed_table, replication_table, verdict_table, window_table
from hf_memory.studies.judging import judge_study
from hf_memory.studies.outcomes import Study, find_records, read_study
from hf_memory.studies.replication import Replication, read_replication


def write_study_page(results: str | Path, out: str | Path, heading: str = "Memory of sequence mixers") -> Path:
    """Write ``index.html`` with every sweep below a folder, and SVG, PNG and CSV of each figure and table.

    Raises:
        ValueError: If there is no sweep that can be read. A damaged record, or one whose rows are of several data
            versions, is named at the top of the page and left out.
    """
    records = find_records(Path(results))
    if not records:
        raise ValueError(f"results: {str(results)!r} holds no record of a sweep")
    sections, files, problems = [], dict[str, bytes](), list[str]()
    seen = list[Study]()
    for record in records:
        try:
            study = read_study(record)
            section, own = _section(study, read_replication(record.parent))
        except ValueError as error:
            problems.append(str(error))
            continue
        seen.append(study)
        sections.append(section)
        files.update(own)
        problems += problems_of(study)
    if not seen:
        raise ValueError(f"results: no sweep of {str(results)!r} can be read: {'; '.join(problems)}")
    rows = [row for study in seen for result in study.results for row in result.rows.values()]
    return write_single_page(out, "study_page.html", files, rows, heading=heading, problems=problems, sections=sections)


def problems_of(study: Study) -> list[str]:
    """What was planned and not measured, a sentence each: lost, damaged, crashed and missing runs."""
    missing = [
        f"{result.cell.name} is missing"
        for result in study.results
        if study.complete and not result.rows and not result.error and not result.problems
    ]
    name = f"{study.recipe.name}, profile {study.recipe.profile}"
    return [f"{name}: {problem}" for problem in (*study.problems, *missing)]


def _section(study: Study, again: Replication | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    """One sweep of the page, and its files."""
    recipe, name = study.recipe, file_name(study.recipe.name, study.recipe.profile)
    judgements = judge_study(study)
    claims = [verdict_table(study, judgements, f"{name}-verdicts")]
    windows = window_table(study, f"{name}-windows")
    claims += [windows] if windows is not None else []
    claims += [replication_table(again, f"{name}-again")] if again is not None else []
    claims += [changed_table(recipe, f"{name}-changed")] if recipe.changed else []
    tables = [*place_tables(study, name), cell_table(study, f"{name}-cells")]
    verdicts = verdict_drawing(study, judgements)
    files = {f"{table.id}.csv": to_csv(table.columns, table.texts()).encode() for table in (*claims, *tables)}
    shown = (*claims, *tables[:-1])  # all but the single runs
    files[f"{name}.md"] = "\n".join(to_markdown(table) for table in shown).encode()
    figures = []
    for drawing in (*filter(None, [verdicts]), *draw_study(study)):
        own = drawing_files(drawing)
        file = file_name(f"{drawing.name}-{recipe.profile}")
        files.update({f"{file}.{ending}": content for ending, content in own.items()})
        caption = f"{drawing.caption} Files: {file}.svg, .png, .csv."
        figures.append(picture(own["svg"], drawing.alt or drawing.caption, caption))
    section = {
        "id": name,
        "title": f"{recipe.title or recipe.name}, profile {recipe.profile}",
        "facts": {"Claim": recipe.claim, "Source": recipe.source, "What differs from the source": recipe.paper},
        "notes": _notes(study),
        "claims": [table.led_by("verdict", "seeds") for table in claims],
        "tables": [table.led_by(*_leading(table)) for table in tables],
        "figures": figures,
    }
    return section, files


def _leading(table: PageTable) -> list[str]:
    """The columns of a table that hold its outcomes and values."""
    facts = {*PLACE_FACTS, *RUN_FACTS, "cell"} - {"outcome"}
    return [name for name in table.columns if name not in facts]


def runs_in_words(study: Study) -> str:
    """How many runs were measured, and what became of the others."""
    results = study.results
    known = [result for result in results if result.is_known]
    diverged = sum(result.has_diverged for result in known)
    crashed = sum(result.error is not None for result in results)
    text = f"{len(known)} of {len(results)} runs were measured"
    text += f"; {diverged} of them diverged and count as chance" if diverged else ""
    left = [result.overflows for result in known if result.overflows]
    where = ", ".join(sorted({split for splits in left for split in splits}))
    text += f"; {len(left)} left the range of floats on tests ({where}) and count as chance there" if left else ""
    text += f"; {crashed} crashed, which is no measurement" if crashed else ""
    return f"{text}."


def _notes(study: Study) -> list[str]:
    """Settings, what is missing, and the positive control, a sentence each."""
    recipe, results = study.recipe, study.results
    rows = [row for result in results for row in result.rows.values()]
    notes = [
        f"{runs_in_words(study)} Sized by {words(recipe.sizing['by'])}; metric {words(recipe.metric_name)}. "
        f"{'Each seed has rows of its own' if recipe.seeds['rows'] == 'own' else 'All seeds have the same rows'}."
    ]
    if rows:
        texts = {f"{row.stop_rule}; {row.schedule}; optimiser groups {row.optim_groups}" for row in rows}
        versions = sorted({row.data_version for row in rows})
        notes.append(f"Training: {' | '.join(sorted(texts))}. Data version {', '.join(versions)}.")
    if recipe.sizing["by"] != "hidden":
        sizes = [
            f"{label_of(size['place'])}: {count(size['reached'])} of {count(size['target'])}" for size in study.sizes
        ]
        notes.append(f"{words(recipe.sizing['by'])}, reached of wanted: {'; '.join(sizes)}.")
    if recipe.profile == "smoke":
        notes.append("The smoke profile proves nothing but that everything is in place.")
    control = study.control()
    if control is not None and recipe.control is not None:
        verdict = "works" if control[1] else "does not work, so nothing is decided"
        arms = ", ".join(recipe.control["arms"])
        notes.append(
            f"Positive control ({arms}): {share(control[0])}, wanted {recipe.control['at_least']:g}; it {verdict}."
        )
    return notes
