"""A run without bookkeeping: its weights are those of a plain Trainer's, bit by bit."""

import importlib.util
import sys

import pytest
import torch

from hf_memory.experiments.training import MemoryTrainer
from hf_memory.studies.lean import LeanTrainer, mark_absent
from hf_memory.studies.watched import History, WatchedExperiment
from tests.studies.sweep_examples import TINY_DATA, planned, tiny_recipe


def trained(cell, trainer_class, monkeypatch, tmp_path):
    """Weights, evaluations and tokens of a run with one of the trainers."""
    monkeypatch.setattr(WatchedExperiment, "trainer_class", trainer_class)
    experiment = cell.experiment()
    arguments = experiment.make_arguments(str(tmp_path))
    rows = experiment.load_rows(arguments)
    history = History(experiment, rows, lambda steps: None)
    trainer, _ = experiment._train(arguments, rows, [history])
    assert type(trainer) is trainer_class
    return trainer.model.state_dict(), history.points, trainer.state.num_input_tokens_seen


ONE, SEVERAL = TINY_DATA, {**TINY_DATA, "length": [5, 8]}


@pytest.mark.parametrize(
    ("mixer", "data", "clip"),
    [("lstm", ONE, 0.0), ("lstm", SEVERAL, 0.5), ("attention", ONE, 0.5), ("mamba", SEVERAL, 0.0), ("lru", ONE, 0.5)],
    ids=["lstm", "lstm of several lengths", "attention", "mamba of several lengths", "lru"],
)
def test_a_lean_run_is_a_plain_run_bit_by_bit(data, mixer, clip, monkeypatch, tmp_path):
    training = {"steps": 30, "batch_size": 8, "clip": clip}
    model = {"num_hidden_layers": 1, "residual_dropout": 0.1}
    evaluate = {"points": 4, "splits": ["validation", "test_12"], "rows": 32}
    cell = planned(tiny_recipe(arms={mixer: {}}, training=training, model=model, evaluate=evaluate, data=data))[0]
    lean = trained(cell, LeanTrainer, monkeypatch, tmp_path / "lean")
    plain = trained(cell, MemoryTrainer, monkeypatch, tmp_path / "plain")
    assert lean[0].keys() == plain[0].keys()
    assert all(torch.equal(lean[0][name], plain[0][name]) for name in plain[0])
    assert lean[1:] == plain[1:]
    assert len(lean[1]) == 8


def test_steps_that_are_not_plain_are_left_to_trainer(monkeypatch, tmp_path):
    cell = planned(tiny_recipe(arms={"lstm": {}}))[0]
    experiment = cell.experiment()
    arguments = experiment.make_arguments(str(tmp_path))
    model, called = experiment.make_model(0), []
    trainer = LeanTrainer(model, arguments)
    trainer.args.gradient_accumulation_steps = 2
    monkeypatch.setattr(MemoryTrainer, "training_step", lambda *args: called.append(args[1:]))
    trainer.training_step(model, {}, 3)
    assert called == [(model, {}, 3)]


def test_a_package_that_is_absent_is_not_searched_again(monkeypatch):
    monkeypatch.delitem(sys.modules, "no_such_package", raising=False)
    mark_absent("no_such_package")
    monkeypatch.setattr(sys, "meta_path", [])
    assert importlib.util.find_spec("no_such_package") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("no_such_package")
    monkeypatch.delitem(sys.modules, "no_such_package")
    mark_absent("torch")
    assert sys.modules["torch"] is torch
