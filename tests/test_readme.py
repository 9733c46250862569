"""The README does what it says."""

import itertools
import json
import re
import shlex
import statistics
import subprocess
import sys

import pytest

from hf_memory.mixers.auto import model_keys
from hf_memory.tasks import TASKS
from tests.snippets import ROOT, codes, section

TEXT = (ROOT / "README.md").read_text()
# The section on sharing needs a Hub: its own tests bring one.
LOCAL = TEXT.replace(section(TEXT, "Share"), "")
# Sentences alone: no snippets, names in code, targets of links, tables.
PROSE = " ".join(re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|^\|.*?$", " ", TEXT, flags=re.DOTALL | re.MULTILINE).split())


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


def benchmark(kind):
    """The report that the README points to."""
    return json.loads(
        (ROOT / re.search(rf"\]\((benchmarks/results/{kind}-[\d-]+)\.md\)", TEXT)[1]).with_suffix(".json").read_text()
    )


def attacks():
    """The sentences about attacks, with the numbers of their rows."""
    report = benchmark("faults")
    cases = {kind: [row["cases"] for row in rows] for kind, rows in report["sections"].items()}
    assert (len(cases["kills"]), {*cases} - {"kills", "inputs", "files"}) == (7, {"disk", "pairs"})
    assert report["complete"] and not any(row["faults"] for rows in report["sections"].values() for row in rows)
    [moments] = set(cases["kills"])
    return (
        f"seven commands killed with -9 at {moments} moments each, {sum(cases['inputs']):,} random configs and inputs, "
        f"{sum(cases['files']):,} damaged files, full disks and read-only folders, two at once. "
        f"In {sum(map(sum, cases.values())):,} cases nothing was lost, doubled, torn, left over or hung"
    )


def speeds():
    """The sentence about speed, with the ratios of its runs."""
    report = benchmark("cpu")
    assert report["environment"]["threads"] == 1
    seconds = {row["what"]: row["seconds"] for row in report["sections"]["peers"]}

    def ratio(what):
        pairs = zip(seconds[what]["ours"], itertools.cycle(seconds[what]["other"]), strict=False)
        return statistics.median(ours / other for ours, other in pairs)

    return (
        "Against transformers on one thread of a CPU, a training step of Mamba takes "
        f"1 / {1 / ratio('mamba against transformers Mamba'):.0f} of its torch path, of RWKV-4 "
        f"1 / {1 / ratio('rwkv against transformers RWKV'):.0f}, of GPT-2 "
        f"{ratio('attention against transformers GPT-2'):.2f} with our attention."
    )


@pytest.mark.parametrize("sentences", [attacks, speeds])
def test_what_was_measured_is_what_committed_rows_say(sentences):
    assert sentences() in PROSE


def test_no_figure_of_a_gpu_is_claimed_as_long_as_none_is_committed():
    reports = [json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json")]
    none = all(report["environment"]["cuda"] is None for report in reports)
    assert reports and ("No GPU figure has been measured yet, so none is claimed" in PROSE) == none


def test_every_other_number_is_listed_here():
    rest = PROSE.replace(attacks(), "").replace(speeds(), "")
    horizon = ["300", "600", "64"]  # of NRU, which its own tests hold
    assert re.findall(r"(?<![\w.-])\d[\d.,]*(?<=\d)", rest) == ["3.11", *horizon]
