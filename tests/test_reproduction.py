"""REPRODUCTION.md says what the committed rows say, and the rows are those of the committed recipes."""

import re
from pathlib import Path

import pytest

from hf_memory.reports.committed_figures import drawn_from
from hf_memory.reports.profiles import read_profiles
from hf_memory.reports.reproduction import read_reproductions, render
from hf_memory.studies.outcomes import find_records, read_study
from hf_memory.studies.plans import make_settings, search_cells
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.studies.suites import load_suite

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "REPRODUCTION.md").read_text()
RESULTS = ROOT / "examples" / "results"
SUITES = read_profiles(ROOT)
RECORDS = [path for path in find_records(RESULTS) if path.relative_to(RESULTS).parts[0] not in SUITES]
SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)


def test_the_page_is_what_its_template_gives_from_recipes_and_rows():
    assert render(ROOT, read_reproductions(ROOT), SUITES) == TEXT, (
        "python -m hf_memory.reports.reproduction writes it anew"
    )


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "examples" / "recipes").glob("*.yaml"))])
def test_each_recipe_has_its_section_with_source_and_every_claim(name):
    found = read_reproductions(ROOT)[name]
    heading = re.compile(rf"((Before|After) )?R\d+: {re.escape(found.recipe.title)}\n")
    section = next(text for text in SECTIONS if heading.match(text))
    assert f"- **Source.** {found.recipe.source}\n" in section
    assert f"- **What differs from the source.** {found.recipe.paper}\n" in section
    claims = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
    assert [item.claim for item in found.recipe.expectations] == claims[1 : 1 + len(found.recipe.expectations)]
    last = SECTIONS[-1]
    assert all(f"| {name} | {entry['claim']} |" in last for entry in found.recipe.changed)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/figures/*")), ids=lambda path: path.name)
def test_every_figure_is_drawn_from_the_committed_rows_and_shown(path):
    found = {**read_reproductions(ROOT), **SUITES}[path.parents[1].name]
    assert drawn_from(path) == found.digest_of(path.stem), "python -m hf_memory.reports.reproduction draws it anew"
    assert f"]({path.relative_to(ROOT).as_posix()})" in TEXT


@pytest.mark.parametrize("name", SUITES)
def test_the_rows_of_a_suite_are_those_of_its_file(name):
    found = SUITES[name]
    for arm, scores in found.scores.items():
        cell = scores[0].study.results[0].cell
        suite = load_suite(name, cell.mixer, label=arm, model=scores[0].entry.recipe.arms[arm]["model"])
        for entry, one in zip(suite.entries, scores, strict=True):
            assert one.study.recipe.to_json() == entry.recipe.to_json()
            for result in one.study.results:
                assert not result.problems, f"{result.cell.name} is damaged"
                assert result.cell.digest == result.digest, f"{result.cell.name} was run from other settings"


@pytest.mark.parametrize("record", RECORDS, ids=[f"{path.parent.parent.name}-{path.parent.name}" for path in RECORDS])
def test_the_rows_are_those_of_the_committed_recipe(record):
    study = read_study(record)
    recipe = load_recipe(ROOT / "examples" / "recipes" / f"{study.recipe.name}.yaml", study.recipe.profile)
    assert study.recipe.to_json() == recipe.to_json()
    held = {result.digest for result in study.results}
    settings = make_settings(recipe)
    if recipe.first_depth is not None:  # greater depths join where smaller ones did not do
        settings = [setting for setting in settings if setting.place["depth"] == recipe.grid["depth"][0]]
    assert {cell.digest for cell in search_cells(recipe, settings, recipe.learning_rates)} <= held
    for result in study.results:
        assert not result.problems, f"{result.cell.name} is damaged"
        assert result.cell.digest == result.digest, f"{result.cell.name} was run from other settings"
