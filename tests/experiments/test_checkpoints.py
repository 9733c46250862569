"""Checkpoints are whole or not there, and a run goes on from the last whole one."""

import errno
import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from hf_memory.data.specification import specify
from hf_memory.experiments.checkpoints import SAVING, fault_of, last_checkpoint, resume_point
from hf_memory.experiments.results import read_rows
from hf_memory.experiments.run import Experiment
from hf_memory.experiments.training import MemoryTrainer


def run(folder: Path, results: str = "results", **training) -> dict[str, torch.Tensor]:
    """Train for six steps with a checkpoint at every second one; returns the weights."""
    experiment = Experiment(
        specify("bit_parity", length=8, test_lengths=[8], num_train=64, num_validation=8, num_test=8),
        "lstm",
        {"hidden_size": 8, "num_hidden_layers": 1},
        {"max_steps": 6, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2, "use_cpu": True}
        | {"disable_tqdm": True, "logging_strategy": "no"} | training,
    )  # fmt: skip
    experiment.run(folder.parent / results, folder, overwrite=True)
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_a_run_that_ends_while_it_saves_goes_on_from_the_last_whole_checkpoint(tmp_path, monkeypatch, caplog):
    straight = run(tmp_path / "straight")
    assert names(tmp_path / "straight") == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]

    def fail(self, folder):
        if folder.endswith("checkpoint-4"):
            assert SAVING in folder
            raise SystemExit
        return save(self, folder)

    save = MemoryTrainer._save_rng_state
    with monkeypatch.context() as patch:
        patch.setattr(MemoryTrainer, "_save_rng_state", fail)
        with pytest.raises(SystemExit):
            run(tmp_path / "cut")
    assert names(tmp_path / "cut") == [SAVING, "checkpoint-2"]
    assert last_checkpoint(tmp_path / "cut") == tmp_path / "cut" / "checkpoint-2"
    resumed = run(tmp_path / "cut", resume_from_checkpoint="True")
    assert names(tmp_path / "cut") == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert resumed.keys() == straight.keys()
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


def test_the_limit_and_the_best_checkpoint_hold(tmp_path):
    best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "metric_for_best_model": "loss"}
    run(tmp_path / "run", save_total_limit=1, **best)
    kept = names(tmp_path / "run")
    assert kept[-1] == "checkpoint-6"
    assert len(kept) <= 2
    state = json.loads((tmp_path / "run" / "checkpoint-6" / "trainer_state.json").read_text())
    assert Path(state["best_model_checkpoint"]) in {tmp_path / "run" / name for name in kept}


def test_what_is_not_whole_is_named_and_passed_over(tmp_path, caplog):
    folder = tmp_path / "run"
    assert resume_point("latest", folder) is None
    run(folder)
    last, before = folder / "checkpoint-6", folder / "checkpoint-4"
    assert [resume_point(given, folder) for given in (None, "", "False", False)] == [None] * 4
    assert {resume_point(given, folder) for given in ("True", True, "latest", "last", str(last))} == {str(last)}
    for name, kept in (("model.safetensors", 0.9), ("optimizer.pt", 0.9), ("trainer_state.json", 0.5)):
        whole = (last / name).read_bytes()
        (last / name).write_bytes(whole[: int(len(whole) * kept)])
        assert fault_of(last), name
        with caplog.at_level(logging.WARNING):
            assert resume_point("latest", folder) == str(before)
        assert "checkpoint-6 is not whole" in caplog.text
        with pytest.raises(ValueError, match=r"checkpoint-6 is not whole .*give another one"):
            resume_point(str(last), folder)
        (last / name).write_bytes(whole)
        assert not fault_of(last)
    (last / "model.safetensors").unlink()
    assert fault_of(last) == "it has no weights"
    with pytest.raises(ValueError, match="there is no folder 'gone'"):
        resume_point("gone", folder)


def test_a_run_that_had_done_its_last_step_does_no_further_one(tmp_path):
    straight = run(tmp_path / "straight")
    (row, *_) = read_rows(tmp_path / "results")
    resumed = run(tmp_path / "straight", results="again", resume_from_checkpoint="latest")
    assert names(tmp_path / "straight") == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    (again, *_) = read_rows(tmp_path / "again")
    assert (again.steps, again.tokens, again.weights_sha256) == (row.steps, row.tokens, row.weights_sha256)
    assert again.steps == 6
    assert again.measured() == row.measured()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
        RuntimeError("basic_ios::clear: iostream error"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_checkpoint_that_finds_no_space_leaves_nothing_and_says_so(tmp_path, monkeypatch, error):
    def fail(self, folder):
        raise error

    monkeypatch.setattr(MemoryTrainer, "_save_rng_state", fail)
    with pytest.raises(OSError, match="Input/output error|No space left"):
        run(tmp_path / "full")
    assert not (tmp_path / "full" / SAVING).exists()


def test_other_errors_while_saving_stand_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryTrainer, "_save_rng_state", lambda self, folder: {}["missing"])
    with pytest.raises(KeyError, match="missing"):
        run(tmp_path / "other")
