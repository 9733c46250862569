"""The identity of published runs: what today's code calls each of them is the name of the file that holds its rows."""

import json
from pathlib import Path

import pytest

from hf_memory.experiments.results import read_definition
from hf_memory.storage import digest
from hf_memory.studies.outcomes import find_records, read_cell

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDS = [*find_records(EXAMPLES / "results"), *find_records(EXAMPLES / "withdrawn")]


def test_there_are_published_runs():
    cells = [cell for record in RECORDS for cell in json.loads(record.read_text())["cells"]]
    assert len({cell["digest"] for cell in cells}) >= 437


@pytest.mark.parametrize("record", RECORDS, ids=[f"{path.parents[2].name}-{path.parents[1].name}" for path in RECORDS])
def test_a_move_of_code_renames_no_run(record):
    for values in json.loads(record.read_text())["cells"]:
        name = values.pop("digest")
        assert read_cell(values).digest == name, values["place"]
        path = record.parent / f"{name}.jsonl"
        if path.exists():
            assert digest(read_definition(path)) == name
