"""The example scripts, run as a user runs them."""

import runpy
from pathlib import Path

import pytest

from hf_memory.experiments.results import read_rows

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALL = ["--model", "hidden_size=8", "num_hidden_layers=1", "--data", "length=8", "test_lengths=[8,16]"]
QUIET = ["--disable_tqdm", "True", "--use_cpu", "True"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_quickstart_prints_accuracy_beside_chance_for_each_length(capsys):
    runpy.run_path(str(EXAMPLES / "quickstart.py"))["main"](["--smoke"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("length")]
    assert [int(line.split()[1].rstrip(":")) for line in lines] == [32, 48, 64, 128, 256]
    assert all(0.4 < float(line.split()[3].rstrip(",")) < 0.6 for line in lines)


def test_example_trains_and_evaluates_with_tensorboard(capsys, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "events")
    logged = ["--report_to", "tensorboard", "--logging_steps", "1", "--max_steps", "2"]
    arguments = ["--mixer", "gru", "--smoke", "--output_dir", "run", *logged, *SMALL, *QUIET]
    runpy.run_path(str(EXAMPLES / "train_and_evaluate.py"))["main"](arguments)
    assert "bit_parity, trained at 8" in capsys.readouterr().out
    assert [row.split for row in read_rows("results")] == ["validation", "test_8", "test_16"]
    assert list(Path().rglob("events.out.tfevents*"))
