"""REPRODUCTION.md says what the committed rows say, and the rows are those of the committed recipes."""

import re
from pathlib import Path

import pytest

from hf_memory.reports.study_tables import verdict_table
from hf_memory.reports.tables import to_markdown
from hf_memory.studies.judging import judge_study
from hf_memory.studies.outcomes import find_records, read_study
from hf_memory.studies.plans import make_settings, search_cells
from hf_memory.studies.recipes_yaml import load_recipe

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "REPRODUCTION.md").read_text()
RECORDS = find_records(ROOT / "examples" / "results")
OPEN_CLAIMS = 2
"""Claims that may be left open."""


@pytest.fixture(
    scope="module", params=RECORDS, ids=[f"{path.parent.parent.name}-{path.parent.name}" for path in RECORDS]
)
def study(request):
    return read_study(request.param)


def test_something_was_run():
    assert RECORDS


def test_the_rows_are_those_of_the_committed_recipe(study):
    recipe = load_recipe(ROOT / "examples" / "recipes" / f"{study.recipe.name}.yaml", study.recipe.profile)
    assert study.recipe.to_json() == recipe.to_json()
    assert not study.problems
    held = {result.digest for result in study.results}
    assert {cell.digest for cell in search_cells(recipe, make_settings(recipe), recipe.learning_rates)} <= held
    for result in study.results:
        assert result.cell.digest == result.digest, f"{result.cell.name} was run from other settings"
        if study.complete:
            assert result.rows or result.error, f"{result.cell.name} has no rows"


def test_the_table_of_verdicts_is_in_the_text(study):
    table = to_markdown(verdict_table(judge_study(study), "verdicts")).splitlines()
    head = next(index for index, line in enumerate(table) if line.startswith("| claim"))
    lines = TEXT.splitlines()
    for line in table[head:]:
        if line and not set(line) <= set("|-"):
            assert line in lines, f"REPRODUCTION.md lacks the line\n{line}"


def test_no_verdict_stands_in_the_text_that_no_study_gave():
    judged = {judgement.expectation.claim for path in RECORDS for judgement in judge_study(read_study(path))}
    told = [line.split(" | ")[0].removeprefix("| ") for line in TEXT.splitlines()
            if re.search(r"\| (agrees|disagrees|not decided) \|", line)]  # fmt: skip
    assert sorted(told) == sorted(judged)


def test_few_claims_are_left_open_and_each_has_the_curve_of_its_control():
    left = [
        (study.recipe.name, judgement)
        for study in map(read_study, RECORDS)
        if study.complete
        for judgement in judge_study(study)
        if judgement.verdict == "not decided"
    ]
    assert len(left) <= OPEN_CLAIMS
    for name, _ in left:
        assert re.search(rf"!\[[^\]]*control[^\]]*\]\(examples/results/{name}/[^)]+\.png\)", TEXT), name
