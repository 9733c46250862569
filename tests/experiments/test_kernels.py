"""The kernels that a run was left to go with its checkpoints and rows, and stay where it is resumed."""

import json
import shutil
from pathlib import Path

import pytest

from hf_memory.data.specification import specify
from hf_memory.experiments.checkpoints import KERNELS_FILE, kernels_of
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.provenance import RUN_FILE, read_run
from hf_memory.experiments.results import Row, read_rows
from hf_memory.experiments.run import Experiment
from hf_memory.ops.backends import dispatch, proof, verdicts
from hf_memory.ops.backends.trial import Verdict
from hf_memory.storage import read_json
from tests.experiments.test_results import make_row
from tests.ops.backends.proof_helpers import install

RIGHT = Verdict(None, milliseconds=1.0, torch_milliseconds=4.0, error=1e-7)
WRONG = Verdict("it raises RuntimeError: broken", faulty=True)
PARITY = specify("bit_parity", length=8, test_lengths=[8], num_train=64, num_validation=8, num_test=8)


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """Verdicts, of which the last one is given without a trial, and the requests for them."""
    install(monkeypatch, tmp_path, "right")
    given, requests = [RIGHT], []
    monkeypatch.setattr(verdicts, "try_kernel", lambda request: requests.append(request) or given[-1])
    yield given, requests
    proof.forget()
    dispatch.load_kernel.cache_clear()


def forget_all(folder: Path) -> None:
    shutil.rmtree(folder / "verdicts")
    proof.forget()


def run(folder: Path, results: str, **training) -> list[Row]:
    """Train a Mamba for four steps with a checkpoint at every second one; returns the rows."""
    experiment = Experiment(
        PARITY,
        "mamba",
        {"hidden_size": 8, "num_hidden_layers": 1},
        {"max_steps": 4, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2, "use_cpu": True}
        | {"disable_tqdm": True, "logging_strategy": "no"} | training,
    )  # fmt: skip
    experiment.run(folder.parent / results, folder, overwrite=True)
    return read_rows(folder.parent / results)


def test_rows_checkpoints_and_the_run_hold_the_choice_and_a_resumed_run_keeps_it(judged, tmp_path):
    given, requests = judged
    folder = tmp_path / "run"
    rows = run(folder, "first")
    assert len(requests) == 1
    (place,) = rows[0].kernels
    assert place.startswith("selective_scan on ")
    assert {row.kernels[place] for row in rows} == {"right: 1 ms, torch 4 ms, off by 1.0e-07 at most"}
    assert kernels_of(folder / "checkpoint-2") == kernels_of(folder / "checkpoint-4") == rows[0].kernels
    assert read_run(str(folder)).kernels == rows[0].kernels
    given.append(WRONG)
    forget_all(tmp_path)
    shutil.rmtree(folder / "checkpoint-4")
    assert run(folder, "resumed", resume_from_checkpoint="True")[0].kernels == rows[0].kernels
    assert len(requests) == 1
    (anew, *_) = run(tmp_path / "other", "anew")
    assert anew.kernels == {place: "torch: right: it raises RuntimeError: broken"}
    assert len(requests) == 2


def test_a_checkpoint_is_evaluated_on_the_kernels_of_its_training(judged, tmp_path):
    given, requests = judged
    rows = run(tmp_path / "run", "results")
    given.append(WRONG)
    forget_all(tmp_path)
    (row,) = evaluate_lengths(tmp_path / "run", PARITY, {"test_8": {"input_ids": [[0, 1]], "labels": [[0, 1]]}})
    assert row.kernels == rows[0].kernels
    assert len(requests) == 1


def test_where_there_is_nothing_to_choose_nothing_is_said(judged, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_MEMORY_BACKEND", "torch")
    rows = run(tmp_path / "run", "results")
    assert {row.kernels for row in rows} == {None}
    assert not (tmp_path / "run" / "checkpoint-2" / KERNELS_FILE).exists()
    assert "kernels" not in read_json(tmp_path / "run" / RUN_FILE)
    line = next((tmp_path / "results").glob("*.jsonl")).read_text().splitlines()[1]
    assert "kernels" not in json.loads(line)


def test_a_damaged_file_of_kernels_is_named_and_passed_over(tmp_path, caplog):
    (tmp_path / KERNELS_FILE).write_text('{"selective_scan": 1}')
    assert kernels_of(tmp_path) == {}
    assert "kernels are chosen anew" in caplog.text


def test_a_row_holds_texts_of_kernels_and_nothing_else():
    row = make_row(kernels={"selective_scan on H9: float32": "triton: 1 ms"})
    assert Row.from_json(row.to_json()) == row
    with pytest.raises(ValueError, match="kernels"):
        Row.from_json(row.to_json() | {"kernels": {"selective_scan": 1}})
