"""Evaluation counts every row once, whatever the batches and processes, and says where its numbers come from."""

import contextlib
import dataclasses
import logging
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hf_memory.data.rows import RowSource
from hf_memory.data.specification import length_bounds, specify
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments import evaluation
from hf_memory.experiments.evaluation import evaluate_lengths, load_for_task, predict, split_metrics, write_evaluation
from hf_memory.experiments.provenance import (
    Run,
    config_digest,
    measure_state,
    parameter_counts,
    read_run,
    save_run,
    weights_digest,
)
from hf_memory.experiments.results import read_rows, write_cell
from hf_memory.experiments.training import model_for_task
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.storage import digest, file_sha256
from hf_memory.tasks import TASKS

PARITY = specify("bit_parity", length=8, test_lengths=[8, 12], num_train=8, num_validation=8, num_test=8)
MQAR = specify("mqar", length=16, test_lengths=[16], vocab_size=16, num_kv_pairs=2, num_train=8, num_test=8)
RUN = Run(cell="0123456789abcdef", arm="lru", seed=3, data_seed=0, learning_rate=1e-3, steps=7, tokens=448)


def draw(specification, split: str, num_rows: int, seed: int = 1) -> dict[str, np.ndarray]:
    part = specification.splits[split].parts[0]
    input_ids, labels = part.task.sample(np.random.default_rng(seed), part.length, num_rows)
    return {"input_ids": input_ids, "labels": labels}


def make_model(specification, mixer: str = "lru"):
    torch.manual_seed(0)
    return model_for_task(mixer, specification.task, hidden_size=8, num_hidden_layers=2)


@pytest.mark.parametrize("key", TASKS)
def test_rows_of_every_task_are_read_as_they_were_written(key, tmp_path):
    # Some thirty rows, on which sums of squares and the like are no round numbers, of every split but the long ones.
    specification = specify(key, num_train=8, num_validation=32, num_test=32)
    rows = {}
    for name, split in specification.splits.items():
        longest = max(length_bounds(part.length)[1] for part in split.parts)
        if name == "validation" or (name != "train" and longest <= 300):
            block = RowSource(specification).block(name, 0)
            columns = {"input_ids": block.input_ids, "labels": block.labels}
            rows[name] = {column: np.split(values, block.offsets[1:-1]) for column, values in columns.items()}
    definition = {"task": key}
    run = dataclasses.replace(RUN, cell=digest(definition))
    found = evaluate_lengths(make_model(specification, "gru"), specification, rows, run=run, progress=False)
    assert len(found) == len(rows) > 0
    assert read_rows(write_cell(tmp_path, definition, found)) == found


@pytest.mark.parametrize(("specification", "split", "shift"), [(PARITY, "test_12", 0), (MQAR, "test_16", 1)])
def test_values_are_those_counted_by_hand_from_all_logits(specification, split, shift):
    model, rows = make_model(specification).eval(), draw(specification, split, 37)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(rows["input_ids"]).long()).logits
    columns = rows["labels"].shape[1]
    hits, targets, loss = 0, 0, 0.0
    for row in range(37):
        for position in range(columns - shift):
            label = int(rows["labels"][row, position + shift])
            if label != -100:
                hits += int(logits[row, position].argmax()) == label
                loss -= logits[row, position].double().log_softmax(-1)[label].item()
                targets += 1
    (found,) = evaluate_lengths(model, specification, {split: rows}, run=RUN, batch_size=8, progress=False)
    assert found.headline == specification.task.headline_metric
    assert found.value() == hits / targets
    assert found.measured().denominator == targets
    assert found.value("loss") == pytest.approx(loss / targets, rel=1e-5)
    assert found.measured().chance == specification.task.chance_level(found.headline, found.length)


def test_values_do_not_move_with_the_batch_size():
    model, rows = make_model(PARITY), draw(PARITY, "test_12", 23)
    ones, sevens, all_at_once = (
        evaluate_lengths(model, PARITY, {"test_12": rows}, run=RUN, batch_size=size, progress=False)[0].metrics
        for size in (1, 7, 23)
    )
    for name in ("token_accuracy", "sequence_accuracy"):
        assert ones[name] == sevens[name] == all_at_once[name]
    assert ones["loss"].value == pytest.approx(all_at_once["loss"].value, rel=1e-6)


