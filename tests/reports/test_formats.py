"""Numbers look the same wherever they stand."""

import io
import math

from rich.console import Console

from hf_memory.hub.sections import results_section
from hf_memory.reports.formats import by_seed, count, rate, span, spread
from hf_memory.reports.report import write_page
from hf_memory.reports.terminal import length_tables
from tests.reports.rows import make_row


def test_page_card_and_terminal_write_a_value_alike(tmp_path):
    rows = [make_row(value=value, seed=seed) for seed, value in enumerate((0.98765, 1.0))]
    console = Console(file=io.StringIO(), width=200)
    console.print(*length_tables(rows))
    page = write_page(rows, tmp_path, "Alike").read_text()
    for text in (page, results_section(rows), console.file.getvalue()):
        assert "0.994 (0.988, 1.000)" in text
        assert "token accuracy on 400 targets" in text


def test_ranges_name_one_number_where_all_are_equal():
    assert spread([0.12345]) == "0.123"
    assert span(iter([12345, 12345])) == "12,345"
    assert span([]) == "unknown"


def test_neighbouring_rates_stay_apart():
    assert rate(0.00215443) != rate(0.0021544)
    assert count(2.5e6) == "2,500,000"


def test_what_is_no_number_is_said_in_words():
    assert by_seed({0: math.inf, 1: math.nan, 2: 0.5}.values()) == "never, none, 0.5"
