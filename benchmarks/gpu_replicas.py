"""How many small models one GPU trains side by side: the same rows, weights of their own, one stacked step."""

from typing import Any

import numpy as np
import torch

from benchmarks.gpu_common import Clock, Scale, first_line, timed
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.studies.stacking import StackedModel
from hf_memory.tasks import make_task

LENGTH, WIDTH, ROWS = 64, 64, 64

CELL_STEPS = 10_000
"""Steps of a cell, by which steps become cells."""


def replica_rows(keys: list[str], device: torch.device, scale: Scale, clock: Clock) -> list[dict[str, Any]]:
    """For each mixer and number of replicas, milliseconds of one step of all and how many steps that makes a second."""
    rows: list[dict[str, Any]] = []
    for key in keys:
        single = None
        for count in scale.replica_counts:
            row: dict[str, Any] = {"mixer": key, "replicas": count}
            if clock.left() < 10:
                rows.append({**row, "skipped": "out of time"})
                continue
            try:
                row["milliseconds"] = stacked_step(key, count, device, scale)
            except Exception as error:  # noqa: BLE001 - one mixer must not hide the others; the table says what failed
                rows.append({**row, "skipped": first_line(error)})
                break
            row["replica_steps_per_second"] = count / row["milliseconds"] * 1e3
            row["cells_per_hour"] = 3600 * row["replica_steps_per_second"] / CELL_STEPS
            single = single or row["replica_steps_per_second"]
            row["gain"] = row["replica_steps_per_second"] / single
            rows.append(row)
            if row["milliseconds"] > 1e3 * scale.patience / 8:
                break
    return rows


def stacked_step(key: str, count: int, device: torch.device, scale: Scale) -> float:
    """Milliseconds of losses and gradients of ``count`` models on shared rows of bit parity."""
    task = make_task("bit_parity")
    small = scale.width < WIDTH
    config = mixer_config(
        key, vocab_size=task.vocab_size, num_labels=task.num_labels, hidden_size=scale.width if small else WIDTH
    )
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        models.append(mixer_model(config, "token_classification").to(device).train())
    stack = StackedModel(models)
    arrays = task.sample(np.random.default_rng(0), 8 if small else LENGTH, 4 if small else ROWS)
    ids, labels = (torch.from_numpy(array).long().to(device) for array in arrays)

    def step() -> None:
        stack(input_ids=ids, labels=labels)["loss"].backward()

    return timed(step, device, scale)


def replica_table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of the table of replicas."""
    lines = [f"| mixer | replicas | ms per stacked step | cells of {CELL_STEPS:,} steps per hour | gain |"]
    lines.append("|---|---|---|---|---|")
    for row in rows:
        cells = [row.get("skipped") or f"{row['milliseconds']:.2f}"]
        cells += ["", ""] if "skipped" in row else [f"{row['cells_per_hour']:.0f}", f"{row['gain']:.1f}"]
        lines.append(f"| {row['mixer']} | {row['replicas']} | {' | '.join(cells)} |")
    return lines
