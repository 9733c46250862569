"""The pages in a real browser: sorted and filtered by clicks, from disk and without a network."""

import contextlib
import shutil

import pytest

from hf_memory.reports.leaderboard import write_leaderboard
from hf_memory.reports.report import write_report
from tests.reports.rows import make_row, make_rows
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


@contextlib.contextmanager
def opened(browser, path, width=1200, **options):
    """A page from disk; whatever the browser complains of is an error."""
    context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, **options)
    page, complaints = context.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.goto(path.resolve().as_uri())
    yield page
    context.close()
    assert not complaints


def sweep_page(folder):
    """The page of a small sweep."""
    recipe = recipe_of()
    stored(folder / "results" / "tiny", recipe, {**VALUES, ("gru", 1e-2, 0): 0.5})
    return write_report(folder / "results", folder / "report")


@pytest.fixture
def page(browser, tmp_path):
    """The page of a small sweep, opened."""
    with opened(browser, sweep_page(tmp_path)) as found:
        yield found


def test_a_browser_runs_the_script_of_a_page_and_no_other(browser, tmp_path):
    path = sweep_page(tmp_path)
    planted = "<script>document.title = 'planted'</script><img src='https://example.org/x.png' onerror='planted()'>"
    path.write_text(path.read_text().replace("<h1>", f"{planted}<h1>", 1))
    context = browser.new_context(offline=True)
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(path.resolve().as_uri())
    assert page.title() != "planted"
    page.locator("th button").first.click()
    assert page.locator("th[aria-sort]").count() == 1
    context.close()
    assert len([text for text in complaints if "Content Security Policy" in text]) >= 2


def test_a_long_path_among_the_problems_fits_a_telephone(browser, tmp_path):
    path = sweep_page(tmp_path)
    path.write_text(path.read_text().replace("</h1>", f'</h1><p class="problem">{"/folder" * 40}: damaged</p>', 1))
    with opened(browser, path, width=400) as page:
        assert page.locator(".problem").evaluate("element => element.scrollWidth <= element.clientWidth")


@pytest.fixture
def board(tmp_path):
    """The page of all models."""
    rows = [row for seed in (0, 1) for row in make_rows("lstm", (1.0, 0.95, 0.8), seed)[1]]
    rows += make_rows("attention", (1.0, 0.6, 0.75), parameters=900)[1] + make_rows("12e4", (0.5, 0.5, 0.5))[1]
    rows += [make_row("lru", 64, task="dyck", tokens=None)]
    return write_leaderboard(rows, tmp_path / "board", "All models")


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
    widths = page.evaluate(
        "[...document.querySelectorAll('.drawing svg')].map(one => one.getBoundingClientRect().width)"
    )
    assert len(widths) >= 4
    assert all(width > 300 for width in widths)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    shot = page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    assert len(shot) > 20_000


def opacity(page, label, kind="data-curve"):
    """How opaque the parts of a curve are in the figure of rates, or its name."""
    chosen = f"#tiny-rates [{kind}='{label}']"
    return page.locator(chosen).evaluate_all("all => [...new Set(all.map(one => getComputedStyle(one).opacity))]")


def rates(page):
    """Mark the figure of rates, so that it can be found."""
    page.locator("figure", has_text="tiny-rates-cpu").evaluate("figure => figure.id = 'tiny-rates'")
    return page.locator("#tiny-rates")


def test_a_point_says_what_it_is(page):
    texts = rates(page).locator("title").all_text_contents()
    assert {"lstm, width 8, seed 0: 0.9500", "gru, width 16, seed 0: 0.5000"} <= set(texts)


