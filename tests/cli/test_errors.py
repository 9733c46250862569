"""What is said to the one who typed a command: one line that names the thing and the way out, and exit code 2."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from hf_memory.cli.errors import explain
from hf_memory.experiments.results import read_rows
from hf_memory.hub.loading import load_checkpoint
from hf_memory.hub.remote_code import export_remote_code

SMALL = ["--model", "hidden_size=8", "num_hidden_layers=1", "--data", "length=8", "test_lengths=[8]"]
TRAIN = ["train", "--mixer", "lstm", "--smoke", "--max_steps", "2", "--output_dir", "run", *SMALL]
QUIET = ["--disable_tqdm", "True", "--use_cpu", "True"]


@pytest.fixture
def checkpoint(trained, tmp_path) -> Path:
    """A copy of it in the folder of the test."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path / "run"


def refused(call, *words: str) -> str:
    """The one line with which a command is refused."""
    code, _, errors = call(*words)
    assert code == 2, errors
    assert errors.startswith("Error: ")
    assert errors.count("\n") == 1, errors
    return errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--report_to", "wandb"], "the package wandb is missing; `pip install wandb`"),
        (["--report_to", "wandbb"], "did you mean 'wandb'"),
        (["--optim", "adamw_bnb_8bit"], "the package bitsandbytes is missing; `pip install bitsandbytes`"),
        (["--optim", "lomo"], "the package lomo_optim is missing; `pip install lomo_optim`"),
        (["--optim", "stable_adamw"], "the package torch-optimi is missing; `pip install torch-optimi`"),
        (["--optim", "grokadamw"], "optim: grokadamw cannot be used here (Please install grokadamw"),
        (["--deepspeed", "ds.json"], "the package deepspeed is missing; `pip install deepspeed`"),
        (["--fp16", "True"], "fp16 needs a GPU"),
        (["--mixer", "LSTM"], "unknown mixer: 'LSTM'; did you mean 'lstm'"),
        (["--resume_from_checkpoint", "nowhere"], "resume_from_checkpoint: there is no folder 'nowhere'"),
        (["--results", "file/results"], "file/results: a part of this path is a file"),
        (["--output_dir", "/proc/run"], "/proc"),
    ],
)
def test_what_train_cannot_do_is_said_before_data_are_generated(call, monkeypatch, words, message):
    Path("file").touch()
    monkeypatch.setattr("hf_memory.experiments.run.load_dataset", lambda *a, **k: pytest.fail("data were generated"))
    assert message in refused(call, *TRAIN, *QUIET, *words)


def test_a_full_disk_is_found_before_data_are_generated(call, monkeypatch, tmp_path):
    def fail(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hf_memory.experiments.run.load_dataset", lambda *a, **k: pytest.fail("data were generated"))
    monkeypatch.setattr("os.fsync", fail)
    assert "results: no space is left; free some, or give another folder" in refused(call, *TRAIN, *QUIET)
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("missing", ["nowhere", "runs/lstm/deep", "./lstm", "/tmp/none", "here/lstm"])
def test_a_path_that_is_not_there_is_no_repository(call, missing):
    Path("here").mkdir()
    assert f"checkpoint: there is no folder '{missing}'" in refused(call, "evaluate", missing, "--task", "bit_parity")
    assert f"'{missing.removeprefix('./')}' holds no file" in refused(call, "report", missing)


def test_a_name_that_may_be_a_repository_is_said_to_be_no_folder_either(call):
    for words in (["evaluate", "me/lstm", "--task", "bit_parity"], ["report", "me/rows"]):
        assert "HF_HUB_OFFLINE keeps the Hub away" in refused(call, *words)
        assert "no such folder here" in refused(call, *words)


def test_a_damaged_checkpoint_is_named_before_data_are_generated(call, checkpoint, monkeypatch):
    monkeypatch.setattr("hf_memory.data.builder.load_dataset", lambda *a, **k: pytest.fail("data were generated"))
    weights = checkpoint / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-5])
    evaluate = ["evaluate", "run", "--task", "bit_parity", *SMALL[3:], "num_train=16", "num_test=8"]
    assert "run/model.safetensors is damaged" in refused(call, *evaluate)
    weights.write_bytes(whole)
    for text in ("", "{", "[]", "{}", '{"cell": 1}', "\xff"):
        (checkpoint / "hf_memory_run.json").write_text(text, encoding="latin-1")
        assert "run/hf_memory_run.json is damaged" in refused(call, *evaluate)


