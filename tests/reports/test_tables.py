"""Tables are written as Markdown and CSV without losing a mark."""

from hf_memory.reports.tables import PageTable, TableCell, TableLine, markdown_table, to_csv, to_markdown


def table(*lines: tuple[str, ...], columns: tuple[str, ...] = ("a|b", "empty", "c")) -> PageTable:
    return PageTable("x", "Title", "Note.", columns, tuple(TableLine(tuple(map(TableCell, line))) for line in lines))


def test_markdown_leaves_out_empty_columns_and_escapes_bars():
    text = to_markdown(table(("c|d", "", "two\nlines"), ("e\\f", "", "")))
    assert text.splitlines() == [
        *("### Title", "", "Note.", ""),
        *("| a\\|b | c |", "|---|---|", "| c\\|d | two lines |", "| e\\\\f |  |"),
    ]


def test_a_table_without_lines_is_said_to_have_none():
    assert to_markdown(table()) == "### Title\n\nNone.\n"


def test_any_value_can_stand_in_a_markdown_table():
    assert markdown_table(["", 32], [("lstm", 0.5)]) == "|  | 32 |\n|---|---|\n| lstm | 0.5 |"


def test_csv_holds_every_text():
    found = table(("c|d", "", 'q"'))
    assert found.texts() == [["c|d", "", 'q"']]
    assert to_csv(found.columns, found.texts()) == 'a|b,empty,c\nc|d,,"q"""\n'


def test_a_text_that_begins_like_a_formula_stays_a_text_and_numbers_stay_numbers():
    lines = [("=1+1", "-0.5", -0.5), ("@x", "lstm", 3), ("-cmd", "1e-3", "+")]
    assert to_csv(("arm", "value", "other"), lines) == "arm,value,other\n'=1+1,-0.5,-0.5\n'@x,lstm,3\n'-cmd,1e-3,'+\n"


def test_columns_that_lead_stand_behind_the_first_one_and_every_column_stands_once():
    table = PageTable("id", "title", "", ("arm", "rate", "value"), (TableLine(tuple(map(TableCell, "abc"))),))
    led = table.led_by("value", "arm", "nowhere")
    assert (led.columns, led.texts()) == (("arm", "value", "rate"), [["a", "c", "b"]])
