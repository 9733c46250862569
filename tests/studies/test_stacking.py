"""Stacked runs: each replica equals its single run, and a sweep that stacks leaves what one that does not leaves."""

import dataclasses

import pytest
import torch

from hf_memory.data.collator import MemoryCollator
from hf_memory.data.tensors import StackedRows, TensorRows
from hf_memory.experiments.provenance import weights_digest
from hf_memory.experiments.results import cell_path, read_rows
from hf_memory.experiments.run import Experiment
from hf_memory.experiments.training import MemoryTrainer
from hf_memory.mixers.auto import mixer_config, mixer_model, model_keys
from hf_memory.models import heads
from hf_memory.studies import sweep
from hf_memory.studies.cells import Cell, as_stacks, run_cell, run_cells, stack_pays, state_of
from hf_memory.studies.stacking import StackedModel, StackedTrainer, run_stacked, why_not_stackable
from hf_memory.studies.watched import WatchedExperiment, checkpoint_path, read_history
from tests.studies.sweep_examples import TINY_DATA, InlineWorkers, planned, tiny_recipe

SIZES = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 2}


@pytest.fixture
def float64(monkeypatch):
    """Models of runs in float64, their recurrences too, and one backend for all."""
    monkeypatch.setenv("HF_MEMORY_BACKEND", "torch")
    make_model = Experiment.make_model
    monkeypatch.setattr(Experiment, "make_model", lambda experiment, seed: make_model(experiment, seed).double())


