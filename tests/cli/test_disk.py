"""A full disk and a folder that cannot be written: each command says so in one line, and leaves nothing behind."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
import yaml

from hf_memory.experiments.results import read_rows

resource = pytest.importorskip("resource")

SMALL = ["--data", "length=8", "test_lengths=[8]", "num_train=32", "num_validation=8", "num_test=8"]
MODEL = ["--model", "hidden_size=8", "num_hidden_layers=1"]
QUIET = ["--disable_tqdm", "True", "--use_cpu", "True"]
RECIPE = {
    "name": "tiny", "task": "bit_parity", "arms": {"lstm": {}}, "learning_rates": [0.001],
    "data": {"length": 8, "test_lengths": [8], "num_validation": 8, "num_test": 8}, "model": {"num_hidden_layers": 1},
    "sizing": {"by": "hidden", "value": 8}, "training": {"steps": 2, "batch_size": 8},
    "seeds": {"search": [0], "final": []}, "profiles": {"cpu": {}},
}  # fmt: skip
COMMANDS = {
    "train": ["train", "--mixer", "lstm", "--task", "bit_parity", "--max_steps", "2", "--output_dir", "OUT/run",
              "--results", "OUT/rows", *MODEL, *SMALL, *QUIET],
    "evaluate": ["evaluate", "given/run", "--task", "bit_parity", "--results", "OUT/rows", *SMALL],
    "sweep": ["sweep", "tiny.yaml", "--results", "OUT/rows", "--workers", "1"],
    "build": ["data", "build", "bit_parity", *SMALL],
    "export": ["data", "export", "bit_parity", "OUT", *SMALL],
    "report": ["report", "given/rows", "--out", "OUT/page"],
    "push": ["push", "given/run", "--repo-id", "me/lstm", "--results", "given/rows"],
}  # fmt: skip


@pytest.fixture
def place(trained, monkeypatch, tmp_path) -> Path:
    """A folder with what the commands read, and caches and temporary files of its own."""
    shutil.copytree(trained, tmp_path / "given")
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    move(monkeypatch, tmp_path)
    return tmp_path


def move(monkeypatch, root: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(root / "tmp"))
    if root.is_dir():
        (root / "tmp").mkdir(exist_ok=True)


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond some bytes, also those that libraries write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "push"])
def test_a_full_disk_is_one_line_and_the_command_runs_once_there_is_space(call, place, name):
    words = [word.replace("OUT", "out") for word in COMMANDS[name]]
    for size in (100, 900):
        with largest_file(size):
            code, _, errors = call(*words)
        assert code in (1, 2), errors
        assert "Traceback" not in errors
        assert [line.startswith("Error: ") for line in errors.splitlines()][-1], errors
        assert hidden(place) == []
    code, _, errors = call(*words)
    assert code == 0, errors
    if name in ("train", "evaluate", "sweep"):
        assert {row.split for row in read_rows("out/rows")} == {"validation", "test_8"}
    assert hidden(place) == []


def test_a_full_disk_is_found_before_a_push_asks_the_hub(call, place):
    for size in (100, 900):
        with largest_file(size):
            code, _, errors = call(*COMMANDS["push"])
        assert code == 2
        assert errors.startswith("Error: ")
        assert "no file may be as large here" in errors or "File too large" in errors
        assert hidden(place) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_that_cannot_be_written_is_named(call, place, monkeypatch, name):
    move(monkeypatch, Path("/proc/hf"))
    code, _, errors = call(*[word.replace("OUT", "/proc/hf") for word in COMMANDS[name]])
    assert code == 2, errors
    assert errors.startswith("Error: /proc/hf"), errors
    assert errors.count("\n") == 1


def hidden(root: Path) -> list[str]:
    """Files and folders with a leading dot below a folder, without locks that stay."""
    return [str(path) for path in root.rglob(".*") if not path.name.endswith(".lock") and path.name != ".building"]
