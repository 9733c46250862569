"""The trainer of the package: what it saves, what it measures, and that it goes on where it stopped."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_memory.data.collator import MemoryCollator
from hf_memory.experiments.training import MemoryTrainer, metrics_for_task, model_for_task, training_arguments
from hf_memory.tasks import make_task
from hf_memory.testing.heads import Rows, train
from hf_memory.testing.models import make


def test_a_trainer_save_holds_no_pickle_and_reloads_through_auto(tmp_path):
    model = make("attention")
    trainer = train(MemoryTrainer, model, tmp_path / "run", per_device_train_batch_size=4)
    trainer.save_model(str(tmp_path / "saved"))
    assert {path.suffix for path in (tmp_path / "saved").iterdir()} == {".json", ".safetensors"}
    arguments = json.loads((tmp_path / "saved" / "training_args.json").read_text())
    assert arguments["optim_groups"] == "documented"
    assert arguments["max_steps"] == 2
    ids = Rows(11).ids
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_metrics_do_not_move_with_the_batch_size(batch, tmp_path):
    torch.manual_seed(0)
    task = make_task("bit_parity")
    ids, labels = task.sample(np.random.default_rng(0), 9, 20)
    rows = [{"input_ids": torch.tensor(i), "labels": torch.tensor(y)} for i, y in zip(ids, labels, strict=True)]
    model = model_for_task("attention", task, hidden_size=16)
    trainer = MemoryTrainer(
        model=model,
        args=training_arguments(str(tmp_path), per_device_eval_batch_size=batch, disable_tqdm=True),
        eval_dataset=rows,
        data_collator=MemoryCollator(),
        compute_metrics=metrics_for_task(task, 9),
    )
    metrics = trainer.evaluate()
    with torch.no_grad():
        outputs = model.eval()(torch.tensor(ids).long(), labels=torch.tensor(labels).long())
    predicted = outputs.logits.argmax(-1).numpy()
    assert metrics["eval_token_accuracy"] == pytest.approx((predicted == labels).mean(), abs=1e-12)
    assert metrics["eval_loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)


def test_ten_steps_and_ten_resumed_ones_are_twenty_steps(tmp_path):
    def run(folder, **arguments):
        model = make("attention")
        trainer = MemoryTrainer(
            model=model,
            args=training_arguments(
                str(folder),
                max_steps=20,
                per_device_train_batch_size=3,
                save_strategy="steps",
                save_steps=10,
                disable_tqdm=True,
                **arguments,
            ),
            train_dataset=Rows(11, count=10),
            data_collator=MemoryCollator(),
        )
        return model, trainer

    straight, trainer = run(tmp_path / "straight")
    trainer.train()
    resumed, trainer = run(tmp_path / "resumed")
    trainer.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-10"))
    for (name, ours), (_, theirs) in zip(straight.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_regression_tasks_get_a_head_with_one_value():
    class Counting:
        head, problem_type, vocab_size, num_labels = "token_classification", "regression", 2, 1

    model = model_for_task("attention", Counting(), hidden_size=8)
    assert model.score.out_features == 1
    assert model.config.problem_type == "regression"
