"""The site, built as ``make docs`` builds it, and looked at in a browser at two widths."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf_memory.mixers.auto import model_keys
from hf_memory.tasks import TASKS
from tests.reports.test_browser import browser
from tests.snippets import ROOT

pytestmark = pytest.mark.slow

__all__ = ["browser"]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A fresh build with warnings as errors, from a copy of the sources."""
    root = tmp_path_factory.mktemp("docs")
    source = root / "docs"
    shutil.copytree(ROOT / "docs", source, ignore=shutil.ignore_patterns("mixers", "tasks", "reference", "sources"))
    (root / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", source, root / "html"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(ROOT)])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return root / "html"


def test_every_mixer_and_every_task_has_its_page(site):
    for place in (*(f"mixers/{key}" for key in model_keys()), *(f"tasks/{key}" for key in TASKS)):
        assert (site / f"{place}.html").is_file()


def test_equations_are_in_the_page_and_nothing_comes_from_elsewhere(site):
    assert "<math" in (site / "mixers" / "lru.html").read_text()
    for path in site.rglob("*.html"):
        text = path.read_text()
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text)
        assert loaded == [], path.name
        assert "mathjax" not in text.lower()


@pytest.mark.parametrize("width", [1400, 400])
def test_no_page_is_wider_than_its_screen(site, browser, width):
    context = browser.new_context(offline=True, viewport={"width": width, "height": 900})
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    for path in sorted(site.rglob("*.html")):
        page.goto(path.resolve().as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert (path.name, wide) == (path.name, 0)
    page.goto((site / "mixers" / "lru.html").resolve().as_uri())
    assert page.locator(".equation math").first.bounding_box()["height"] > 10
    context.close()
    assert complaints == []
