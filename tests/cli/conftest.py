"""What the tests of the command line share: a folder of their own, and the command as a user runs it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_memory.cli.app import main
from hf_memory.data.specification import specify
from hf_memory.experiments.run import Experiment


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a checkpoint of two steps, ``run``, and its rows, ``rows``."""
    folder = tmp_path_factory.mktemp("trained")
    run = Experiment(
        specify("bit_parity", length=8, test_lengths=[8], num_train=32, num_validation=8, num_test=8),
        "lstm",
        {"hidden_size": 8, "num_hidden_layers": 1},
        {"max_steps": 2, "per_device_train_batch_size": 8, "disable_tqdm": True, "use_cpu": True},
    )
    run.run(folder / "rows", folder / "run")
    return folder


@pytest.fixture
def call(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Calls the command with words, and returns its exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hf-memory", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run
