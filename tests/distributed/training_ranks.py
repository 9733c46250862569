"""What each process of ``test_training.py`` runs: one experiment, from rows to result rows.

Arguments: a folder, and the rows of a process's training batch. The first process prints the losses of all steps, the
targets of all steps, and the result rows of every process.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback

from hf_memory.data.specification import specify
from hf_memory.experiments.run import Experiment
from hf_memory.storage import encode
from tests.distributed.launching import leave

STEPS = 10


class Losses(TrainerCallback):
    """Keeps the logged losses."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Called after each step."""
        if logs and "loss" in logs:
            self.values.append(float(logs["loss"]))


def experiment(rows_of_process: int) -> Experiment:
    """Rows of 6 to 12 tokens, so that processes see unlike numbers of targets, and 97 rows in each test split."""
    specification = specify(
        "bit_parity", length=[6, 12], test_lengths=[12, 16], num_train=256, num_validation=97, num_test=97
    )
    return Experiment(
        specification,
        "lru",
        fields={"hidden_size": 8, "num_hidden_layers": 1},
        training={
            "max_steps": STEPS,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "per_device_train_batch_size": rows_of_process,
            "per_device_eval_batch_size": 8,
            "disable_tqdm": True,
            "use_cpu": True,
        },
    )


def run(folder: Path, rows_of_process: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Losses of all steps and the result rows."""
    losses = Losses()
    rows = experiment(rows_of_process).run(folder / "results", folder / "run", callbacks=[losses])
    return losses.values, [encode(dataclasses.asdict(row)) for row in rows]


def main() -> None:
    torch.set_num_threads(1)
    losses, rows = run(Path(sys.argv[1]), int(sys.argv[2]))
    everyone = gather_object([rows])
    first = torch.distributed.get_rank() == 0
    leave({"losses": losses, "rows": everyone} if first else None)


if __name__ == "__main__":
    main()