@pytest.mark.parametrize("way", ["click on the name", "click on the curve", "Enter", "Space"])
def test_a_curve_is_shown_alone_and_a_second_time_all_are_back(page, way):
    figure = rates(page)
    name = figure.locator("[data-name='gru, width 8']")
    act = {
        "click on the name": name.click,
        "click on the curve": lambda: figure.locator("[data-curve='gru, width 8']").first.dispatch_event("click"),
    }.get(way, lambda: name.press(way))
    assert opacity(page, "lstm, width 8") == ["1"]
    act()
    assert opacity(page, "lstm, width 8") == ["0.08"]
    assert opacity(page, "lstm, width 8", "data-name") == ["0.45"]
    assert opacity(page, "gru, width 8") == opacity(page, "gru, width 8", "data-name") == ["1"]
    assert opacity(page, "chance", "data-name") == ["1"]  # a level is no curve
    assert figure.locator("[data-name=chance]").get_attribute("aria-pressed") is None
    assert name.get_attribute("aria-pressed") == "true"
    act()
    assert opacity(page, "lstm, width 8") == ["1"]
    assert name.get_attribute("aria-pressed") == "false"


def test_plain_pages_sort_and_digests_are_words(browser, board):
    with opened(browser, board) as page:
        page.locator("#leaderboard thead th:nth-child(1) button").click()
        assert texts(page, "leaderboard", 1) == ["12e4", "attention", "lru", "lstm"]
        page.locator("#leaderboard thead th:nth-child(8) button").click()  # parameters, of which 12,345 is a number
        assert texts(page, "leaderboard", 8) == ["900", "12,345", "12,345", "12,345"]
        study = "bit_parity_at_32_token_accuracy"
        page.locator(f"#{study} thead th:nth-child(4) button").click()
        assert texts(page, study, 1)[:3] == ["12e4", "attention", "lstm"]  # chance and baselines stay below
        page.locator(f"#{study} thead th:nth-child(4) button").click()
        assert texts(page, study, 1)[:3] == ["lstm", "attention", "12e4"]


def test_choices_and_bounds_hide_what_does_not_meet_them(browser, board):
    with opened(browser, board) as page:
        task, (state, parameters, flops) = page.locator("select"), page.locator("input[type=number]").all()
        task.select_option("dyck")
        assert texts(page, "leaderboard", 1) == ["lru"]
        task.select_option("")
        parameters.fill("1000")
        assert texts(page, "leaderboard", 1) == ["attention"]
        page.locator("input[data-filter=leaderboard]").fill("lstm")
        assert texts(page, "leaderboard", 1) == []
        parameters.fill("")
        assert texts(page, "leaderboard", 1) == ["lstm"]
        page.locator("input[data-filter=leaderboard]").fill("")
        state.fill("100")
        assert texts(page, "leaderboard", 1) == []
        state.fill("")
        flops.fill("3e9")
        assert "lru" not in texts(page, "leaderboard", 1)  # whose tokens are unknown
        assert len(texts(page, "leaderboard", 1)) == 3


@pytest.mark.parametrize("make", ["sweep", "board"])
def test_pages_fit_a_telephone_and_show_values_first(browser, tmp_path, board, make):
    path = sweep_page(tmp_path) if make == "sweep" else board
    with opened(browser, path, width=400) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        name = "tiny-cpu-chosen" if make == "sweep" else "leaderboard"
        value = "validation" if make == "sweep" else "value"
        heads = page.locator(f"#{name} thead th")
        box = heads.nth(heads.all_inner_texts().index(value)).bounding_box()
        assert box["x"] + box["width"] <= 400
        captions = page.evaluate("[...document.querySelectorAll('table')].map(table => table.caption?.offsetWidth)")
        assert captions and all(width and width <= 400 for width in captions)


def luminance(color):
    red, green, blue = (int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


def test_dark_pages_are_dark_and_paper_is_light(browser, board):
    colors = "(() => { const style = getComputedStyle(document.body); return [style.backgroundColor, style.color] })()"
    with opened(browser, board, color_scheme="dark") as page:
        paper, ink = map(luminance, page.evaluate(colors))
        assert paper < 0.15 and ink > 0.85
        page.emulate_media(media="print", color_scheme="dark")
        paper, ink = map(luminance, page.evaluate(colors))
        assert paper == 1 and ink == 0
        assert not page.locator(".control").first.is_visible()
    with opened(browser, board) as page:
        paper, ink = map(luminance, page.evaluate(colors))
        assert paper == 1 and ink < 0.15
