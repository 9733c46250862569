"""Cells per hour of a sweep: one process, one process per core, and runs stacked into one model; steps of a recipe."""

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rows import Row, Scale
from hf_memory.studies.cells import Cell
from hf_memory.studies.plans import make_settings, search_cells
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.studies.stacking import run_stacked
from hf_memory.studies.workers import LocalWorkers, available_cores

MIXERS = ("attention", "lru", "delta_net")
BATCHES = (8, 64)
TOKENS = 32
REPLICAS = 8

RECIPE = Path(__file__).resolve().parents[1] / "examples" / "recipes" / "r1_bit_parity.yaml"
STACKS = (1, 5, 7)
WARM_UP = 10


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


def steps(scale: Scale) -> Iterator[Row]:
    """Milliseconds of a step for each run of R1, by arm: alone, and in stacks whose runs have rows of their own."""
    recipe = load_recipe(RECIPE)
    settings = make_settings(recipe)
    count, stacks = (60, STACKS) if scale.judged else (1, STACKS[:2])
    for setting in settings if scale.judged else settings[:1]:
        found: dict[int, float] = {}
        for size in stacks:
            runs = [shortened(setting.cell(recipe, "final", 1e-3, seed), WARM_UP + count) for seed in range(size)]
            with tempfile.TemporaryDirectory() as folder:
                found[size] = 1e3 * seconds_of_steps(runs, Path(folder), scale) / size
        text = "; ".join(f"{'alone' if size == 1 else f'one of {size}'} {value:.2f}" for size, value in found.items())
        what = f"{setting.place['arm']}, width {setting.fields['hidden_size']}"
        yield {"what": what, "value": f"ms a step and run: {text}", "step_ms": found}


def shortened(cell: Cell, count: int) -> Cell:
    """A run of so many steps, which is looked at once, at its end."""
    rows = {"num_train": count * cell.training["batch_size"], "num_validation": 32, "num_test": 32}
    return dataclasses.replace(
        cell,
        training={**cell.training, "steps": count},
        evaluate={**cell.evaluate, "points": 0},
        data={**cell.data, **rows},
    )


def seconds_of_steps(runs: Sequence[Cell], folder: Path, scale: Scale) -> float:
    """Seconds of a step of all runs together, after the first steps."""
    marks: dict[int, float] = {}

    def beat(step: int) -> None:
        marks[step] = scale.clock()  # in a stack each of its runs tells of the step

    if len(runs) == 1:
        runs[0].experiment().run_into(folder, beat)
    else:
        run_stacked([run.experiment() for run in runs], folder, beat)
    last = max(marks)
    return (marks[last] - marks[WARM_UP]) / (last - WARM_UP)


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
        stacks = [tuple(runs[start : start + self.size]) for start in range(0, len(runs), self.size)]
        self.workers.run(stacks, self.folder, lambda cell, outcome, *rest: outcomes.append(outcome))
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