def test_code_beside_a_checkpoint_is_refused_and_nobody_is_asked(call, checkpoint, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("somebody was asked"))
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"model_type": "memory_other", "auto_map": {"AutoConfig": "other.Config"}}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "other.py").write_text("open('ran', 'w')\n")
    evaluate = ["evaluate", "run", "--task", "bit_parity", *SMALL[3:], "num_train=16", "num_test=8"]
    assert "code of its own, which is not run; give --trust-remote-code" in refused(call, *evaluate)
    assert not Path("ran").exists()


def test_code_beside_a_checkpoint_runs_where_it_is_trusted(call, checkpoint):
    export_remote_code(load_checkpoint(checkpoint), checkpoint)
    for path in (*checkpoint.glob("*.py"), checkpoint / "config.json"):
        text = path.read_text()
        path.write_text(re.sub(r"(['\"])memory_lstm\1", r"\1memory_unheard_of\1", text))
    evaluate = ["evaluate", "run", "--task", "bit_parity", *SMALL[3:], "num_train=16", "num_test=8"]
    assert "code of its own, which is not run; give --trust-remote-code" in refused(call, *evaluate)
    code, _, errors = call(*evaluate, "--trust-remote-code", "--results", "theirs")
    assert code == 0, errors
    assert [row.split for row in read_rows("theirs")] == ["validation", "test_8"]
    assert {row.mixer for row in read_rows("theirs")} == {"unheard_of"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"steps": -1}}, "training.steps must be a whole number of at least 1"),
        ({"arms": {"lstm": 3}}, "arms.lstm must be a mapping"),
        ({"arms": {"LSTM": {}}}, "did you mean 'lstm'"),
        ({"metric": "nope"}, "unknown metric: 'nope'"),
        ({}, "out: a part of this path is a file"),
    ],
)
def test_a_recipe_is_refused_before_a_worker_starts(call, monkeypatch, changes, message):
    monkeypatch.setattr("hf_memory.studies.sweep.make_workers", lambda *a: pytest.fail("workers were started"))
    values = {"name": "tiny", "task": "bit_parity", "arms": {"lstm": {}}, "learning_rates": [0.001]}
    Path("tiny.yaml").write_text(yaml.safe_dump({**values, **changes, "profiles": {"cpu": {}}}))
    Path("file").touch()
    assert message in refused(call, "sweep", "tiny.yaml", "--results", "file/out")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("WandbCallback requires wandb to be installed. Run `pip install wandb`."), "the package wandb"),
        (RuntimeError("TensorBoardCallback requires tensorboard to be installed."), "the package tensorboard"),
        (ModuleNotFoundError("No module named 'ray.util'", name="ray.util"), "the package ray is missing"),
        (ImportError("You need to install `bitsandbytes` in order to"), "the package bitsandbytes is missing"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "a/b: no space is left"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (MemoryError(), "memory ran out"),
        (ValueError("two\n lines"), "two lines"),
        (ValueError("x" * 5000), "x" * 597 + "..."),
    ],
)
def test_errors_are_explained(error, text):
    found = explain(error)
    assert found is not None
    assert text in found
    assert "\n" not in found


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_what_torch_says_of_a_full_disk_is_explained():
    with pytest.raises(RuntimeError) as caught:
        torch.save(torch.zeros(100_000), "/dev/full")
    assert "look whether space is left" in explain(caught.value)


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("shapes differ"), TypeError("x"), ImportError("hf_memory")]
)
def test_faults_of_the_package_keep_their_traceback(error):
    assert explain(error) is None
