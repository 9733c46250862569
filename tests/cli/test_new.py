"""``hf-memory new``: what it writes keeps its contracts, and is the mixer and the task of the examples."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from hf_memory.cli.new import LONGEST, class_stem, render, write_leaf

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("kind", "name", "tests"),
    [
        ("mixer", "slow_echo", ["test_slow_echo_keeps_the_contracts_of_a_mixer"]),
        ("task", "late_mark", ["test_late_mark_keeps_the_contracts_of_a_task", "test_the_example_of_the_docstring"]),
    ],
)
def test_what_is_written_passes_the_test_that_is_written(kind, name, tests, call, monkeypatch, tables):
    code, out, err = call("new", kind, name)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        f"wrote {name}.py and test_{name}.py",
        f"contracts: python -m pytest test_{name}.py",
    ]
    assert sorted(path.name for path in Path().iterdir()) == [f"{name}.py", f"test_{name}.py"]
    monkeypatch.syspath_prepend(".")
    for module in (name, f"test_{name}"):
        monkeypatch.setitem(sys.modules, module, None)  # so that it is gone when the test ends
        del sys.modules[module]
    written = importlib.import_module(f"test_{name}")
    assert [one for one in vars(written) if one.startswith("test_")] == tests
    for one in tests:
        getattr(written, one)()


def test_the_examples_are_what_is_written():
    for template, name, path in (
        ("mixer.py.jinja", "leaky", "examples/leaky.py"),
        ("task.py.jinja", "last_mark", "tests/plugin/memory_plugin/last_mark.py"),
    ):
        assert (ROOT / path).read_text() == render(template, name)


def test_what_is_written_is_in_order_whatever_its_name(tmp_path):
    for kind in ("mixer", "task"):
        for name in ("a", f"{kind}_{'x' * (LONGEST - len(kind) - 1)}"):
            write_leaf(kind, name, tmp_path / kind)
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path)]
    # Tests need no docstrings, which the settings of the project say for its own folder of tests.
    check = [*ruff, "check", "--ignore", "D103,S101,I001", *config]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([*ruff, "format", "--check", *config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("present", ["own.py", "test_own.py"])
def test_no_file_is_overwritten(present, call):
    Path("out").mkdir()
    Path("out", present).write_text("mine")
    code, _, err = call("new", "mixer", "own", "--out", "out")
    assert code == 2
    assert f"out/{present} is there already" in err
    assert [path.name for path in Path("out").iterdir()] == [present]
    assert Path("out", present).read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("mixer", "SlowEcho"), "words in small letters and digits with _ between them"),
        (("mixer", "slow-echo"), "got 'slow-echo'"),
        (("mixer", "slow__echo"), "got 'slow__echo'"),
        (("task", "2fast"), "got '2fast'"),
        (("task", "../own"), "got '../own'"),
        (("task", "x" * 25), "at most 24 letters"),
        (("mixer", "gru"), "'gru' is taken by a mixer"),
        (("mixer", "hybrid"), "'hybrid' is taken by a mixer"),
        (("mixer", "mqar"), "'mqar' is taken by a task"),
        (("task", "class"), "is a word of Python or a module that it finds"),
        (("task", "random"), "is a word of Python or a module that it finds"),
        (("task", "torch"), "is a word of Python or a module that it finds"),
        (("task", "pytest"), "is a word of Python or a module that it finds"),
        (("mixer", "conftest"), "is a word of Python or a module that it finds"),
        (("task", "preset"), "Preset is a class that every task uses"),
    ],
)
def test_names_that_cannot_be_are_refused(words, text, call):
    code, _, err = call("new", *words)
    assert code == 2
    assert text in err
    assert list(Path().iterdir()) == []


def test_stems_of_class_names():
    assert [class_stem(name) for name in ("leaky", "slow_echo", "s4_2")] == ["Leaky", "SlowEcho", "S42"]
