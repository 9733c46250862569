"""What a trainer trains and reports: smoothed labels, exact losses, losses of one's own."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import Trainer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)

from hf_memory.data.collator import MemoryCollator
from hf_memory.experiments.training import MemoryTrainer, metrics_for_task, training_arguments
from hf_memory.mixers.auto import mixer_config, mixer_model, model_class, model_keys
from hf_memory.tasks import make_task
from hf_memory.testing.heads import Rows
from hf_memory.testing.models import close, make

HEADS = pytest.mark.parametrize("head", ["causal", "token_classification"])
TRAINERS = pytest.mark.parametrize("trainer_class", [Trainer, MemoryTrainer])
SGD = {
    "optim": "sgd",
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "max_steps": 1,
    "learning_rate": 1.0,
    "lr_scheduler_type": "constant",
    "disable_tqdm": True,
    "use_cpu": True,
}


def trainer_of(trainer_class, model, folder, rows=None, compute_loss_func=None, compute_metrics=None, **arguments):
    rows = Rows(model.head.out_features) if rows is None else rows
    return trainer_class(
        model=model,
        args=training_arguments(
            str(folder),
            **{**SGD, **arguments},
        ),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=MemoryCollator(),
        compute_loss_func=compute_loss_func,
        compute_metrics=compute_metrics,
    )


def cross_entropy(model, rows, **options):
    """Mean cross entropy over all targets of the rows, from all logits."""
    shift, logits = model.shift, model(rows.ids).logits
    logits = logits[:, : logits.shape[1] - shift]
    return F.cross_entropy(logits.flatten(0, 1), rows.labels[:, shift:].flatten(), **options)


@HEADS
@TRAINERS
def test_a_step_with_smoothed_labels_is_one_down_the_gradient_of_the_smoothed_loss(trainer_class, head, tmp_path):
    model, other = (make("lstm", head, dtype=torch.float64) for _ in range(2))
    rows = Rows(model.head.out_features)
    trainer_of(trainer_class, model, tmp_path, label_smoothing_factor=0.2, per_device_train_batch_size=8).train()
    cross_entropy(other, rows, label_smoothing=0.2).backward()
    for (name, moved), (_, start) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        # transformers sums the smoothed part in float32
        close(moved, start - start.grad, 1e-9 if trainer_class is MemoryTrainer else 1e-7), name


def test_smoothed_labels_do_not_teach_a_model_to_copy_its_input(tmp_path):
    ids = torch.randint(0, 11, (64, 10), generator=torch.Generator().manual_seed(0))
    model = mixer_model(mixer_config("lru", vocab_size=11, hidden_size=16, num_hidden_layers=1), "causal")
    rows = [{"input_ids": row, "labels": row} for row in ids]
    options = {"label_smoothing_factor": 0.1, "max_steps": 60, "learning_rate": 1e-2, "optim": "adamw_torch"}
    trainer_of(Trainer, model, tmp_path, rows, per_device_train_batch_size=16, **options).train()
    with torch.no_grad():
        copied = (model.eval()(ids).logits.argmax(-1) == ids).double().mean().item()
    assert copied < 0.3


def test_labels_of_a_regression_cannot_be_smoothed(tmp_path):
    config = mixer_config("lru", vocab_size=11, hidden_size=8, num_labels=1, problem_type="regression")
    model = mixer_model(config, "token_classification")
    with pytest.raises(ValueError, match="label_smoothing_factor must be 0 for a regression"):
        trainer_of(MemoryTrainer, model, tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="label_smoothing_factor must be 0 with a compute_loss_func"):
        trainer_of(MemoryTrainer, make("lru"), tmp_path, compute_loss_func=doubled, label_smoothing_factor=0.1)


@pytest.mark.parametrize("key", model_keys())
def test_transformers_knows_by_name_which_heads_are_causal(key):
    for names, suffix in (
        (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "causal"),
        (MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, "token_classification"),
    ):
        cls = model_class(key, suffix)
        assert names[cls.config_class.model_type] == cls.__name__


def doubled(outputs, labels, num_items_in_batch=None):
    """Twice the loss of a causal head, summed over the batch and divided by what the trainer counted."""
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return 2 * F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


def share_of_right(prediction):
    """Metrics of one's own, which say nothing of the loss."""
    return {"first": float(prediction.predictions[0][0, 0])}


@HEADS
@pytest.mark.parametrize("metrics", [None, share_of_right])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_evaluated_loss_is_the_sum_over_the_number_of_targets(batch, metrics, head, tmp_path):
    model = make("lru", head, dtype=torch.float64)
    rows = Rows(model.head.out_features)
    options = {"per_device_eval_batch_size": batch, "label_smoothing_factor": 0.3}
    trainer = trainer_of(MemoryTrainer, model, tmp_path, compute_metrics=metrics, **options)
    with torch.no_grad():
        expected = cross_entropy(model, rows).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.predict(rows).metrics["test_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("batch", [3, 8])
@pytest.mark.parametrize("with_metrics", [False, True])
def test_a_loss_of_ones_own_is_evaluated_too(batch, with_metrics, tmp_path):
    model = make("lru", dtype=torch.float64)
    task = make_task("mqar", vocab_size=11, num_kv_pairs=2)
    metrics = metrics_for_task(task, 10) if with_metrics else None
    trainer = trainer_of(
        MemoryTrainer, model, tmp_path, None, doubled, metrics, per_device_eval_batch_size=batch, max_steps=1
    )
    with torch.no_grad():
        expected = 2 * cross_entropy(model, Rows(11)).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    trainer.train()
    assert np.isfinite(trainer.state.log_history[-1]["train_loss"])


def test_rows_without_labels_are_predicted(tmp_path):
    model = make("lru")
    rows = [{"input_ids": row} for row in Rows(11).ids]
    output = trainer_of(MemoryTrainer, model, tmp_path, rows).predict(rows)
    assert output.predictions.shape == (8, 10, 11)
    assert "test_loss" not in output.metrics
