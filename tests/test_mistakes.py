"""Mistakes of a new user in Python: each ends in a ``ValueError`` that names the fix."""

import json
import re

import numpy as np
import pytest
import torch
import transformers

import hf_memory
from hf_memory.data import TensorRows, specify
from hf_memory.data.collator import MemoryCollator
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.training import MemoryTrainer, model_for_task, training_arguments
from hf_memory.mixers.lstm import MemoryLSTMConfig, MemoryLSTMForCausalLM
from hf_memory.ops.backends.dispatch import requested_backend, use_backend
from hf_memory.testing import check_mixer

TASK = hf_memory.make_task("bit_parity")
SIZES = {"hidden_size": 8, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def rows() -> TensorRows:
    ids = np.random.default_rng(0).integers(2, size=(8, 6))
    return TensorRows({"input_ids": ids, "labels": TASK.solve(ids)})


@pytest.fixture
def causal() -> MemoryLSTMForCausalLM:
    torch.manual_seed(0)
    return MemoryLSTMForCausalLM(MemoryLSTMConfig(vocab_size=16, **SIZES)).eval()


def refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_name_in_the_place_of_what_it_names(rows):
    model = model_for_task("lstm", TASK, **SIZES)
    refused(
        lambda: hf_memory.mixer_model("lstm", "causal"),
        "config must be a MemoryConfig, as mixer_config('lstm')",
    )
    refused(lambda: model_for_task("lstm", "bit_parity"), "task must be a Task, as make_task('bit_parity') makes it")
    refused(lambda: check_mixer("lstm"), "config must be a config class such as MemoryLSTMConfig, got 'lstm'")
    refused(lambda: evaluate_lengths(model, "bit_parity", {}), "as specify('bit_parity') does")
    refused(lambda: evaluate_lengths(model, specify("bit_parity"), rows), "splits must be rows by split name")
    refused(lambda: MemoryTrainer(model="runs/lstm"), "model must be a model, got 'runs/lstm'")


def test_a_dataset_without_its_namespace(tmp_path):
    for name in ("bit_parity", "hf-memory/bit_parity"):  # in a cache that holds neither
        refused(
            lambda name=name: hf_memory.load_dataset(name, cache_dir=tmp_path), "did you mean 'hf_memory/bit_parity'?"
        )
    refused(lambda: hf_memory.load_dataset({"task": "mqar"}), "path must be a name such as 'hf_memory/mqar'")
    with pytest.raises(Exception, match="no_such_data"):
        hf_memory.load_dataset("no_such_data")


def test_a_class_that_is_spelled_otherwise():
    with pytest.raises(AttributeError, match="did you mean 'MemoryLSTMConfig'"):
        _ = hf_memory.MemoryLstmConfig
    with pytest.raises(AttributeError, match="has no attribute '_nothing'$"):
        _ = hf_memory._nothing


def test_a_field_that_a_checkpoint_does_not_have(causal, tmp_path):
    causal.save_pretrained(tmp_path)
    auto = transformers.AutoModelForCausalLM
    refused(lambda: auto.from_pretrained(tmp_path, num_heads=5), "MemoryLSTMConfig has no field 'num_heads'")
    refused(lambda: auto.from_pretrained(tmp_path, hidden_sise=5), "did you mean 'hidden_size'?")
    config = transformers.AutoConfig
    refused(lambda: config.from_pretrained(tmp_path, hidden_sise=5), "did you mean 'hidden_size'?")
    assert config.from_pretrained(tmp_path, hidden_size=16).hidden_size == 16
    assert auto.from_pretrained(tmp_path, residual=False).config.residual is False


def test_a_file_in_the_place_of_a_folder(causal, tmp_path):
    (tmp_path / "file").write_text("words")
    refused(lambda: causal.save_pretrained(tmp_path / "file"), "save_directory must be a folder, and ")
    assert (tmp_path / "file").read_text() == "words"


def test_a_backend_is_in_force_from_the_call_on_and_taken_back_at_the_end_of_a_block():
    refused(lambda: use_backend("cuda"), "backend must be one of auto, torch, numba, triton; got 'cuda'")
    before = requested_backend()
    with use_backend("torch"):
        assert requested_backend() == "torch"
        use_backend("auto")
        assert requested_backend() == "auto"
    assert requested_backend() == before


def test_generation_with_numbers_that_cannot_be(causal):
    prompt = torch.tensor([[0, 3, 0, 5]])
    refused(lambda: causal.generate(prompt, max_new_tokens=2, num_beams=0), "num_beams must be at least 1, got 0")
    refused(
        lambda: causal.generate(prompt, max_new_tokens=2, eos_token_id=16), "eos_token_id must be below vocab_size=16"
    )
    refused(lambda: causal.generate(prompt, max_new_tokens=2, pad_token_id=0), "the prompt holds 0, which would be")


def test_padding_that_is_told_apart_from_symbols_is_no_mistake(causal):
    prompt, mask = torch.tensor([[0, 3, 0, 5]]), torch.tensor([[0, 1, 1, 1]])
    rules = {"max_new_tokens": 3, "do_sample": False}
    bare = causal.generate(prompt[:, 1:], **rules)[:, 3:]
    masked = causal.generate(prompt, attention_mask=mask, pad_token_id=0, **rules)[:, 4:]
    assert torch.equal(masked, bare)
    causal.config.pad_token_id = 15  # a word for padding alone
    padded = torch.tensor([[15, 3, 0, 5]])
    assert torch.equal(causal.generate(padded, pad_token_id=15, **rules)[:, 4:], bare)


def test_rows_and_collators_that_do_not_fit(rows, tmp_path):
    model, arguments = model_for_task("lstm", TASK, **SIZES), training_arguments(str(tmp_path), use_cpu=True)

    def trainer(**given):
        return lambda: MemoryTrainer(model=model, args=arguments, **given)

    columns = {"input_ids": [[0, 1]], "label": [[0, 1]]}
    other = transformers.DefaultDataCollator()
    refused(trainer(train_dataset=rows), "data_collator must be MemoryCollator() for TensorRows")
    refused(trainer(train_dataset=rows, data_collator=other), "data_collator must be MemoryCollator() for TensorRows")
    refused(trainer(train_dataset=rows, data_collator=MemoryCollator), "must be an object, as MemoryCollator() is")
    refused(trainer(train_dataset={"train": rows}), "train_dataset must be one split, got all of 'train'")
    dataset = __import__("datasets").Dataset.from_dict(columns)
    refused(trainer(train_dataset=dataset, data_collator=MemoryCollator()), "must have a column 'labels', got ")
    trainer(train_dataset=rows, data_collator=MemoryCollator())()


def test_rows_of_unlike_columns_are_not_collated():
    collate = MemoryCollator()
    refused(lambda: collate([{"ids": [0]}]), "rows must have 'input_ids' and, for training, 'labels', got ['ids']")
    refused(lambda: collate([{"input_ids": [0]}, {"input_ids": [0], "labels": [1]}]), "rows must have the same columns")


def test_an_argument_of_trainer_that_does_not_exist(tmp_path):
    refused(lambda: training_arguments(str(tmp_path), num_train_epoch=3), "did you mean 'num_train_epochs'?")
    refused(lambda: training_arguments(str(tmp_path), max_steps=0), "max_steps must be at least 1")


def test_smoothing_of_a_regression_is_refused_where_our_code_is_asked(tmp_path):
    """A plain Trainer takes labels away before the model is called, so that only torch can say what is wrong."""
    task = hf_memory.make_task("interval_counting")
    model = model_for_task("lstm", task, **SIZES)
    ids, labels = task.sample(np.random.default_rng(0), 60, 4)
    made = {
        "model": model,
        "args": training_arguments(str(tmp_path), use_cpu=True, max_steps=1, label_smoothing_factor=0.1),
        "train_dataset": TensorRows({"input_ids": ids, "labels": labels}),
        "data_collator": MemoryCollator(),
    }
    refused(lambda: MemoryTrainer(**made), "label_smoothing_factor must be 0 for a regression")
    with pytest.raises(RuntimeError, match="gather"):
        transformers.Trainer(**made).train()


def test_a_config_keeps_what_it_can_read(tmp_path):
    config = MemoryLSTMConfig(vocab_size=2, **SIZES)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert MemoryLSTMConfig.from_dict(saved, output_attentions=False).to_dict() == config.to_dict()
