"""One row of a CPU report: a ratio with its spread, and the floor that it should keep."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import interleaved, peak_bytes, ratio
from benchmarks.roofline import Step, least_seconds


@dataclass(frozen=True)
class Scale:
    """Sizes of all sections.

    Attributes:
        repeats: Timed runs of each step.
        clock: Clock of all timings.
        batch: Rows of a training step.
        length: Tokens of a row.
        long: Tokens of a long row.
        widths: Widths of the models: against public models, against attention.
        lengths: Lengths of the growth section.
        contexts: Tokens read before one is decoded.
        cell_batches: Batches of the classical cells.
        cell_widths: Widths of the classical cells.
        tokens: Tokens of generated data.
        trainer_steps: Steps of the run with Trainer.
        patience: Seconds after which a step is not run again.
        recall_seconds: Seconds after which training for recall ends.
        judged: Whether the sizes are those that the floors were set for.
    """

    repeats: int = 5
    clock: Callable[[], float] = time.perf_counter
    batch: int = 16
    length: int = 256
    long: int = 4096
    widths: tuple[int, int] = (64, 128)
    lengths: tuple[int, ...] = (256, 1024, 4096, 8192)
    contexts: tuple[int, int] = (1024, 65536)
    cell_batches: tuple[int, ...] = (1, 16, 64)
    cell_widths: tuple[int, ...] = (32, 128, 512)
    tokens: int = 2_000_000
    trainer_steps: int = 300
    patience: float = 10.0
    recall_seconds: float = 600.0
    judged: bool = True


SMOKE = Scale(
    repeats=1,
    batch=2,
    length=16,
    long=32,
    widths=(16, 16),
    lengths=(16, 32),
    contexts=(8, 32),
    cell_batches=(2,),
    cell_widths=(8,),
    tokens=2_000,
    trainer_steps=3,
    recall_seconds=1.0,
    judged=False,
)

Row = dict[str, Any]


def compared(
    what: str,
    ours: Callable[[], Any],
    other: Callable[[], Any],
    scale: Scale,
    at_most: float | None = None,
) -> Row:
    """Time of ours over that of the other, in turn; ``at_most`` is the floor.

    Beside the times stand the peaks of memory, and where ours is a :class:`benchmarks.roofline.Step` its share of the
    roofline.
    """
    steps = {"ours": ours, "other": other}
    seconds = interleaved(steps, scale.repeats, scale.clock, scale.patience)
    row: Row = {
        "what": what,
        "ours_ms": 1e3 * float(np.median(seconds["ours"])),
        "other_ms": 1e3 * float(np.median(seconds["other"])),
        "ratio": ratio(seconds["ours"], seconds["other"]),
        "seconds": seconds,
    }
    if at_most is not None and scale.judged:
        row.update(at_most=at_most, met=row["ratio"]["median"] <= at_most)
    add_limits(row, ours, seconds["ours"], scale)
    if max(seconds["other"]) < scale.patience:
        row["other_bytes"] = peak_bytes(other)
    return row


def add_limits(row: Row, step: Callable[[], Any], seconds: list[float], scale: Scale) -> None:
    """Add the peak of memory of a step, and its share of the roofline where that is known."""
    if max(seconds) >= scale.patience:
        return
    row["ours_bytes"] = peak_bytes(step)
    if isinstance(step, Step):
        row["roofline_share"] = least_seconds(step) / float(np.median(seconds))


def skipped(what: str, error: Exception) -> Row:
    """A comparison that could not be made, and why."""
    message = str(error).splitlines()[0][:160] if str(error) else ""
    return {"what": what, "skipped": f"{type(error).__name__}: {message}"}


def table(rows: list[Row]) -> list[str]:
    """Rows as Markdown."""
    lines = ["| what | ours, ms | other, ms | ours / other | spread | floor | memory, ours / other | roofline |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "skipped" in row:
            lines.append(f"| {row['what']} | {row['skipped']} | | | | | | |")
        elif "ratio" not in row:
            floor = f"{'met' if row['met'] else 'NOT met'}" if "met" in row else ""
            lines.append(f"| {row['what']} | {row['value']} | | | | {floor} | | |")
        else:
            spread = row["ratio"]
            floor = f"{row['at_most']:.3g}: {'met' if row['met'] else 'NOT met'}" if "at_most" in row else ""
            memory = ""
            if row.get("ours_bytes") is not None and row.get("other_bytes") is not None:
                memory = f"{row['ours_bytes'] / 2**20:.0f} / {row['other_bytes'] / 2**20:.0f} MiB"
            share = f"{row['roofline_share']:.1%}" if "roofline_share" in row else ""
            lines.append(
                f"| {row['what']} | {row['ours_ms']:.2f} | {row['other_ms']:.2f} | {spread['median']:.3g} | "
                f"{spread['low']:.3g} to {spread['high']:.3g} | {floor} | {memory} | {share} |"
            )
    return lines
