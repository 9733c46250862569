"""Cards of result rows, and where rows are read from; pushes are in ``test_push.py``."""

from pathlib import Path

import pytest
from huggingface_hub import DatasetCard

from hf_memory.experiments.results import write_cell
from hf_memory.hub.datasets import _results_card, recover_results
from tests.hub.rows import row
from tests.reports.rows import make_rows


def test_the_card_of_rows_names_both_tables_and_shows_every_study() -> None:
    rows = [row("test_32", 0.96), row("test_64", 0.625), row("test_32", 0.5, task="dyck", cell="c1")]
    card = _results_card("me/rows", rows)
    assert isinstance(card, DatasetCard)
    assert card.data.to_dict() == {
        "license": "apache-2.0",
        "task_categories": ["token-classification"],
        "size_categories": ["n<1K"],
        "tags": ["hf_memory", "results", "bit_parity", "dyck"],
        "configs": [
            {"config_name": "rows", "data_files": "rows.parquet", "default": True},
            {"config_name": "cells", "data_files": "cells.parquet"},
        ],
    }
    assert card.text.startswith("# rows\n\n3 result rows of 2 runs on bit_parity, dyck. The configuration `rows`")
    assert 'load_results("me/rows")' in card.text
    assert "| lru | 0.960 | 0.625 |" in card.text
    assert DatasetCard(card.content).content == card.content


def test_a_folder_is_read_here_and_damage_is_said(tmp_path: Path) -> None:
    definition, rows = make_rows("lstm", (1.0, 0.9, 0.8))
    write_cell(tmp_path, definition, rows)
    assert recover_results(str(tmp_path)) == (rows, [])
    damaged = write_cell(tmp_path, *make_rows("gru", (1.0, 0.9, 0.8)))
    damaged.write_text("")
    found, problems = recover_results(str(tmp_path))
    assert found == rows
    assert [damaged.name in problem for problem in problems] == [True]


def test_what_is_neither_here_nor_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no/such/folder"):
        recover_results("no/such/folder")
