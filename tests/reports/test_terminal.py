"""Tables of the terminal show what the pages show."""

from hf_memory.reports.report import FACTS
from hf_memory.reports.terminal import cells_table, length_tables
from hf_memory.studies.sweep import Line
from tests.reports.rows import make_row, make_rows


def columns_of(table):
    return {column.header: list(column.cells) for column in table.columns}


def test_a_table_for_each_study_with_levels_below():
    rows = [*make_rows("lstm", (1.0, 0.9, 0.8))[1], make_row("gru", task="mqar")]
    parity, recall = length_tables(rows)
    columns = columns_of(parity)
    assert list(columns) == ["mixer", "32", "64", "128", *FACTS]
    assert columns["mixer"] == ["lstm", "chance", "all zero"]
    assert columns["64"] == ["0.900", "0.500", "0.450"]
    assert columns["state bytes"] == ["1,024 to 4,096", "", ""]
    assert [row.style for row in parity.rows] == [None, "dim", "dim"]
    assert (parity.title, recall.title) == ("bit_parity, trained at 32", "mqar, trained at 32")
    assert parity.caption.startswith("token accuracy on 400 targets per test length")


def test_cells_are_shown_with_sizes_and_times():
    lines = [
        Line("gru, width 8", "search", 2.15e-3, 0, 8, 1234, 5678, 64, 600.0),
        Line("gru, width 8", "final", None, 1, 8, 1234, 5678, 64, 42.0),
    ]
    table = cells_table("tiny, profile cpu", lines)
    assert table.title == "tiny, profile cpu"
    assert {name: cells for name, cells in columns_of(table).items() if name not in ("arm", "width", "seed")} == {
        "stage": ["search", "final"],
        "rate": ["0.00215", "chosen"],
        "per block": ["1,234"] * 2,
        "blocks": ["5,678"] * 2,
        "state bytes": ["64"] * 2,
        "time": ["10 min", "42 s"],
    }
