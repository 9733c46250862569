"""Every snippet of the site's guides runs as it is printed, in order, in one folder."""

import re

import pytest

from tests.hub.clients import environment, run
from tests.hub.store import Hub
from tests.snippets import ROOT, RUNNABLE, blocks, program, run_page, section

DOCS = ROOT / "docs"
SHARING = DOCS / "guides" / "sharing.md"
TOOLS = DOCS / "guides" / "other-tools.md"  # run by tests/tools, where its packages are
GUIDES = sorted((DOCS / "guides").glob("*.md"))
PAGES = [DOCS / "quickstart.md", *(path for path in GUIDES if path not in (SHARING, TOOLS))]
ALL = [*PAGES, SHARING, TOOLS]

# What a page must leave behind, beside running.
LEFT = {
    "quickstart": ["runs/lstm/model.safetensors", "report/index.html"],
    "own-mixer": ["slow_echo.py", "runs/echo/model.safetensors"],
    "own-task": ["late_mark.py", "runs/late/model.safetensors"],
    "learning-rates": ["rates.yaml", "results/rates/cpu", "report/index.html"],
    "length-generalisation": ["runs/lru/model.safetensors", "runs/mixed/model.safetensors"],
    "clusters": ["results/r2_controlled_parity/smoke"],
    "models": ["lru-parity/model.safetensors"],
    "converting": ["ours/model.safetensors", "first/config.json"],
    "data": ["exported/bit_parity/README.md"],
    "reports": ["report/index.html"],
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_snippets_of_a_guide_run_as_printed(page, tmp_path):
    run_page(page, tmp_path)
    assert [name for name in LEFT.get(page.stem, []) if not (tmp_path / name).exists()] == []


@pytest.mark.slow
def test_the_snippets_on_sharing_run_against_a_hub(hub: tuple[str, Hub], tmp_path):
    text = SHARING.read_text()
    with_package = text.replace(section(text, "Load without it"), "")
    run(program(SHARING, with_package), environment(tmp_path / "home", hub[0]), tmp_path, package=True, timeout=800)
    assert {name for _, name in hub[1].repos} == {"me/lstm-dyck", "me/mqar", "me/memory-results"}
    clean = program(SHARING, section(text, "Load without it")).replace("from hf_memory.cli.app import app\n", "")
    run(clean, environment(tmp_path / "clean", hub[0]), tmp_path, package=False, timeout=800)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_a_guide_holds_nothing_that_is_not_run(page):
    text = page.read_text()
    assert blocks(text, *RUNNABLE)
    fences = re.findall(r"^```(\S*)", text, re.MULTILINE)[::2]
    assert set(fences) <= {*RUNNABLE, "{literalinclude}"}


@pytest.mark.parametrize(
    "page", [DOCS / "index.md", DOCS / "speed.md", *PAGES, SHARING, TOOLS], ids=lambda page: page.stem
)
def test_what_a_guide_points_to_is_there(page):
    text = page.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"\{literalinclude\} (\S+)", text)
    for target in targets:
        built = target.startswith(("mixers/", "tasks/", "../mixers/", "../tasks/"))
        assert built or target.startswith("https://") or (page.parent / target).resolve().is_file(), target
