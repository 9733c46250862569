"""How far one device reaches: the longest row, and the most rows, that a model of two layers trains on."""

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_common import Clock, Scale, first_line, synchronize
from benchmarks.gpu_layers import speed_fields
from hf_memory.mixers.auto import mixer_config, mixer_model

Row = dict[str, Any]
VOCABULARY = 64


def reach_rows(keys: list[str], device: torch.device, scale: Scale, clock: Clock) -> list[Row]:
    """Two rows for each mixer: how long one row may be, and how many rows of the shortest length there may be."""
    return [row for key in keys for row in _of_mixer(key, device, scale, clock)]


def _of_mixer(key: str, device: torch.device, scale: Scale, clock: Clock) -> Iterator[Row]:
    length, count = min(scale.lengths), scale.tokens // min(scale.lengths)
    ways = {
        "longest row": [(1, size) for size in doubled(max(scale.lengths), scale.reach[0])],
        "most rows": [(size, length) for size in doubled(count, scale.reach[1])],
    }
    for what, shapes in ways.items():
        row: Row = {"mixer": key, "what": what}
        if clock.left() < 2:
            yield {**row, "skipped": "out of time"}
            continue
        best, stopped = largest(key, shapes, device, scale, clock)
        if best is None:
            yield {**row, "skipped": stopped}
        else:
            yield {**row, "batch": best[0], "length": best[1], "stopped_by": stopped}


def doubled(first: int, last: int) -> list[int]:
    """Sizes from the first to the last, each twice the one before."""
    sizes = [first]
    while 2 * sizes[-1] <= last:
        sizes.append(2 * sizes[-1])
    return sizes


def largest(
    key: str, shapes: list[tuple[int, int]], device: torch.device, scale: Scale, clock: Clock
) -> tuple[tuple[int, int] | None, str]:
    """The last of the shapes (rows, tokens) that a training step takes, and what stopped it."""
    best = None
    for shape in shapes:
        begin = time.perf_counter()
        try:
            step(key, *shape, device, scale)
        except torch.OutOfMemoryError:
            return best, "memory"
        except Exception as error:  # noqa: BLE001 - a kernel may refuse sizes in any way of its own
            return best, first_line(error)
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()
        best = shape
        if time.perf_counter() - begin > scale.patience or clock.left() < 1:
            return best, "time"
    return best, "the limit of the script"


def step(key: str, batch: int, length: int, device: torch.device, scale: Scale) -> None:
    """One training step without an optimiser, under bfloat16 autocast."""
    sizes = {"hidden_size": scale.width, "vocab_size": VOCABULARY, "num_hidden_layers": 2}
    config = mixer_config(key, max_position_embeddings=max(2048, length), **sizes, **speed_fields(key, scale))
    model = mixer_model(config).to(device).train()
    ids = torch.randint(0, VOCABULARY, (batch, length), device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        hidden = model(ids).last_hidden_state
    hidden.float().square().mean().backward()
    synchronize(device)


def reach_table(rows: list[Row]) -> list[str]:
    """Lines of the table of reach."""
    lines = ["| mixer | what | rows x tokens | stopped by |", "|---|---|---|---|"]
    for row in rows:
        size = "-" if "skipped" in row else f"{row['batch']} x {row['length']}"
        lines.append(f"| {row['mixer']} | {row['what']} | {size} | {row.get('skipped') or row['stopped_by']} |")
    return lines
