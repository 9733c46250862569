"""Training where only torch, transformers and accelerate are installed, as on a bare GPU machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ["datasets", "evaluate", "pandas", "pyarrow", "matplotlib", "jinja2", "typer", "rich", "ray", "tensorboard"]
ABSENT += ["numba", "fla", "mamba_ssm", "causal_conv1d", "triton"]

TRAIN = """
import sys
sys.modules.update(dict.fromkeys(ABSENT))  # an import of these names raises ModuleNotFoundError
import importlib.util
import numpy as np
import torch
from hf_memory.data.collator import MemoryCollator
from hf_memory.tasks import make_task
from hf_memory.experiments.training import MemoryTrainer, metrics_for_task, model_for_task, training_arguments

assert not any(importlib.util.find_spec(name) for name in ABSENT)
task = make_task(KEY)
length = 16 if KEY == "bit_parity" else 64
ids, labels = task.sample(np.random.default_rng(0), length, 12)
rows = [{"input_ids": torch.from_numpy(i), "labels": torch.from_numpy(y)} for i, y in zip(ids, labels)]
model = model_for_task(MIXER, task, hidden_size=16, num_hidden_layers=1)
before = [parameter.detach().clone() for parameter in model.parameters()]
trainer = MemoryTrainer(
    model=model,
    args=training_arguments(FOLDER, max_steps=2, per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True,
                            warmup_steps=0),
    train_dataset=rows,
    eval_dataset=rows,
    data_collator=MemoryCollator(),
    compute_metrics=metrics_for_task(task, length),
)
trainer.train()
moved = sum(not torch.equal(old, new) for old, new in zip(before, model.parameters()))
metrics = trainer.evaluate()
trainer.save_model()
loaded = type(model).from_pretrained(FOLDER)
same = all(torch.equal(left, right) for left, right in zip(loaded.parameters(), model.parameters()))
value = metrics[f"eval_{task.headline_metric}"]
print("RESULT", trainer.state.global_step, moved == len(before), 0 <= value <= 1, same)
"""


@pytest.mark.parametrize(("mixer", "key"), [("lru", "bit_parity"), ("mamba", "mqar")])
def test_a_model_trains_on_plain_tensors_without_datasets_and_evaluate(mixer, key, tmp_path):
    names = f"ABSENT, MIXER, KEY, FOLDER = {ABSENT!r}, {mixer!r}, {key!r}, {str(tmp_path)!r}\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", names + TRAIN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "RESULT 2 True True True"


def test_the_blocked_packages_are_what_the_rows_of_a_dataset_need():
    code = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\nimport hf_memory.data.builder"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError: import of datasets halted" in done.stderr
