"""Losses, predictions and training, for every model type."""

import threading

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import Trainer

from hf_memory.data.collator import MemoryCollator
from hf_memory.experiments.training import MemoryTrainer, training_arguments
from hf_memory.ops.backends.dispatch import requested_backend, use_backend
from hf_memory.testing.models import close, make, tokens


def reference_loss(logits, labels, shift):
    """Cross-entropy of the supervised positions, written down plainly."""
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


@pytest.mark.parametrize("head", ["causal", "token_classification"])
def test_the_loss_is_the_summed_cross_entropy_over_the_number_of_targets(key, head):
    model = make(key, head, dtype=torch.float64)
    shift, classes = (1, 11) if head == "causal" else (0, 3)
    ids, labels = tokens(), torch.randint(0, classes, (3, 12))
    labels[torch.rand(3, 12) < 0.5] = -100
    logits = model(ids).logits
    count = (labels[:, shift:] != -100).sum()
    outputs = model(ids, labels=labels)
    close(outputs.loss, reference_loss(logits, labels, shift) / count, 1e-10)
    close(outputs.logits, logits, 0)
    close(model(ids, labels=labels, num_items_in_batch=7).loss, reference_loss(logits, labels, shift) / 7, 1e-10)
    training = model.train()(ids, labels=labels)
    assert training.logits is None
    close(training.loss, outputs.loss, 1e-10)


def test_predictions_without_logits_are_those_of_the_logits(key):
    model = make(key, dtype=torch.float64)
    ids, labels = tokens(), tokens()
    labels[:, :4] = -100
    logits = model(ids).logits
    outputs = model(ids, labels=labels, return_logits=False)
    assert outputs.logits is None
    supervised = F.pad(labels[:, 1:], (0, 1), value=-100) != -100
    assert torch.equal(outputs.predictions[supervised], logits.argmax(-1)[supervised])
    assert (outputs.predictions[~supervised] == -100).all()
    close(outputs.token_loss.sum() / supervised.sum(), outputs.loss, 1e-12)
    assert (outputs.token_loss[~supervised] == 0).all()
    assert torch.equal(model(ids, return_logits=False).predictions, logits.argmax(-1))
    close(model(ids, logits_to_keep=2).logits, logits[:, -2:], 1e-12)


def test_a_batch_without_targets_has_loss_zero_with_a_gradient(key):
    model = make(key)
    loss = model.train()(tokens(), labels=torch.full((3, 12), -100)).loss
    loss.backward()
    assert loss.item() == 0
    assert model.head.weight.grad.abs().max() == 0


@pytest.mark.parametrize("label", [11, -1])
def test_a_label_outside_of_the_classes_is_refused(key, label):
    labels = tokens()
    labels[1, 3] = label
    with pytest.raises(ValueError, match="labels"):
        make(key)(tokens(), labels=labels)


def test_regression_is_squared_error_on_floating_point_labels(key):
    model = make(key, "token_classification", dtype=torch.float64, problem_type="regression")
    model.config.num_labels = 1
    model = type(model)(model.config).eval().double()
    ids, labels = tokens(), torch.randn(3, 12, dtype=torch.float64)
    labels[:, :5] = -100
    outputs = model(ids, labels=labels, return_logits=False)
    values = model(ids).logits.squeeze(-1)
    close(outputs.loss, (values - labels)[:, 5:].square().mean(), 1e-12)
    close(outputs.predictions[:, 5:], values[:, 5:], 1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(key, reentrant):
    ids, labels = tokens(), tokens()
    plain, saving = (make(key, intermediate_size=8).train() for _ in range(2))
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    losses = [model(ids, labels=labels, use_cache=True) for model in (plain, saving)]
    assert saving.model.layers[0].gradient_checkpointing
    assert losses[1].cache is None
    assert torch.equal(losses[0].loss, losses[1].loss)
    for outputs in losses:
        outputs.loss.backward()
    for (name, ours), (_, theirs) in zip(plain.named_parameters(), saving.named_parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name


class Rows(Dataset):
    """Rows with unequal numbers of targets."""

    def __init__(self, classes, count=8):
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, 11, (count, 10), generator=generator)
        self.labels = torch.randint(0, classes, (count, 10), generator=generator)
        for row in range(count):
            self.labels[row, : row % 5 + 1] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def train(trainer_class, model, folder, **arguments):
    trainer = trainer_class(
        model=model,
        args=training_arguments(
            str(folder), max_steps=2, optim="sgd", weight_decay=0.0, warmup_steps=0, disable_tqdm=True, **arguments
        ),
        train_dataset=Rows(model.head.out_features),
        eval_dataset=Rows(model.head.out_features),
        data_collator=MemoryCollator(),
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("head", ["causal", "token_classification"])
def test_accumulated_batches_take_the_step_of_one_large_batch(key, head, tmp_path):
    whole, parts = make(key, head, dtype=torch.float64), make(key, head, dtype=torch.float64)
    train(MemoryTrainer, whole, tmp_path / "whole", per_device_train_batch_size=4)
    train(MemoryTrainer, parts, tmp_path / "parts", per_device_train_batch_size=1, gradient_accumulation_steps=4)
    start = make(key, head, dtype=torch.float64)
    assert any(not torch.equal(a, b) for a, b in zip(whole.parameters(), start.parameters(), strict=True))
    for (name, ours), (_, theirs) in zip(whole.named_parameters(), parts.named_parameters(), strict=True):
        close(ours, theirs, 1e-9), name


def test_a_plain_trainer_trains_and_evaluates(key, tmp_path):
    model = make(key)
    trainer = train(Trainer, model, tmp_path, per_device_train_batch_size=4)
    metrics = trainer.evaluate()
    labels = Rows(11).labels
    with torch.no_grad():
        expected = reference_loss(model.eval()(Rows(11).ids).logits, labels, 1) / (labels[:, 1:] != -100).sum()
    assert metrics["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)
    trainer.save_model(str(tmp_path / "saved"))
    again = type(model).from_pretrained(tmp_path / "saved")
    assert torch.equal(again.eval()(tokens()).logits.isfinite(), torch.ones(3, 12, 11, dtype=torch.bool))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_backward_pass_in_another_thread_recomputes_in_the_backend_of_the_forward_pass(key, reentrant):
    ids = tokens()
    plain, saving = make(key).train(), make(key).train()
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    used = []
    with use_backend("torch"):
        losses = [model(ids, labels=ids).loss for model in (plain, saving)]
        losses[0].backward()
    for layer in saving.model.layers:
        layer.mixer.register_forward_pre_hook(lambda *_: used.append(requested_backend()))
    thread = threading.Thread(target=losses[1].backward)
    thread.start()
    thread.join()
    assert used == ["torch", "torch"]
    for (name, ours), (_, theirs) in zip(plain.named_parameters(), saving.named_parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name
