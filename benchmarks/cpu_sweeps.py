"""Cells per hour of a sweep: one process, one process per core, and runs stacked into one model."""

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rows import Row, Scale
from hf_memory.studies.cells import Cell, as_stacks
from hf_memory.studies.plans import make_settings, search_cells
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.workers import LocalWorkers, available_cores

MIXERS = ("attention", "lru", "delta_net")
BATCHES = (8, 64)
TOKENS = 32
REPLICAS = 8


def sweeps(scale: Scale) -> Iterator[Row]:
    """Runs of bit parity that differ in learning rate, by width, mixer and rows of a step."""
    widths, steps = ((16, 64), 60) if scale.judged else ((8,), 3)
    mixers, batches = (MIXERS, BATCHES) if scale.judged else (MIXERS[:1], BATCHES[:1])
    replicas, cores = REPLICAS if scale.judged else 2, available_cores()
    ways = {"one process": (1, 1), "stacked": (1, replicas)}
    if cores > 1:
        ways |= {
            f"{cores} processes": (cores, 1),
            f"{cores} processes, stacked": (cores, max(2, -(-replicas // cores))),
        }
    with ExitStack() as opened:
        pools = {name: Pool(workers, size, opened) for name, (workers, size) in ways.items()}
        for width, mixer, batch in itertools.product(widths, mixers, batches):
            warm_up, runs = cells(mixer, width, batch, 2, replicas), cells(mixer, width, batch, steps, replicas)
            rates = {}
            for name, pool in pools.items():
                pool.seconds(warm_up)  # processes start, compile, and draw the data
                rates[name] = 3600 * len(runs) / pool.seconds(runs)
            what = f"{mixer}, width {width}, {batch} rows of {TOKENS} tokens, {steps} steps"
            text = "; ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
            yield {"what": what, "value": f"cells per hour: {text}", "cells_per_hour": rates}


class Pool:
    """Processes with a folder of their own, which take stacks of a size."""

    def __init__(self, workers: int, size: int, opened: ExitStack):
        self.size = size
        self.folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        self.workers = opened.enter_context(LocalWorkers(workers))

    def seconds(self, runs: Sequence[Cell]) -> float:
        """Seconds until all runs have ended. Raises a ``RuntimeError`` where one was not trained."""
        outcomes: list[str] = []
        started = time.perf_counter()
        self.workers.run(as_stacks(runs, self.size), self.folder, lambda cell, outcome, *rest: outcomes.append(outcome))
        if set(outcomes) != {"trained"}:
            raise RuntimeError(f"runs ended as {sorted(set(outcomes))}")
        return time.perf_counter() - started


def cells(mixer: str, width: int, batch: int, steps: int, replicas: int) -> list[Cell]:
    """Runs of one model at several learning rates."""
    recipe = Recipe.from_json(
        {
            "name": "stacking",
            "profile": "cpu",
            "task": "bit_parity",
            "data": {
                "length": TOKENS,
                "test_lengths": [TOKENS],
                "num_train": 64 * 64,
                "num_validation": 64,
                "num_test": 64,
            },
            "sizing": {"by": "hidden", "value": width},
            "training": {"steps": steps, "batch_size": batch},
            "arms": {mixer: {}},
            "learning_rates": [1e-3 * (1 + index) for index in range(replicas)],
            "seeds": {"search": [0]},
        }
    )
    return search_cells(recipe, make_settings(recipe), recipe.learning_rates)
