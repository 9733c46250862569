"""A model that was trained on labels of other rows scores no more than chance on the true ones."""

import numpy as np
import pytest
import torch

from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.experiments.training import model_for_task
from hf_memory.tasks import TASKS, task_class


def tensors(ids, labels):
    """Rows as a batch, with the types that models ask for."""
    labels = torch.from_numpy(labels)
    return torch.from_numpy(ids).long(), labels if labels.is_floating_point() else labels.long()


def first_law(key):
    """The task and the training length of the first preset."""
    cls = task_class(key)
    preset = next(iter(cls.presets.values()))
    length = preset.length if isinstance(preset.length, int) else preset.length[1]
    return cls(**preset.knobs), length


@pytest.mark.parametrize("key", TASKS)
def test_labels_shuffled_among_rows_teach_nothing(key):
    task, length = first_law(key)
    rng = np.random.default_rng(0)
    model = model_for_task("gru", task, hidden_size=16, num_hidden_layers=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        ids, labels = task.sample(rng, length, 32)
        ids, shuffled = tensors(ids, labels[rng.permutation(len(labels))])
        loss = model(ids, labels=shuffled).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ids, labels = task.sample(rng, length, 400)
    batch, targets = tensors(ids, labels)
    with torch.no_grad():
        outputs = model.eval()(batch, labels=targets, return_logits=False)
    values = evaluate_predictions(task, length, ids, labels, outputs.predictions.numpy(), outputs.token_loss.numpy())
    headline = values[task.headline_metric]
    noise = 4 * (0.25 / headline.denominator) ** 0.5
    assert headline.denominator >= 400
    assert headline.value <= headline.chance + noise, (headline.value, headline.chance)


@pytest.mark.parametrize("key", ["bit_parity", "mqar"])
def test_the_same_rows_with_their_own_labels_are_scored_one_where_answered_by_the_solver(key):
    task, length = first_law(key)
    ids, labels = task.sample(np.random.default_rng(1), length, 200)
    answers = task.solve(ids)
    predictions = np.roll(answers, -1, axis=1) if task.head == "causal" else answers
    assert evaluate_predictions(task, length, ids, labels, predictions)[task.headline_metric].value == 1.0
    early = np.roll(answers, -2, axis=1) if task.head == "causal" else np.roll(answers, -1, axis=1)
    value = evaluate_predictions(task, length, ids, labels, early)[task.headline_metric]
    assert value.value <= value.chance + 0.05
