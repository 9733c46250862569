"""Generating data on a CPU: tokens per second of every task, and MQAR against the same law drawn row by row."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.common import interleaved
from benchmarks.rows import Row, Scale, compared
from hf_memory.tasks import TASKS, make_task

MQAR_FLOORS = {"kv4_len64": 1 / 100, "kv64_len512": 1 / 8}


def data(scale: Scale) -> Iterator[Row]:
    """Every task at its first preset, MQAR at each length, then MQAR against a loop over rows."""
    cases = {key: list(make_task(key).presets)[:1] for key in TASKS}
    cases["mqar"] = [name for name in make_task("mqar").presets if name.startswith("kv")]
    for key, names in cases.items():
        for name in names:
            task, length = at_preset(key, name)
            count = max(1, scale.tokens // task.row_length(length))
            step = sampler(task, length, count)
            seconds = interleaved({"rows": step}, scale.repeats, scale.clock, scale.patience)["rows"]
            speed = count * task.row_length(length) / float(np.median(seconds))
            yield {"what": f"{key}/{name}", "value": f"{speed / 1e6:.1f} M tokens/s", "tokens_per_second": speed}
    for name, floor in MQAR_FLOORS.items():
        task, length = at_preset("mqar", name)
        count = max(8, scale.tokens // 20 // length)

        sizes = (task.vocab_size, task.num_kv_pairs, length, count)
        what = f"{count} rows of mqar/{name} against row by row"
        yield compared(what, sampler(task, length, count), loop_over_rows(*sizes), scale, floor)


def at_preset(key: str, name: str) -> tuple[Any, int]:
    """The task with the knobs of a preset, and its longest training length."""
    preset = make_task(key).presets[name]
    length = preset.length if isinstance(preset.length, int) else preset.length[1]
    return make_task(key, **preset.knobs), length


def sampler(task: Any, length: int, count: int) -> Callable[[], Any]:
    """Draw rows from one stream."""
    rng = np.random.default_rng(0)
    return lambda: task.sample(rng, length, count)


def loop_over_rows(*sizes: int) -> Callable[[], Any]:
    """Draw MQAR row by row from one stream."""
    rng = np.random.RandomState(0)
    return lambda: mqar_rows(rng, *sizes)


def mqar_rows(
    rng: np.random.RandomState, vocab_size: int, pairs: int, length: int, count: int, power: float = 0.01
) -> tuple[np.ndarray, np.ndarray]:
    """MQAR by the law of Zoology (Arora et al., 2024), each row with draws of its own from the whole vocabulary."""
    half = vocab_size // 2
    slots = (length - 2 * pairs) // 2
    weights = power * np.arange(1, slots + 1) ** (power - 1)
    weights /= weights.sum()
    ids = np.zeros((count, length), dtype=np.int64)
    labels = np.full((count, length), -100, dtype=np.int64)
    for row in range(count):
        keys = rng.choice(np.arange(1, half), size=pairs, replace=False)
        values = rng.choice(np.arange(half, vocab_size), size=pairs, replace=False)
        places = 2 * pairs + 2 * rng.choice(slots, size=pairs, replace=False, p=weights)
        ids[row, 0 : 2 * pairs : 2], ids[row, 1 : 2 * pairs : 2] = keys, values
        ids[row, places] = keys
        labels[row, places] = values
    return ids, labels
