"""The README does what it says."""

import re
import shlex
import subprocess
import sys

import pytest

from hf_memory.mixers.auto import model_keys
from hf_memory.tasks import TASKS
from tests.snippets import ROOT, codes, section

TEXT = (ROOT / "README.md").read_text()
# The section on sharing needs a Hub: its own tests bring one.
LOCAL = TEXT.replace(section(TEXT, "Share"), "")


def test_python_snippets_run_as_printed(tmp_path, monkeypatch, tables):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    snippets = codes(LOCAL, "python")
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})  # noqa: S102 - our own text


@pytest.mark.slow
def test_the_commands_run_as_printed(tmp_path):
    lines = [line for block in codes(LOCAL, "bash") for line in block.splitlines() if line.startswith("hf-memory ")]
    assert any(line.startswith("hf-memory train") for line in lines)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in lines:
        command = [sys.executable, "-m", "hf_memory.cli", *shlex.split(line, comments=True)[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("key", [*model_keys(), *TASKS])
def test_every_mixer_and_every_task_has_its_line(key):
    assert f"| `{key}` |" in TEXT


@pytest.mark.parametrize("page", ["README.md", "REPRODUCTION.md"])
def test_every_file_that_a_page_points_to_is_there(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text())
    assert targets
    for target in targets:
        if not target.startswith(("http://", "https://", "#")):
            assert (ROOT / target.partition("#")[0]).exists(), target
