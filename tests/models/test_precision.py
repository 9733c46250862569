"""Training in half precision: losses stay finite, recurrences stay in float32, and recall is that of float32."""

import math

import numpy as np
import pytest
import torch

from hf_memory.data.collator import MemoryCollator
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.experiments.training import MemoryTrainer, model_for_task, training_arguments
from hf_memory.mixers import MIXERS
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.mixers.hybrid import MemoryHybridConfig
from hf_memory.tasks import make_task

TASK = make_task("mqar", vocab_size=32, num_kv_pairs=2)
LENGTH, STEPS, ROWS = 16, 300, 32


def draw(seed: int, num_rows: int) -> dict[str, np.ndarray]:
    ids, labels = TASK.sample(np.random.default_rng(seed), LENGTH, num_rows)
    return {"input_ids": ids, "labels": labels}


def recall_after_training(folder, kind: str) -> float:
    """Recall on 1,000 rows of a small DeltaNet that was trained on other ones."""
    torch.manual_seed(0)
    model = model_for_task("delta_net", TASK, hidden_size=32, num_hidden_layers=2)
    if kind == "bfloat16 weights":
        model = model.to(torch.bfloat16)
    arguments = training_arguments(
        str(folder),
        max_steps=STEPS,
        learning_rate=1e-2,
        per_device_train_batch_size=ROWS,
        bf16=kind == "bfloat16 autocast",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
    )
    rows = TensorRows(draw(0, STEPS * ROWS))
    trainer = MemoryTrainer(model=model, args=arguments, train_dataset=rows, data_collator=MemoryCollator())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))
    test = draw(1, 1000)
    found = trainer.predict(TensorRows(test))
    return evaluate_predictions(TASK, LENGTH, test["input_ids"], test["labels"], *found.predictions)["recall"].value


@pytest.mark.slow
def test_recall_in_bfloat16_is_within_a_point_of_float32(tmp_path):
    full = recall_after_training(tmp_path / "full", "float32")
    assert full > 0.99
    for kind in ("bfloat16 autocast", "bfloat16 weights"):
        assert abs(recall_after_training(tmp_path / kind, kind) - full) < 0.01


def small_model(key: str) -> torch.nn.Module:
    sizes = {"vocab_size": 32, "hidden_size": 8}
    config = MemoryHybridConfig(**sizes) if key == "hybrid" else mixer_config(key, num_hidden_layers=1, **sizes)
    return mixer_model(config, "causal").train()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bfloat16 autocast", "bfloat16 weights", "float16 autocast"])
@pytest.mark.parametrize("key", [*MIXERS, "hybrid"])
def test_two_hundred_steps_stay_finite_with_recurrences_in_float32(key, kind):
    dtype = torch.float16 if kind == "float16 autocast" else torch.bfloat16
    model = small_model(key)
    if kind == "bfloat16 weights":
        model = model.to(torch.bfloat16)
    precise = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
    optimizer = torch.optim.AdamW(model.optim_groups(1e-3, 0.1))
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    rows = draw(0, 4 * 200)
    losses = []
    for step in range(200):
        ids, labels = (torch.from_numpy(rows[name][4 * step : 4 * step + 4]).long() for name in ("input_ids", "labels"))
        with torch.autocast("cpu", dtype=dtype, enabled=kind != "bfloat16 weights"):
            loss = model(ids, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    if kind == "bfloat16 weights":
        assert precise == {name for name, p in model.named_parameters() if p.dtype == torch.float32}
        fixed = model._keep_in_fp32_modules_strict or ()
        kept = {name for name, _ in model.named_parameters() if any(part in name.split(".") for part in fixed)}
        assert kept <= precise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key", [*MIXERS, "hybrid"])
def test_weights_in_half_precision_give_the_loss_and_the_gradient_of_float32(key, dtype):
    ids, labels = (torch.from_numpy(column).long() for column in draw(0, 8).values())
    losses, gradients = [], []
    for kind in (torch.float32, dtype):
        torch.manual_seed(0)
        model = small_model(key)
        rounded = model.to(dtype)  # recurrences stay as they are; what is rounded is so in both
        model = rounded.float() if kind == torch.float32 else rounded
        loss = model(ids, labels=labels).loss
        (1024 * loss).backward()  # float16 has no numbers for gradients below 1e-7
        losses.append(loss.item())
        gradients.append(torch.cat([parameter.grad.float().flatten() for parameter in model.parameters()]))
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
    assert (gradients[1] - gradients[0]).norm() < 0.05 * gradients[0].norm()
