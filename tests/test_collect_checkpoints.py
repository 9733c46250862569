"""The example that gathers checkpoints: the best of each mixer and task, which loads and says where it is from."""

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification

import hf_memory.studies.sweep
from hf_memory.experiments.evaluation import load_for_task
from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.experiments.results import read_rows
from hf_memory.reports.formats import share
from hf_memory.storage import file_sha256
from hf_memory.studies.watched import checkpoint_path
from hf_memory.tasks import make_task
from tests.studies.sweep_examples import InlineWorkers, tiny_recipe

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "collect_checkpoints.py"))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of two arms and three seeds, whose models learn next to nothing."""
    folder = tmp_path_factory.mktemp("results") / "tiny" / "cpu"
    recipe = tiny_recipe(learning_rates=[1e-3], seeds={"search": [0], "final": [1, 2, 3]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args: InlineWorkers())
        return folder, hf_memory.studies.sweep.run_sweep(recipe, folder, progress=False)


def collect(folder, *arguments):
    EXAMPLE["main"]([str(folder), "--out", "examples/checkpoints", *arguments])


def test_the_best_run_of_each_mixer_is_gathered_and_loads(swept, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder, study = swept
    collect(folder, "--solved", "0")
    assert "2 checkpoints" in capsys.readouterr().out
    out = Path("examples/checkpoints")
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "bit_parity-gru", "bit_parity-lstm"]
    for mixer in ("gru", "lstm"):
        own = out / f"bit_parity-{mixer}"
        finals = [result for result in study.results if result.arm == mixer and result.cell.stage == "final"]
        best = max(finals, key=lambda result: EXAMPLE["Candidate"](own, own, tuple(result.rows.values())).rank)
        rows = read_rows(own)
        assert {row.cell for row in rows} == {best.digest}
        model = AutoModelForTokenClassification.from_pretrained(out, subfolder=own.name)
        kept = AutoModelForTokenClassification.from_pretrained(checkpoint_path(folder, best.digest))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), kept.parameters(), strict=True))
        card = (own / "README.md").read_text()
        assert f'from_pretrained("examples/checkpoints", subfolder="{own.name}")' in card
        assert rows[0].weights_sha256 in card
        assert list((own / "figures" / "hf_memory").glob("*.png"))
        assert f"[bit_parity-{mixer}](bit_parity-{mixer})" in (out / "README.md").read_text()


def test_a_second_time_nothing_moves_and_a_worse_one_does_not_take_its_place(swept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, _ = swept
    collect(folder, "--solved", "0")
    out = Path("examples/checkpoints")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != "README.md"}
    collect(folder, "--solved", "0")
    best = read_rows(out / "bit_parity-lstm")[0].cell
    shutil.copytree(folder, "fewer")
    shutil.rmtree(checkpoint_path(Path("fewer"), best))
    collect("fewer", "--solved", "0")
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_is_not_solved_and_what_is_too_large_is_left_out(swept, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder, _ = swept
    collect(folder, "--solved", "1")
    assert [path.name for path in Path("examples/checkpoints").iterdir()] == ["README.md"]
    monkeypatch.setitem(EXAMPLE["main"].__globals__, "MOST_BYTES", 1000)
    with pytest.raises(SystemExit):
        collect(folder, "--solved", "0")
    assert "at most 1000 are allowed" in capsys.readouterr().err
    assert [path.name for path in Path("examples/checkpoints").iterdir()] == ["README.md"]


SHIPPED = sorted(
    path.parent for path in (Path(__file__).parents[1] / "examples" / "checkpoints").glob("*/*.safetensors")
)


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_a_checkpoint_of_the_repository_is_that_of_its_rows_and_answers_as_they_say(folder):
    rows = read_rows(folder)
    assert {row.weights_sha256 for row in rows} == {file_sha256(folder / "model.safetensors")}
    row = next(row for row in rows if row.split == f"test_{row.train_length[1]}")
    assert folder.name == f"{row.task}-{row.mixer}"
    task = make_task(row.task, **row.task_knobs)
    ids, labels = task.sample(np.random.default_rng(0), row.length, 100)
    with torch.no_grad():
        logits = load_for_task(str(folder), task)(torch.from_numpy(ids).long()).logits
    answers = logits.squeeze(-1) if task.problem_type == "regression" else logits.argmax(-1)
    value = evaluate_predictions(task, row.length, ids, labels, answers.numpy())[row.headline].value
    assert value == pytest.approx(row.value(), abs=0.04)
    assert (
        f"[{folder.name}]({folder.name}) | {row.length} | {share(row.value())} |"
        in (folder.parent / "README.md").read_text()
    )


def test_the_checkpoints_of_the_repository_are_small():
    assert len(SHIPPED) >= 8
    assert sum(file.stat().st_size for folder in SHIPPED for file in folder.rglob("*")) <= EXAMPLE["MOST_BYTES"]