def twins(key: str, head: str, count: int = 3):
    """The same models twice, and rows with right padding, in each of which a position is supervised."""
    config = mixer_config(key, num_labels=3, **SIZES)
    stacked, single = [], []
    for seed in range(count):
        for models in (stacked, single):
            torch.manual_seed(seed)
            models.append(mixer_model(config, head).double().train())
    torch.manual_seed(99)
    lengths = torch.tensor([[11], [7], [9]])
    mask = (torch.arange(11) < lengths).long()
    ids = torch.randint(0, 13, (3, 11)) * mask
    labels = torch.randint(0, 3, (3, 11)).masked_fill(mask == 0, -100)
    return stacked, single, {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("head", ["causal", "token_classification"])
@pytest.mark.parametrize("key", model_keys())
def test_losses_and_gradients_of_a_stack_are_those_of_its_replicas(key, head, float64):
    stacked, single, inputs = twins(key, head)
    outputs = StackedModel(stacked)(**inputs)
    outputs["loss"].backward()
    for index, model in enumerate(single):
        loss = model(**inputs).loss
        loss.backward()
        torch.testing.assert_close(outputs["losses"][index], loss, rtol=1e-12, atol=1e-13)
        for (name, own), mine in zip(model.named_parameters(), stacked[index].parameters(), strict=True):
            assert (own.grad is None) == (mine.grad is None), name
            if own.grad is not None:
                torch.testing.assert_close(mine.grad, own.grad, rtol=1e-10, atol=1e-13, msg=name)


@pytest.mark.parametrize("head", ["causal", "token_classification"])
@pytest.mark.parametrize("key", model_keys())
def test_replicas_with_rows_of_their_own_have_the_losses_and_gradients_of_single_models(key, head, float64):
    stacked, single, inputs = twins(key, head)
    ids = torch.stack([inputs["input_ids"].roll(shift, 1) for shift in range(3)])
    labels = torch.stack([inputs["labels"].roll(shift, 0) for shift in range(3)])
    labels[2, 0, 2:] = -100  # the replicas have unlike numbers of targets
    outputs = StackedModel(stacked)(input_ids=ids, labels=labels, num_items_in_batch=torch.tensor(7))
    outputs["loss"].backward()
    wrong = labels.masked_fill(labels == 2, 99)
    with pytest.raises(ValueError, match="labels must be integers"):
        StackedModel(stacked)(input_ids=ids, labels=wrong)
    for index, model in enumerate(single):
        loss = model(input_ids=ids[index], labels=labels[index]).loss
        loss.backward()
        torch.testing.assert_close(outputs["losses"][index], loss, rtol=1e-12, atol=1e-13)
        for (name, own), mine in zip(model.named_parameters(), stacked[index].parameters(), strict=True):
            assert (own.grad is None) == (mine.grad is None), name
            if own.grad is not None:
                torch.testing.assert_close(mine.grad, own.grad, rtol=1e-10, atol=1e-13, msg=name)


def test_replicas_with_real_targets_of_their_own_have_the_losses_of_single_models(float64):
    config = mixer_config("lstm", **{**SIZES, "num_labels": 1, "problem_type": "regression"})
    models = [mixer_model(config, "token_classification").double().train() for _ in range(3)]
    ids, labels = torch.randint(0, 13, (3, 4, 9)), torch.randn(3, 4, 9, dtype=torch.float64)
    labels[2, 0, 2:] = -100
    losses = StackedModel(models)(input_ids=ids, labels=labels)["losses"]
    for index, model in enumerate(models):
        loss = model(input_ids=ids[index], labels=labels[index]).loss
        torch.testing.assert_close(losses[index], loss, rtol=1e-12, atol=1e-13)


def cells_of(arm, steps=20, **changes):
    """Three runs that differ in learning rate and seed, with clipping and three evaluations."""
    training = {"steps": steps, "batch_size": 8, "clip": 0.5}
    recipe = tiny_recipe(
        arms=arm, training=training, evaluate={"points": 3, "splits": ["validation", "test_12"], "rows": 32}, **changes
    )
    cells = planned(recipe)
    assert len({(cell.learning_rate, cell.seed) for cell in cells}) == len(cells) == 3
    return cells


OWN = {"seeds": {"search": [0], "final": [1], "rows": "own"}, "data": {**TINY_DATA, "num_train": 44}}
"""Each seed brings rows and an order of its own; all are met several times, and the last batch is smaller."""


RAGGED = {**OWN, "data": {**OWN["data"], "length": [5, 8]}}


@pytest.mark.parametrize(("rows", "changes"), [("shared", {}), ("own", OWN), ("ragged", RAGGED)])
@pytest.mark.parametrize("mixer", ["attention", "linear_transformer", "delta_net", "lru", "qlstm", "s4d", "mamba"])
def test_twenty_steps_of_a_stack_equal_those_of_single_runs(mixer, rows, changes, tmp_path, float64):
    cells = cells_of({mixer: {}}, **changes)
    assert len({cell.experiment().specification.seed for cell in cells}) == (1 if rows == "shared" else 2)
    run_stacked([cell.experiment() for cell in cells], tmp_path / "stack", lambda steps: None)
    for cell in cells:
        run_cell(cell, tmp_path / "single")
        mine, own = (read_rows(cell_path(tmp_path / folder, cell.digest)) for folder in ("stack", "single"))
        assert [row.split for row in mine] == [row.split for row in own] == ["validation", "test_8", "test_12"]
        for left, right in zip(mine, own, strict=True):
            for metric, value in right.metrics.items():
                assert left.metrics[metric].value == pytest.approx(value.value, rel=2e-12), metric
            facts = ("cell", "seed", "learning_rate", "learning_rate_grid", "schedule", "stop_rule", "steps", "tokens")
            assert [getattr(left, name) for name in facts] == [getattr(right, name) for name in facts]
        mine, own = (read_history(tmp_path / folder, cell.digest) for folder in ("stack", "single"))
        assert [(point.steps, point.split) for point in mine] == [(point.steps, point.split) for point in own]
        for left, right in zip(mine, own, strict=True):
            assert left.values == pytest.approx(dict(right.values), rel=2e-12)


@pytest.mark.parametrize(("level", "changes"), [(0.5, {}), (0.45, OWN)], ids=["shared", "own"])
def test_a_replica_that_ends_early_keeps_the_weights_it_had(level, changes, tmp_path, float64):
    cells = cells_of({"lstm": {"training": {"stop_at": level}}}, learning_rates=[1e-5, 3e-2], **changes)
    run_stacked([cell.experiment() for cell in cells], tmp_path / "stack", lambda steps: None)
    steps = set()
    for cell in cells:
        run_cell(cell, tmp_path / "single")
        mine, own = (read_rows(cell_path(tmp_path / folder, cell.digest))[0] for folder in ("stack", "single"))
        assert (mine.steps, mine.tokens) == (own.steps, own.tokens)
        assert mine.measured("loss").value == pytest.approx(own.measured("loss").value, rel=2e-12)
        steps.add(own.steps)
    assert len(steps) > 1, "the runs were to end at different steps"


@pytest.mark.parametrize("changes", [{}, OWN], ids=["shared", "own"])
def test_a_replica_that_diverges_leaves_the_others_alone(changes, tmp_path, float64):
    cells = cells_of({"linear_transformer": {}}, learning_rates=[1e-3, 10.0], **changes)
    cells = [dataclasses.replace(cell, learning_rate=1e300) if cell.learning_rate > 1 else cell for cell in cells]
    wild = [cell for cell in cells if cell.learning_rate == 1e300]
    run_stacked([cell.experiment() for cell in cells], tmp_path / "stack", lambda steps: None)
    for cell in cells:
        run_cell(cell, tmp_path / "single")
        mine, own = (read_rows(cell_path(tmp_path / folder, cell.digest))[0] for folder in ("stack", "single"))
        assert mine.steps == own.steps
        assert mine.measured("loss").value == pytest.approx(own.measured("loss").value, rel=2e-12, nan_ok=True)
        assert (mine.measured("loss").value != mine.measured("loss").value) == (cell in wild)


def test_a_stack_meets_the_rows_of_each_single_run_in_their_order(tmp_path):
    cells = cells_of({"lstm": {}}, **OWN)
    experiments = [cell.experiment() for cell in cells]
    settings = [experiment.make_arguments(str(tmp_path)) for experiment in experiments]
    parts = [
        TensorRows({name: torch.arange(44)[:, None] + 100 * index for name in ("input_ids", "labels")})
        for index in range(3)
    ]
    models = [experiment.make_model(0) for experiment in experiments]
    trainer = StackedTrainer(
        experiments, settings, model=StackedModel(models), args=settings[0], train_dataset=StackedRows(parts),
        data_collator=MemoryCollator(),
    )  # fmt: skip
    loader = trainer.get_train_dataloader()
    assert len(loader) == 6
    singles = [
        MemoryTrainer(models[0], own, train_dataset=part, data_collator=MemoryCollator()).get_train_dataloader()
        for own, part in zip(settings, parts, strict=True)
    ]
    orders = set()
    for epoch in range(3):
        for own in (loader, *singles):
            own.set_epoch(epoch)
        for batch, *alone in zip(loader, *singles, strict=True):
            for name in ("input_ids", "labels"):
                assert torch.equal(batch[name], torch.stack([single[name] for single in alone]))
            orders.add(tuple(batch["input_ids"].flatten().tolist()))
    assert len(orders) == 18


def test_stacks_hold_what_differs_in_rate_and_seed_alone():
    cells = planned(tiny_recipe())
    stacks = as_stacks(cells, 2)
    assert sorted(cell.digest for stack in stacks for cell in stack) == sorted(cell.digest for cell in cells)
    assert [len(stack) for stack in stacks] == [2, 1, 2, 1]
    assert all(len({cell.place["arm"] for cell in stack}) == 1 for stack in stacks)
    assert [len(stack) for stack in as_stacks(cells, 1)] == [1] * len(cells)
    noisy = planned(tiny_recipe(model={"num_hidden_layers": 1, "residual_dropout": 0.1}))
    assert [len(stack) for stack in as_stacks(noisy, 8)] == [1] * len(noisy)


def test_steps_of_much_work_are_not_stacked(monkeypatch):
    def cells(width: int, batch: int) -> list[Cell]:
        training = {"steps": 3, "batch_size": batch}
        sizing = {"by": "hidden", "value": width}
        data = {**TINY_DATA, "length": 32}
        return planned(tiny_recipe(arms={"lstm": {}}, training=training, sizing=sizing, data=data))

    sizes = {(4, 32): 3, (8, 32): 3, (4, 128): 1, (16, 8): 1, (64, 8): 1}
    assert {size: max(len(stack) for stack in as_stacks(cells(*size), 8)) for size in sizes} == sizes
    wide = cells(64, 64)[0]
    assert not stack_pays(wide)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert stack_pays(wide)


def test_seeds_with_rows_of_their_own_share_a_stack():
    seeds = {"search": [0], "final": [1, 2], "rows": "own"}
    own = planned(tiny_recipe(arms={"lstm": {}}, seeds=seeds))
    assert [len(stack) for stack in as_stacks(own, 8)] == [len(own)] == [4]
    several = planned(tiny_recipe(arms={"lstm": {}}, seeds=seeds, data={**TINY_DATA, "length": [5, 8]}))
    assert [len(stack) for stack in as_stacks(several, 8)] == [4]
    assert len({cell.digest for cell in own}) == 4


def test_rows_side_by_side_are_filled_up_at_their_right_ends():
    rows = [TensorRows({"input_ids": [[1, 2]] * count, "labels": [[1, 2]] * count}) for count in (2, 3)]
    with pytest.raises(ValueError, match="equally many rows"):
        StackedRows(rows)
    short = TensorRows({"input_ids": [[1], [2, 3]], "labels": [[0], [1, 0]]})
    long = TensorRows({"input_ids": [[4, 5, 6], [7]], "labels": [[1, 1, 0], [1]]})
    batch = StackedRows([short, long]).__getitems__(torch.tensor([[0, 1], [1, 0]]))
    assert batch["input_ids"].tolist() == [[[1, 0, 0], [2, 3, 0]], [[7, 0, 0], [4, 5, 6]]]
    assert batch["labels"].tolist() == [
        [[0, -100, -100], [1, 0, -100]], [[1, -100, -100], [1, 1, 0]],
    ]  # fmt: skip


def test_what_cannot_be_stacked_says_why(monkeypatch):
    model = mixer_model(mixer_config("lstm", residual_dropout=0.1, **SIZES), "causal")
    assert why_not_stackable(model) == "residual_dropout=0.1 draws noise, and each run has its own seed"
    with pytest.raises(ValueError, match="residual_dropout=0.1 draws noise"):
        StackedModel([model])
    noisy = {"layers": ["gru", {"mixer": "attention", "attention_dropout": 0.2}]}
    hybrid = mixer_model(mixer_config("hybrid", **SIZES, **noisy), "causal")
    assert why_not_stackable(hybrid).startswith("attention_dropout=0.2 draws noise")
    plain, wider = (mixer_model(mixer_config("lstm", **{**SIZES, "hidden_size": size}), "causal") for size in (8, 16))
    with pytest.raises(ValueError, match="one class and one config"):
        StackedModel([plain, wider])
    with pytest.raises(ValueError, match="at least one"):
        StackedModel([])
    monkeypatch.setattr(type(plain.model.layers[0].mixer), "stackable", False)
    assert "LSTM" in why_not_stackable(plain)
    first, *_, last = planned(tiny_recipe())
    with pytest.raises(ValueError, match="learning rate, seed and data seed alone"):
        run_stacked([first.experiment(), last.experiment()], None, lambda steps: None)


def test_cells_of_a_stack_that_fails_run_alone(tmp_path, monkeypatch, caplog):
    cells = cells_of({"lstm": {}}, steps=2)
    finished, broken = cells[0], dataclasses.replace(cells[1], evaluate={"points": 2, "splits": ["no_split"]})
    run_cell(finished, tmp_path)
    outcomes = run_cells([finished, broken, cells[2]], tmp_path)
    assert [outcome for outcome, _ in outcomes] == ["finished before", "failed", "trained"]
    assert "they run one by one" in caplog.text
    assert [state_of(tmp_path, cell) for cell in (finished, broken, cells[2])] == ["finished", "failed", "finished"]
    assert not list(tmp_path.glob("*.lock"))


def test_a_run_that_cannot_be_evaluated_costs_no_other_one(tmp_path, monkeypatch):
    cells = cells_of({"lstm": {}}, steps=2)
    conclude, called = WatchedExperiment.conclude, []

    def fails_once(experiment, *args, **kwargs):
        called.append(kwargs)
        if len(called) == 1:
            raise OSError("no space left")
        return conclude(experiment, *args, **kwargs)

    monkeypatch.setattr(WatchedExperiment, "conclude", fails_once)
    assert run_cells(cells, tmp_path) == [("trained", "")] * 3
    assert len(called) == 4, "the first run alone, the others as they were"
    backends = [read_rows(cell_path(tmp_path, cell.digest))[0].backend for cell in cells]
    assert ["one of 3" in backend for backend in backends] == [False, True, True]


def test_losses_that_are_recomputed_in_chunks_can_be_stacked(float64, monkeypatch):
    monkeypatch.setattr(heads, "_CHUNK_LOGITS", 26)
    for head in ("causal", "token_classification"):
        test_losses_and_gradients_of_a_stack_are_those_of_its_replicas("lstm", head, float64)


def test_a_schedule_that_knows_one_rate_is_not_stacked(tmp_path):
    cells = planned(tiny_recipe(training={"steps": 3, "batch_size": 8, "schedule": "polynomial"}))
    assert [len(stack) for stack in as_stacks(cells, 8)] == [1] * len(cells)
    with pytest.raises(ValueError, match="'polynomial' knows one learning rate only"):
        run_stacked([cell.experiment() for cell in cells[:2]], tmp_path, lambda steps: None)


def test_stacks_leave_work_for_every_process():
    cells = planned(tiny_recipe(arms={"lstm": {}}, learning_rates=[1e-3, 2e-3, 4e-3, 8e-3], seeds={"search": [0]}))
    assert [len(stack) for stack in as_stacks(cells, 64)] == [4]
    assert [len(stack) for stack in as_stacks(cells, 64, workers=2)] == [2, 2]
    assert [len(stack) for stack in as_stacks(cells, 64, workers=8)] == [1, 1, 1, 1]


def test_a_stacked_sweep_finds_what_a_plain_one_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "make_workers", lambda *args: InlineWorkers())
    recipe = tiny_recipe(arms={"lstm": {}, "lru": {}})
    plain = sweep.run_sweep(recipe, tmp_path / "plain", progress=False)
    stacked = sweep.run_sweep(recipe, tmp_path / "stacked", stack=8, progress=False)
    assert [result.digest for result in stacked.results] == [result.digest for result in plain.results]
    backends = {row.backend for result in stacked.results for row in result.rows.values()}
    assert {backend.partition(", trained ")[2] for backend in backends} == {"in torch as one of 2 replicas", ""}
    for mine, own in zip(stacked.results, plain.results, strict=True):
        for split, row in own.rows.items():
            assert mine.rows[split].measured("loss").value == pytest.approx(row.measured("loss").value, rel=1e-4)
    with pytest.raises(ValueError, match="stack must be at least 1"):
        sweep.run_sweep(recipe, tmp_path, stack=0)


def test_stacked_runs_leave_the_checkpoints_of_their_rows(tmp_path):
    recipe = tiny_recipe(arms={"lstm": {}}, seeds={"search": [0], "final": [1, 2]})
    cells = [cell for cell in planned(recipe) if cell.stage == "final"]
    run_cells(cells, tmp_path)
    rows = [read_rows(cell_path(tmp_path, cell.digest))[0] for cell in cells]
    assert all(row.backend.endswith("as one of 2 replicas") for row in rows)
    kept = [weights_digest(checkpoint_path(tmp_path, cell.digest)) for cell in cells]
    assert kept == [row.weights_sha256 for row in rows]
    assert len(set(kept)) == 2
