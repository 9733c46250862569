"""The steps of CONTRIBUTING for a new mixer and a new task, followed to the letter in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf_memory.cli.new import render
from tests.snippets import ROOT, section

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
LEFT_OUT = shutil.ignore_patterns(
    *("__pycache__", ".git", ".venv*", ".*_cache", "results", "checkpoints", "build", "*.egg-info", "shared")
)

CLASSES = '''

class MemorySlowEchoModel(MemoryModel):
    """Slow echo without a head."""

    config_class = MemorySlowEchoConfig
    mixer_class = SlowEchoMixer


class MemorySlowEchoForCausalLM(MemoryForCausalLM):
    """Slow echo with scores of next tokens."""

    config_class = MemorySlowEchoConfig
    model_class = MemorySlowEchoModel


class MemorySlowEchoForTokenClassification(MemoryForTokenClassification):
    """Slow echo with scores of classes."""

    config_class = MemorySlowEchoConfig
    model_class = MemorySlowEchoModel
'''

EDITION = '''"""The published edition of ``hf_memory/late_mark``."""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="late_mark",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={"short": {"length": 8, "test_lengths": (8, 16, 32)}},
)

if __name__ == "__main__":
    print(run_edition(EDITION))
'''


BASELINES = (
    '''        """Always the first mark."""
        return {"first mark": 1 / self.num_marks}
''',
    '''        """Always the first mark; the last one of three tokens, among which there is none at few positions."""
        lacks = (1 / self.vocab_size) ** 3 * (1 - 1 / self.num_marks)
        return {"first mark": 1 / self.num_marks, "last 3 tokens": 1 - max(length - 3, 0) / length * lacks}
''',
)
CHECKS = (
    """        if not 2 <= self.num_marks <= 64:
            raise ValueError(f"num_marks must be from 2 to 64, got {self.num_marks}")
""",
    """        check_int("num_marks", self.num_marks, 2, 64)
""",
)
IMPORTS = (
    "from hf_memory.tasks import Preset, Task\n",
    "from hf_memory.tasks._checks import check_int\nfrom hf_memory.tasks.base import Preset, Task\n",
)
"""What the first step asks of a law in the package, beside what is asked of a law in a file of its own."""


def steps(title: str) -> list[str]:
    """The numbered steps of a section, each in one line."""
    found = re.findall(r"^\d+\. (.*?)(?=^\d+\. |\Z)", section(TEXT, title), re.MULTILINE | re.DOTALL)
    return [" ".join(step.split()) for step in found]


def named(step: str, *, key: str = "", stem: str = "") -> list[str]:
    """The files and commands that a step names, for a key."""
    return [word.replace("<key>", key).replace("<Stem>", stem) for word in re.findall(r"`([^`]+)`", step)]


def command_of(title: str, key: str) -> list[str]:
    """The command of a section's steps that runs the contracts."""
    words = [word for step in steps(title) for word in named(step, key=key)]
    (found,) = [word for word in words if word.startswith(".venv/bin/pytest tests/")]
    return shlex.split(found)[1:]


@pytest.fixture
def copy(tmp_path) -> Path:
    """The repository, without what was built or measured in it."""
    return Path(shutil.copytree(ROOT, tmp_path / "copy", ignore=LEFT_OUT))


def add_line(file: Path, after: str, line: str) -> None:
    """One more line after one that is there."""
    text = file.read_text()
    assert text.count(after) == 1, f"{file.name} has {text.count(after)} lines {after!r}"
    file.write_text(text.replace(after, f"{after}{line}\n"))


def verdict_of_tests(copy: Path, words: list[str]) -> str:
    """What pytest says of some tests of the copy."""
    env = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "1200", *words]
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=1_200, check=False)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout


def failures(output: str) -> list[str]:
    return re.findall(r"^FAILED (\S+)", output, re.MULTILINE)


def in_order(copy: Path, *files: str) -> None:
    """Hold the files that were added to the checks of style."""
    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--no-cache", *files]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_steps_for_a_mixer_lead_to_a_mixer(copy):
    first, second, third, fourth, *_ = steps("Add a mixer")
    assert "Skip this step where an existing recurrence serves" in first  # as `diagonal_scan` does here
    assert "hf_memory/mixers/slow_echo.py" in named(second, key="slow_echo", stem="SlowEcho")
    assert "names its three classes, and imports from where names are defined" in fourth
    text = render("mixer.py.jinja", "slow_echo").replace(
        "from hf_memory import MemoryConfig, Mixer\nfrom hf_memory.models.layers import State, mark_residual_output\n",
        "from hf_memory.models.configuration import MemoryConfig\n"
        "from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification\n"
        "from hf_memory.models.layers import State, mark_residual_output\n"
        "from hf_memory.models.modeling import MemoryModel, Mixer\n",
    )
    (copy / "hf_memory/mixers/slow_echo.py").write_text(text + CLASSES)
    table, *_ = [word for word in named(third) if word.endswith("__init__.py")]
    add_line(copy / table, '    "lru": "LRU",\n', '    "slow_echo": "SlowEcho",')
    command = command_of("Add a mixer", "slow_echo")
    assert failures(verdict_of_tests(copy, [word for word in command if word != "tests/contracts"])) == [
        "tests/test_readme.py::test_every_mixer_and_every_task_has_its_line[slow_echo]"
    ]
    add_line(copy / "README.md", "| `gru` | GRU | vector |\n", "| `slow_echo` | leaky integrator | vector |")
    output = verdict_of_tests(copy, [*command, "tests/docs/test_pages.py"])
    assert failures(output) == []
    assert int(re.findall(r"(\d+) passed", output)[0]) > 40
    in_order(copy, "hf_memory/mixers")
    assert failures(verdict_of_tests(copy, ["tests/test_architecture.py"])) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_steps_for_a_task_lead_to_a_task(copy):
    law, table, edition, golden, _ = steps("Add a task")
    text = render("task.py.jinja", "late_mark")
    for old, new in (BASELINES, CHECKS, IMPORTS):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (copy / named(law, key="late_mark")[0]).write_text(text)
    add_line(copy / named(table)[1], '    "interval_counting": "IntervalCounting",\n', '    "late_mark": "LateMark",')
    add_line(
        copy / "README.md", "| task | memory | what is asked |\n|---|---|---|\n", "| `late_mark` | stable | a mark |"
    )
    (copy / named(edition, key="late_mark")[0]).write_text(EDITION)
    command = command_of("Add a task", "late_mark")
    (hashes,) = [word for word in named(golden) if word.endswith(".py")]
    output = verdict_of_tests(copy, [*command, "--tb=short"])
    assert failures(output) == [
        "tests/tasks/test_contract.py::test_rows_of_a_version_never_change[late_mark]",
        "tests/data/test_rows.py::test_first_rows_of_a_version_never_change[late_mark]",
    ]
    rows, dataset = re.findall(r"assert \('1\.0\.0', '(\w{16})'\) ==", output)
    add_line(copy / hashes, "GOLDEN = {\n", f'    "late_mark": ("1.0.0", "{rows}", "{dataset}"),')
    output = verdict_of_tests(copy, command)
    assert failures(output) == []
    assert int(re.findall(r"(\d+) passed", output)[0]) > 20
    in_order(copy, "hf_memory/tasks", "dataset_scripts")
    assert failures(verdict_of_tests(copy, ["tests/test_architecture.py"])) == []
