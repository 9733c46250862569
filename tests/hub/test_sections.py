"""The section of results: a figure and a table for each study."""

from hf_memory.hub.sections import FIGURES, results_section
from tests.hub.rows import row


def test_each_study_has_its_figure_and_its_table() -> None:
    rows = [row("test_32", 0.96), row("test_64", 0.625), row("test_32", task="mqar", task_knobs={"num_kv_pairs": 4})]
    first, second = results_section(rows).split("### ")[1:]
    assert first.startswith("bit_parity, trained at 32\n\ntoken accuracy on 96,000 targets per test length;")
    assert f"![token_accuracy by test length]({FIGURES}/bit_parity_at_32_token_accuracy.png)" in first
    assert first.rstrip().splitlines()[-5:] == [
        "|  | 32 | 64 |",
        "|---|---|---|",
        "| lru | 0.960 | 0.625 |",
        "| chance | 0.500 | 0.500 |",
        "| all zero | 0.450 | 0.450 |",
    ]
    assert second.startswith("mqar (num_kv_pairs 4), trained at 32")


def test_a_study_without_test_lengths_lists_its_splits() -> None:
    text = results_section([row("validation", 0.9)])
    assert text.splitlines()[2:] == ["| split | length | value |", "|---|---|---|", "| validation | 32 | 0.900 |"]
