"""The pages in a real browser: sorted and filtered by clicks, from disk and without a network."""

import contextlib
import shutil

import pytest

from hf_memory.reports.report import write_report
from tests.reports.study_examples import VALUES, recipe_of, stored

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; it comes with the system, not with Python packages."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        with contextlib.closing(opened):
            yield opened


@pytest.fixture
def page(browser, tmp_path):
    """The page of a small sweep, opened from disk; whatever the browser complains of is an error."""
    recipe = recipe_of()
    stored(tmp_path / "results" / "tiny", recipe, {**VALUES, ("gru", 1e-2, 0): 0.5})
    path = write_report(tmp_path / "results", tmp_path / "report")
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    opened, complaints = context.new_page(), list[str]()
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("requestfailed", lambda request: complaints.append(request.url))
    opened.goto(path.resolve().as_uri())
    yield opened
    context.close()
    assert not complaints


def texts(page, table, column):
    return page.locator(f"#{table} tbody tr:visible td:nth-child({column})").all_inner_texts()


def test_a_click_sorts_and_a_second_one_turns_the_order(page):
    table = "tiny-cpu-cells"
    heads = page.locator(f"#{table} thead th").all_inner_texts()
    column = heads.index("learning rate") + 1
    button = page.locator(f"#{table} thead th:nth-child({column}) button")
    button.click()
    rising = [float(text) for text in texts(page, table, column)]
    assert rising == sorted(rising)
    assert len(set(rising)) == 2
    head = page.locator(f"#{table} thead th:nth-child({column})")
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert [float(text) for text in texts(page, table, column)] == rising[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    first = page.locator(f"#{table} thead th:nth-child(1) button")
    first.click()
    names = texts(page, table, 1)
    assert names == sorted(names)
    assert head.get_attribute("aria-sort") is None


def test_words_filter_rows(page):
    table = "tiny-cpu-cells"
    every = texts(page, table, 1)
    field = page.locator(f"input[data-filter={table}]")
    field.fill("LSTM 0.01")
    kept = page.locator(f"#{table} tbody tr:visible").all_inner_texts()
    assert 0 < len(kept) < len(every)
    assert all("lstm" in text and "0.01" in text for text in kept)
    field.fill("no such row")
    assert texts(page, table, 1) == []
    field.fill("")
    assert texts(page, table, 1) == every


def test_every_picture_is_drawn_and_nothing_is_wider_than_the_page(page, tmp_path):
    sizes = page.evaluate("[...document.images].map(image => [image.complete, image.naturalWidth])")
    assert len(sizes) >= 4
    assert all(complete and width > 300 for complete, width in sizes)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    shot = page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    assert len(shot) > 20_000
