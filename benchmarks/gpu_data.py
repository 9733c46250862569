"""Whether data keep up with the device: rows drawn, collated, and moved there."""

import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.gpu_common import Clock, Scale, first_line, synchronize
from hf_memory.data.collator import MemoryCollator
from hf_memory.data.tensors import TensorRows
from hf_memory.tasks import make_task

CASES = (("bit_parity", {}, 64), ("mqar", {"num_kv_pairs": 16}, 256))
BATCH = 64
Row = dict[str, Any]


def data_rows(device: torch.device, scale: Scale, clock: Clock) -> list[Row]:
    """For each task, tokens per second of drawing, and of a loader up to the device."""
    rows: list[Row] = []
    for key, knobs, length in CASES:
        row: Row = {"task": key, "length": length, "batch": BATCH}
        if clock.left() < 1:
            rows.append({**row, "skipped": "out of time"})
            continue
        try:
            rows.append({**row, **measure(key, knobs, length, device, scale)})
        except Exception as error:  # noqa: BLE001 - the table says what failed
            rows.append({**row, "skipped": first_line(error)})
    return rows


def measure(key: str, knobs: dict[str, Any], length: int, device: torch.device, scale: Scale) -> Row:
    """Draw the rows, then go through them once."""
    task = make_task(key, **knobs)
    begin = time.perf_counter()
    ids, labels = task.sample(np.random.default_rng(0), length, scale.data_rows)
    drawn = ids.size / (time.perf_counter() - begin)
    rows = TensorRows({"input_ids": ids, "labels": labels})
    loader: DataLoader[Any] = DataLoader(
        rows, batch_size=BATCH, shuffle=True, collate_fn=MemoryCollator(), pin_memory=device.type == "cuda"
    )
    synchronize(device)
    begin, seen = time.perf_counter(), 0
    for batch in loader:
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        seen += moved["input_ids"].numel()
    synchronize(device)
    seconds = time.perf_counter() - begin
    return {"drawn_tokens_per_second": drawn, "loaded_tokens_per_second": seen / seconds, "tokens": seen}


def data_table(rows: list[Row]) -> list[str]:
    """Lines of the table of data."""
    lines = ["| task | tokens of a row | drawn, Mtok/s | on the device, Mtok/s |", "|---|---|---|---|"]
    for row in rows:
        if "skipped" in row:
            lines.append(f"| {row['task']} | {row['length']} | {row['skipped']} | |")
            continue
        drawn, loaded = (row[f"{what}_tokens_per_second"] / 1e6 for what in ("drawn", "loaded"))
        lines.append(f"| {row['task']} | {row['length']} | {drawn:.1f} | {loaded:.1f} |")
    return lines