def test_rows_of_unlike_length_are_padded_and_scored_as_if_alone():
    model = make_model(PARITY).eval()
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 2, size=length) for length in (3, 8, 5, 1, 8)]
    rows = TensorRows({"input_ids": ids, "labels": [np.cumsum(row) % 2 for row in ids]})
    together = predict(model, rows, batch_size=4)
    assert together["labels"].shape == (5, 8)
    for index, row in enumerate(ids):
        with torch.no_grad():
            alone = model(input_ids=torch.from_numpy(row)[None]).logits.argmax(-1)[0].numpy()
        assert together["predictions"][index, : len(row)].tolist() == alone.tolist()
        assert (together["labels"][index, len(row) :] == -100).all()


def test_rows_whose_state_is_too_large_are_told_once_for_each_split(caplog):
    long = specify("bit_parity", length=8, test_lengths=[8, 400], num_train=8, num_validation=8, num_test=8)
    splits = {name: draw(long, name, 5) for name in ("test_8", "test_400")}
    torch.manual_seed(0)
    model, other = (model_for_task(key, long.task, hidden_size=64, num_hidden_layers=1) for key in ("nru", "gru"))
    found = predict(model.eval(), TensorRows(splits["test_400"]), 2)["unresolved"]
    alone = [
        predict(model, TensorRows({name: rows[index : index + 1] for name, rows in splits["test_400"].items()}), 1)
        for index in range(5)
    ]
    assert found.tolist() == [columns["unresolved"].item() for columns in alone]
    assert 0 < found.sum() < 5
    with caplog.at_level(logging.WARNING):
        evaluate_lengths(model, long, splits, run=RUN, batch_size=2, progress=False)
        (told,) = caplog.messages
        assert told.startswith(
            f"test_400: {found.sum()} of 5 rows end with a state so large that it rounds inputs away"
        )
        for resolved in (model.double(), other):
            evaluate_lengths(resolved, long, splits, run=RUN, batch_size=2, progress=False)
    assert caplog.messages == [told]


def test_chance_of_unlike_lengths_is_their_mean_by_targets():
    specification = specify("bit_parity", length=[2, 4], test_lengths=[4], num_train=8, num_validation=8, num_test=1)
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 2, size=length) for length in (2, 2, 4)]
    rows = {"input_ids": ids, "labels": [np.cumsum(row) % 2 for row in ids]}
    model = make_model(specification)
    (row,) = evaluate_lengths(model, specification, {"validation": rows}, run=RUN, progress=False)
    two, four = (specification.task.chance_level("token_accuracy", length) for length in (2, 4))
    assert (two, four) == (0.75, 0.625)
    assert row.measured().chance == (4 * two + 4 * four) / 8
    assert row.measured().baselines["position_and_token"] == row.measured().chance
    assert row.measured().denominator == 8
    assert row.length == 4


def test_each_row_of_a_mixture_is_judged_by_its_own_law():
    specification = specify("mqar", "based_mixture", num_test=70)
    source = RowSource(specification)
    laws = [law for block in range(source.num_blocks("test_mixture")) for law in source.laws("test_mixture", block)]
    assert len({law.num_kv_pairs for law in laws}) > 3
    rng = np.random.default_rng(0)
    lengths = {part.task: part.length for part in specification.splits["test_mixture"].parts}
    drawn = [law.sample(rng, lengths[law], 1) for law in laws]
    columns = {"input_ids": [ids[0] for ids, _ in drawn], "labels": [labels[0] for _, labels in drawn]}
    width = max(len(row) for row in columns["labels"])
    labels = np.stack([np.pad(row, (0, width - len(row)), constant_values=-100) for row in columns["labels"]])
    oracle = np.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    ids = np.stack([np.pad(row, (0, width - len(row))) for row in columns["input_ids"]])
    sizes = np.array([len(row) for row in columns["labels"]])
    loss = np.zeros_like(oracle, dtype=np.float32)
    whole = {"input_ids": ids, "labels": labels, "predictions": oracle, "token_loss": loss}
    recall = split_metrics(specification, "test_mixture", sizes, whole)["recall"]
    pairs = [law.num_kv_pairs for law in laws]
    assert (recall.value, recall.denominator) == (1.0, sum(pairs))
    expected = sum(law.chance_level("recall", lengths[law]) * law.num_kv_pairs for law in laws) / sum(pairs)
    assert recall.chance == pytest.approx(expected)
    with pytest.raises(ValueError, match="'test_mixture' mixes laws and must hold its 70 rows, got 69"):
        split_metrics(specification, "test_mixture", sizes[:69], {key: column[:69] for key, column in whole.items()})


