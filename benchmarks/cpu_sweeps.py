"""Cells per hour of a sweep: one process, one process per core, and runs stacked into one model; steps of recipes."""

import dataclasses
import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.rows import Row, Scale
from hf_memory.experiments.training import MemoryTrainer
from hf_memory.ops.backends.dispatch import use_backend
from hf_memory.studies.cells import Cell
from hf_memory.studies.plans import make_settings, search_cells
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.studies.stacking import run_stacked
from hf_memory.studies.watched import WatchedExperiment
from hf_memory.studies.workers import LocalWorkers, available_cores

MIXERS = ("attention", "lru", "delta_net")
BATCHES = (8, 64)
TOKENS = 32
REPLICAS = 8

RECIPES = Path(__file__).resolve().parents[1] / "examples" / "recipes"
STACKS = (1, 5, 7)
WARM_UP = 10

STUDIES = {
    "r7_one_layer_widths": {"arm": "mamba", "width": 64},
    "r12_state_tracking": {"arm": "lstm", "config": "a4_k8", "depth": 1},
    "r14_copying_blanks": {"arm": "gru"},
    "r17_interval_counting": {"arm": "lstm", "width": 8},
}
"""A place of each of these recipes."""
STUDY_STACK = 4


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
    recipe = load_recipe(RECIPES / "r1_bit_parity.yaml")
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


def studies(scale: Scale) -> Iterator[Row]:
    """Runs per hour and process of a cell of four recipes, from the steps up to an evaluation and with it.

    *Plain* is ``MemoryTrainer`` over torch's own operators, *alone* a run as sweeps make it, and the third a stack of
    runs with rows of their own; they are taken in turn. What a run does before its first step and after its last one,
    some seconds, is not in it.
    """
    for name, place in list(STUDIES.items())[: None if scale.judged else 1]:
        recipe = load_recipe(RECIPES / f"{name}.yaml")
        setting = next(s for s in make_settings(recipe) if all(s.place.get(k) == v for k, v in place.items()))
        every = recipe.evaluate.get("every") or math.ceil(recipe.training["steps"] / recipe.evaluate["points"])
        between = every if scale.judged else WARM_UP + 1
        size = STUDY_STACK if scale.judged else 2
        runs = [
            shortened(setting.cell(recipe, "final", 3e-3, seed), between + WARM_UP, between) for seed in range(size)
        ]
        found: dict[str, list[float]] = {}
        for _ in range(scale.repeats):
            for way, seconds in seconds_by_way(runs, scale).items():
                found.setdefault(way, []).append(3600 / (seconds * recipe.training["steps"]))
        rates = {way: float(np.median(values)) for way, values in found.items()}
        times = rates["alone"] / rates["plain"], max(rates.values()) / rates["plain"]
        text = "; ".join(f"{way} {rate:.1f}" for way, rate in rates.items())
        text = f"runs per hour: {text}; {times[0]:.2f} and at best {times[1]:.2f} times as many"
        what = f"{name}, " + ", ".join(str(value) for value in place.values() if value is not None)
        yield {"what": what, "value": text, "runs_per_hour": found}


def seconds_by_way(runs: Sequence[Cell], scale: Scale) -> dict[str, float]:
    """Seconds of a step of one run: by Trainer alone, as in sweeps, and as one of a stack."""
    with tempfile.TemporaryDirectory() as folder:
        ways = [Path(folder) / name for name in ("plain", "alone", "stacked")]
        with use_backend("torch"):
            plain = seconds_of_steps(runs[:1], ways[0], scale, PlainExperiment)
        alone = seconds_of_steps(runs[:1], ways[1], scale)
        stacked = seconds_of_steps(runs, ways[2], scale) / len(runs)
    return {"plain": plain, "alone": alone, f"one of {len(runs)}": stacked}


class PlainExperiment(WatchedExperiment):
    """A run by the Trainer that ``hf-memory train`` uses, with its bookkeeping at every step."""

    trainer_class = MemoryTrainer


def shortened(cell: Cell, count: int, every: int = 0) -> Cell:
    """A run of so many steps, which is looked at every so many, or once, at its end, with few rows."""
    rows = {"num_train": count * cell.training["batch_size"], "num_test": 32}
    return dataclasses.replace(
        cell,
        training={**cell.training, "steps": count, "stop_at": None},
        evaluate={**cell.evaluate, "points": 0} | ({"every": every} if every else {}),
        data={**cell.data, **rows, **({} if every else {"num_validation": 32})},
    )


def seconds_of_steps(
    runs: Sequence[Cell], folder: Path, scale: Scale, kind: type[WatchedExperiment] = WatchedExperiment
) -> float:
    """Seconds of a step of all runs together, after the first steps."""
    marks: dict[int, float] = {}

    def beat(step: int) -> None:
        marks[step] = scale.clock()  # in a stack each of its runs tells of the step

    experiments = [run.experiment() for run in runs]
    experiments = [kind(**{f.name: getattr(e, f.name) for f in dataclasses.fields(e)}) for e in experiments]
    if len(runs) == 1:
        experiments[0].run_into(folder, beat)
    else:
        run_stacked(experiments, folder, beat)
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
