"""What the processes of ``test_families.py`` run: every mixer trained and evaluated by ``MemoryTrainer``.

Arguments: a folder, and for each group of processes ``KIND:WORLD:PRECISION:KEY,KEY...``. Kinds are ``alone``,
``copies`` (DDP) and ``shards`` (FSDP2). A process that a launcher has started is one of the group that stands last, of
the kind ``zero`` (DeepSpeed). Prints, for each group and mixer, what one process must find too: the targets and the
loss of every optimiser step, targets and loss of an evaluation, and where weights were shared out the loss of what was
saved.
"""

import json
import os
import sys
from typing import Any

import numpy as np
import torch
import yaml
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from hf_memory.data.collator import MemoryCollator
from hf_memory.experiments.training import MemoryTrainer, training_arguments
from hf_memory.mixers.auto import mixer_config, mixer_model
from tests.distributed.launching import CONFIGS, fork, leave

VOCABULARY, LONGEST = 11, 9
ROWS, MICRO_BATCH, ACCUMULATED, EPOCHS = 22, 8, 2, 2
"""Of 22 rows in batches of 8 the last one holds 6, and with 4 processes nothing for the last of them. Each epoch takes
two steps, of 16 rows and of 6."""


def draw() -> list[dict[str, torch.Tensor]]:
    """Rows of 5 to 9 tokens, of which an uneven number are targets."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(ROWS):
        ids = torch.from_numpy(rng.integers(0, VOCABULARY, rng.integers(5, LONGEST + 1)))
        labels = ids.masked_fill(torch.from_numpy(rng.random(len(ids)) < rng.random()), -100)
        rows.append({"input_ids": ids, "labels": labels})
    return rows


class Watched(MemoryTrainer):
    """Keeps the targets by which the loss of each optimiser step is divided."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.targets: list[int] = []
        self.losses: list[float] = []

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batches, targets = super().get_batch_samples(*args, **kwargs)
        self.targets.append(int(targets))
        return batches, targets

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def arguments_of(kind: str, world: int, precision: str, folder: str) -> Any:
    """Arguments of Trainer, with the settings of the example for shared-out weights.

    accelerate shares weights out on accelerators alone; what stands in its way on a CPU is the name of the group.
    """
    settings: dict[str, Any] = {"ddp_backend": "gloo"} if kind == "zero" else {"use_cpu": True}
    if kind == "shards":
        given = yaml.safe_load((CONFIGS / "fsdp2.yaml").read_text())["fsdp_config"]
        settings["fsdp"] = True
        settings["fsdp_config"] = {
            "version": given["fsdp_version"],
            "transformer_layer_cls_to_wrap": [given["fsdp_transformer_layer_cls_to_wrap"]],
            "reshard_after_forward": given["fsdp_reshard_after_forward"],
            "state_dict_type": given["fsdp_state_dict_type"],
            "cpu_ram_efficient_loading": given["fsdp_cpu_ram_efficient_loading"],
        }
    arguments = training_arguments(
        folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=MICRO_BATCH // max(world, 1),
        per_device_eval_batch_size=MICRO_BATCH // max(world, 1),
        gradient_accumulation_steps=ACCUMULATED,
        warmup_steps=0,
        logging_steps=1,
        disable_tqdm=True,
        bf16=precision == "bf16",
        data_seed=1,
        **settings,
    )
    if kind == "shards":
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return arguments


def train(kind: str, world: int, precision: str, keys: list[str], folder: str) -> dict[str, Any]:
    """What one process of a group finds for each mixer."""
    rows, found = draw(), {}
    for key in keys:
        torch.manual_seed(0)
        model = mixer_model(mixer_config(key, vocab_size=VOCABULARY, hidden_size=8), "causal")
        trainer = Watched(
            model=model,
            args=arguments_of(kind, world, precision, folder),
            train_dataset=rows,
            eval_dataset=rows,
            data_collator=MemoryCollator(),
        )
        trainer.train()
        evaluated = trainer.evaluate()["eval_loss"]
        found[key] = {
            "type": type(trainer.model_wrapped).__name__,
            "targets": trainer.targets,
            "losses": trainer.losses,
            "evaluated": [int(trainer._totals[1]), evaluated],
        }
        if kind == "shards":
            where = os.path.join(folder, f"{world}", key)
            trainer.save_model(where)
            found[key]["saved"] = loss_of_saved(type(model), where, rows) if trainer.is_world_process_zero() else None
    return found


@torch.no_grad()
def loss_of_saved(model_class: Any, folder: str, rows: list[dict[str, torch.Tensor]]) -> float:
    """The loss of all rows by the weights that lie in a folder."""
    return float(model_class.from_pretrained(folder).eval()(**MemoryCollator()(rows)).loss)


def main() -> None:
    folder, *groups = sys.argv[1:]
    if "RANK" in os.environ:
        kind, world, precision, keys = groups[-1].split(":")
        here = train(kind, int(world), precision, keys.split(","), folder)
        leave({f"{kind} {world} {precision}": here} if os.environ["RANK"] == "0" else None)
    found = {}
    for group in groups:
        kind, world, precision, keys = group.split(":")
        name = f"{kind} {world} {precision}"
        found[name] = fork(int(world), train, kind, int(world), precision, keys.split(","), folder)
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