class _Process(SimpleNamespace):
    """What evaluation asks of an accelerator."""

    def autocast(self):
        return torch.autocast("cpu", enabled=False)


@pytest.mark.parametrize(("num_rows", "batch_size"), [(97, 8), (96, 8), (3, 8), (1, 1), (17, 8)])
def test_two_processes_together_meet_every_row_once(monkeypatch, num_rows, batch_size):
    model, rows = make_model(PARITY).eval(), TensorRows(draw(PARITY, "test_12", num_rows))
    alone = predict(model, rows, batch_size)
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    parts = []
    monkeypatch.setattr(evaluation, "gather_object", lambda found: parts.append(found) or found)
    for rank in (0, 1):
        with pytest.raises(ValueError, match="were evaluated") if num_rows > 1 or rank else contextlib.nullcontext():
            predict(model, rows, batch_size, _Process(num_processes=2, process_index=rank))
    assert len(passes) == 2 * -(-num_rows // (2 * batch_size))
    monkeypatch.setattr(evaluation, "gather_object", lambda found: parts[0] + parts[1])
    both = predict(model, rows, batch_size, _Process(num_processes=2, process_index=0))
    for name, values in alone.items():
        np.testing.assert_allclose(both[name], values, rtol=1e-6, atol=1e-7)
    assert (both["predictions"] == alone["predictions"]).all()


_TWO_RANKS = """
import json, sys
import numpy as np, torch
from accelerate import Accelerator
from hf_memory.data.specification import length_bounds, specify
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.training import model_for_task
specification = specify("bit_parity", length=8, test_lengths=[8], num_train=8, num_validation=8, num_test=8)
torch.manual_seed(0)
model = model_for_task("lru", specification.task, hidden_size=8)
ids, labels = specification.task.sample(np.random.default_rng(1), 8, 97)
accelerator = Accelerator(cpu=True)
(row,) = evaluate_lengths(model, specification, {"test_8": {"input_ids": ids, "labels": labels}}, batch_size=8,
                          accelerator=accelerator, progress=False)
found = [row.metrics[name].numerator for name in ("token_accuracy", "sequence_accuracy")]
print("RESULT", accelerator.num_processes, row.measured().denominator, *found)
"""


@pytest.mark.slow
def test_real_processes_return_the_counts_of_one(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(_TWO_RANKS)
    lines = {}
    for count in (1, 2):
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count), str(script)]
        run = subprocess.run([sys.executable, *launch], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        lines[count] = [line.split()[1:] for line in run.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines[1]) == 1
    assert len(lines[2]) == 2
    assert lines[2][0][0] == "2"
    assert lines[2][0] == lines[2][1]
    assert lines[2][0][1:] == lines[1][0][1:]
    assert lines[1][0][1] == str(97 * 8)


def test_row_tells_task_model_run_and_versions():
    model = make_model(PARITY)
    splits = {"validation": draw(PARITY, "validation", 4), "test_12": draw(PARITY, "test_12", 4)}
    validation, test = evaluate_lengths(model, PARITY, splits, run=RUN, progress=False)
    assert (validation.split, validation.length, test.split, test.length) == ("validation", 8, "test_12", 12)
    assert (test.task, test.task_knobs, test.train_length, test.mixer) == ("bit_parity", {}, (8, 8), "lru")
    assert {field.name: getattr(test, field.name) for field in dataclasses.fields(Run)} == dataclasses.asdict(RUN)
    assert test.data_version == f"{PARITY.task.version}+numpy{np.__version__}"
    assert test.versions["torch"] == torch.__version__
    assert test.config_digest == config_digest(model.config)
    assert model.training


def test_parameters_are_counted_once_and_by_place():
    model = make_model(MQAR)
    counts = parameter_counts(model)
    embedding = 16 * 8
    assert model.config.tie_word_embeddings
    assert counts["parameters"] == embedding + counts["parameters_non_embedding"]
    norm = model.model.norm.weight.numel()
    assert counts["parameters_non_embedding"] == 2 * counts["parameters_per_block"] + norm


@pytest.mark.parametrize("mixer", ["lru", "attention"])
def test_state_is_measured_on_the_live_cache(mixer):
    model = make_model(PARITY, mixer).eval()
    for length in (8, 12):
        numbers, size = measure_state(model, length)
        assert numbers == model.state_size(length)
        assert size == 4 * numbers
    assert (measure_state(model, 12) == measure_state(model, 8)) == (mixer == "lru")


def test_checkpoint_is_loaded_with_its_run_and_only_with_its_own_weights(tmp_path):
    model, rows = make_model(PARITY), {"test_12": draw(PARITY, "test_12", 8)}
    model.save_pretrained(tmp_path)
    assert weights_digest(tmp_path) == file_sha256(tmp_path / "model.safetensors")
    run = dataclasses.replace(RUN, weights_sha256=weights_digest(tmp_path), learning_rate_grid=(1e-3, 1e-2))
    save_run(tmp_path, run)
    (direct,) = evaluate_lengths(model, PARITY, rows, run=run, progress=False)
    (loaded,) = evaluate_lengths(tmp_path, PARITY, rows, progress=False)
    assert dataclasses.replace(loaded, eval_seconds=direct.eval_seconds) == direct
    save_run(tmp_path, dataclasses.replace(run, weights_sha256="00"))
    assert read_run(str(tmp_path)) is None
    (unknown,) = evaluate_lengths(tmp_path, PARITY, rows, progress=False)
    assert (unknown.seed, unknown.steps, unknown.learning_rate) == (None, None, None)
    assert unknown.metrics == direct.metrics


def test_evaluation_is_written_as_a_cell_of_its_own(tmp_path):
    rows = evaluate_lengths(
        make_model(PARITY), PARITY, {"test_12": draw(PARITY, "test_12", 8)}, run=RUN, progress=False
    )
    path = write_evaluation(tmp_path, rows)
    (read,) = read_rows(path)
    assert read.cell == path.stem != RUN.cell
    assert dataclasses.replace(read, cell=RUN.cell) == rows[0]


def test_config_digest_is_of_the_model_and_not_of_who_saved_it(tmp_path):
    model = make_model(PARITY)
    model.save_pretrained(tmp_path)
    assert config_digest(load_for_task(tmp_path, PARITY.task).config) == config_digest(model.config)
    other = mixer_config("lru", vocab_size=2, num_labels=2, hidden_size=10)
    assert config_digest(other) != config_digest(model.config)


def test_models_that_do_not_fit_the_task_are_refused(tmp_path):
    rows = {"test_12": draw(PARITY, "test_12", 2)}
    causal = mixer_model(mixer_config("lru", vocab_size=16, hidden_size=8), "causal")
    with pytest.raises(ValueError, match="ForTokenClassification, got MemoryLRUForCausalLM"):
        evaluate_lengths(causal, PARITY, rows)
    causal.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"bit_parity needs a model ForTokenClassification, .* is MemoryLRUForCausalLM"
    ):
        evaluate_lengths(tmp_path, PARITY, rows)
    with pytest.raises(ValueError, match="vocab_size must be at least 2048"):
        evaluate_lengths(causal, specify("mqar", vocab_size=2048), {})
    small = mixer_model(mixer_config("lru", vocab_size=2, num_labels=2, hidden_size=8), "token_classification")
    with pytest.raises(ValueError, match="num_labels must be at least 5"):
        evaluate_lengths(small, specify("bit_parity", modulus=5), {})
    with pytest.raises(ValueError, match="splits: 'test_13' is unknown"):
        evaluate_lengths(small, PARITY, {"test_13": rows["test_12"]})
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        evaluate_lengths(small, PARITY, rows, batch_size=0, progress=False)


def test_checkpoint_of_another_library_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(
        ValueError,
        match=r"model_type 'gpt2', and .hf-memory probe. asks models of other libraries \(known here: memory_rnn",
    ):
        evaluate_lengths(tmp_path, PARITY, {})
