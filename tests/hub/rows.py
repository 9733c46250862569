"""Rows of the LRU on the default configuration of ``bit_parity``."""

import dataclasses

from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import Row
from tests.reports.rows import make_row

WEIGHTS = "ab" * 32


def row(split: str = "test_32", value: float = 0.75, rows: int = 3_000, **changes) -> Row:
    """A row of one split, with so many rows behind its values."""
    length = int(split.removeprefix("test_")) if split.startswith("test_") else 32
    metrics = {
        "token_accuracy": MetricValue(value, value * 32 * rows, 32 * rows, 0.5, {"all_zero": 0.45}),
        "sequence_accuracy": MetricValue(0.25, 0.25 * rows, rows, None, {}),
    }
    facts = {
        "cell": "c0" * 8, "split": split, "data_version": "1.0.0+numpy2.4", "learning_rate_grid": (1e-4, 1e-3),
        "state_numbers": 64, "state_bytes": 256, "metrics": metrics, "weights_sha256": WEIGHTS,
    }  # fmt: skip
    return dataclasses.replace(make_row("lru", length, seed=3), **(facts | changes))
