"""Small recipes, a pool without processes, and results made up from numbers, for the tests of sweeps."""

import math
from collections.abc import Mapping
from typing import Any

from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import Row, split_length
from hf_memory.studies.cells import Cell, run_cells
from hf_memory.studies.outcomes import Result, Study
from hf_memory.studies.plans import final_cells, make_settings, search_cells
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.watched import HistoryPoint
from hf_memory.studies.workers import report_stack

TINY_DATA = {"length": 8, "test_lengths": [8, 12], "num_validation": 32, "num_test": 16}


def tiny_recipe(**changes: Any) -> Recipe:
    """Two arms on parity of 8 bits, two rates, one seed for the search and one after it."""
    values = {
        "name": "tiny",
        "profile": "cpu",
        "task": "bit_parity",
        "data": TINY_DATA,
        "model": {"num_hidden_layers": 1},
        "sizing": {"by": "hidden", "value": 8},
        "training": {"steps": 3, "batch_size": 8},
        "arms": {"lstm": {}, "gru": {}},
        "learning_rates": [1e-3, 1e-2],
        "seeds": {"search": [0], "final": [1]},
    }
    return Recipe.from_json({**values, **changes})


class InlineWorkers:
    """Runs stacks one after the other in this process, and notes their cells."""

    size = 1

    def __init__(self) -> None:
        self.ran: list[Cell] = []

    def __enter__(self) -> "InlineWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def run(self, stacks, results, report) -> None:
        for stack in stacks:
            self.ran += stack
            report_stack(stack, run_cells(stack, results), 0.5 * len(stack), report)


def made_up(
    recipe: Recipe,
    values: Mapping[tuple[str, float, int], float | None],
    splits: Mapping[str, float] | None = None,
    history: Mapping[str, list[tuple[int, float]]] | None = None,
    stage: str = "search",
    losses: Mapping[float, float] | None = None,
) -> Study:
    """A study of results with the given metric values.

    Args:
        recipe: Its recipe.
        values: Value by arm, rate and seed, the same at every place of an arm; None for a run that crashed, NaN for one
            that diverged.
        splits: What each split's value differs by from that; ``validation`` and two tests by default.
        history: Steps and values on ``validation`` by arm.
        stage: Stage of all results.
        losses: Loss at the end by rate; 0.1 for the others.
    """
    results = []
    settings = {str(setting.place): setting for setting in make_settings(recipe)}
    for setting in settings.values():
        for (arm, rate, seed), value in values.items():
            if arm != setting.place["arm"]:
                continue
            cell = setting.cell(recipe, stage, rate, seed)
            offsets = splits or {"validation": 0.0, "test_8": 0.0, "test_12": -0.1}
            rows = {} if value is None else {
                split: made_up_row(recipe, cell, split, value + offset, (losses or {}).get(rate, 0.1))
                for split, offset in offsets.items()
            }  # fmt: skip
            curve = (history or {}).get(arm, [])
            points = [HistoryPoint(step, "validation", {recipe.metric_name: at, "loss": 1 - at}) for step, at in curve]
            results.append(Result(cell, cell.digest, rows, points, "ValueError: broken" if value is None else None))
    return Study(recipe, tuple(results))


def made_up_row(recipe: Recipe, cell: Cell, split: str, value: float, loss: float = 0.1) -> Row:
    """A row of one value, out of 200 targets, with the chance of bit parity: of its labels the first is certain."""
    length = split_length(split) or 8
    measured = MetricValue(value, value * 200, 200, (length + 1) / (2 * length), {"majority": 0.5})
    lost = MetricValue(math.nan if math.isnan(value) else loss, 20.0, 200, 0.69)
    return Row(
        cell=cell.digest, arm=cell.place["arm"], mixer=cell.mixer, config_digest="c", task=recipe.task, task_knobs={},
        data_version="1", split=split, length=length, train_length=(8, 8), seed=cell.seed, data_seed=0,
        learning_rate=cell.learning_rate, learning_rate_grid=(cell.learning_rate,), schedule="cosine",
        optim_groups="documented", stop_rule="3 steps", steps=3, tokens=192, parameters=100,
        parameters_non_embedding=80, parameters_per_block=80, state_numbers=8 + cell.fields["hidden_size"],
        state_bytes=4 * (8 + cell.fields["hidden_size"]), headline=recipe.metric_name,
        metrics={recipe.metric_name: measured, "loss": lost}, train_seconds=1.5,
        eval_seconds=0.1, device="cpu", backend="torch", versions={"torch": "2.13"}, weights_sha256="ab" * 32,
    )  # fmt: skip


def planned(recipe: Recipe) -> list[Cell]:
    """The cells of a recipe, with the first rate as the chosen one."""
    settings = make_settings(recipe)
    chosen = [recipe.learning_rates[0]] * len(settings)
    return [
        *search_cells(recipe, settings, recipe.learning_rates),
        *final_cells(recipe, settings, recipe.learning_rates, chosen),
    ]
