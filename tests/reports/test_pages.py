"""Templates come with the package, escape what they are given, and make single files."""

import importlib.resources
import re
import tomllib
from pathlib import Path

import jinja2
import pytest

from hf_memory.reports.pages import footer, picture, templates, write_single_page
from tests.reports.rows import make_row

ROOT = Path(__file__).parents[2]
FILES = {
    *("base.html", "report.html", "study_page.html", "suite_page.html", "leaderboard.html"),
    *("figure.html", "sortable.html"),
    *("page.css", "sortable.js", "figures.js"),
}


def test_the_installed_package_holds_every_template():
    found = importlib.resources.files("hf_memory.reports") / "templates"
    assert {file.name for file in found.iterdir()} == FILES == set(templates().list_templates())
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["hf_memory"]  # all files below it, whatever their ending


@pytest.mark.parametrize("name", sorted(FILES))
def test_templates_ask_for_nothing_from_a_network(name):
    text = (importlib.resources.files("hf_memory.reports") / "templates" / name).read_text()
    assert not re.search(r"https?:|//\w+\.|<link|@import|url\(|<script \w|fetch\(|XMLHttp", text)
    templates().get_template(name)


@pytest.mark.parametrize("module", sorted((ROOT / "hf_memory" / "reports").glob("*.py")), ids=lambda path: path.stem)
def test_no_module_holds_markup(module):
    assert not re.search(r"</?(html|head|body|style|script|table|div|p|td|h[1-6])\b", module.read_text())


def test_values_are_escaped_and_missing_ones_refused(tmp_path):
    values = {"problems": ["<b> is damaged"], "sections": []}
    page = write_single_page(tmp_path, "report.html", {"a.csv": b"1"}, [make_row()], heading="A & B", **values)
    assert page == tmp_path / "index.html"
    text = page.read_text()
    assert '<p class="problem">&lt;b&gt; is damaged</p>' in text
    assert "<title>A &amp; B</title>" in text
    assert "font: 15px/1.5 system-ui" in text
    assert (tmp_path / "a.csv").read_bytes() == b"1"
    with pytest.raises(jinja2.UndefinedError, match="heading"):
        write_single_page(tmp_path / "none", "report.html", {"a.csv": b"1"}, [make_row()], **values)
    assert not (tmp_path / "none").exists()


def test_scripts_and_styles_reach_the_page_unchanged(tmp_path):
    values = {"heading": "H", "problems": [], "sections": []}
    text = write_single_page(tmp_path, "study_page.html", {}, [make_row()], **values).read_text()
    folder = importlib.resources.files("hf_memory.reports") / "templates"
    for name in ("page.css", "sortable.js", "figures.js"):
        assert (folder / name).read_text().strip() in text


def test_the_footer_counts_runs_and_names_what_they_ran_on():
    rows = [make_row(), make_row(length=64), make_row(seed=1, versions={"torch": "2.12", "numpy": "2.3"})]
    assert footer(rows) == "3 rows of 2 runs on cpu, torch backend. numpy 2.3, torch 2.12, torch 2.13."


def test_pictures_lie_in_the_page():
    vectors = b"<?xml version='1.0' encoding='utf-8'?>\n<svg xmlns='http://www.w3.org/2000/svg' />".replace(b"'", b'"')
    assert picture(vectors, "what", "caption") == {"vectors": "<svg />", "alt": "what", "caption": "caption"}
