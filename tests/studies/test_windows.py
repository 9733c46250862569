"""Windows of learning rates: which rates a seed solved, by a level of their own or of the best."""

import dataclasses

import pytest

from hf_memory.studies.expectations import Measure
from hf_memory.studies.judging import UndecidedError, by_seed, seeds_that_solve
from hf_memory.studies.watched import HistoryPoint
from tests.studies.sweep_examples import made_up, tiny_recipe


def swept(curves, seeds=3):
    """A sweep of one arm whose runs look at validation at steps 1, 2, 4 and so on, by rate the same in each seed."""
    recipe = tiny_recipe(arms={"lstm": {}}, learning_rates=list(curves), seeds={"search": list(range(seeds))})
    study = made_up(recipe, {("lstm", rate, seed): own[-1] for rate, own in curves.items() for seed in range(seeds)})
    looks = {
        rate: [
            HistoryPoint(2**place, "validation", {recipe.metric_name: at, "loss": 1 - at})
            for place, at in enumerate(own)
        ]
        for rate, own in curves.items()
    }
    results = [dataclasses.replace(result, history=looks[result.cell.learning_rate]) for result in study.results]
    return dataclasses.replace(study, results=tuple(results))


def window(**values) -> Measure:
    return Measure.from_json({"arms": "lstm", "quantity": "lr_window", "theta": 0.9, **values})


def test_a_window_counts_the_rates_that_a_seed_solved():
    study = swept({1e-3: [0.5, 0.9, 0.95, 1.0], 1e-2: [0.5, 0.9, 0.95]})  # two looks in a row are not three
    assert by_seed(study, window())[0] == pytest.approx(dict.fromkeys(range(3), 0.5))
    with pytest.raises(UndecidedError, match="must hold the rates"):
        by_seed(study, window(quantity="grid_regret"))


def test_a_window_of_the_best_is_that_of_all_rates():
    """A run that has nothing holds nine tenths of its own best, and nothing of the best that the seed has elsewhere."""
    study = swept({1e-4: [0.0] * 4, 1e-3: [0.1, 0.8, 0.8, 0.8], 1e-2: [0.1, 0.76, 0.76, 0.76]})
    solved = seeds_that_solve(study, {"arm": "lstm"}, window(of_best=True))
    assert {rate: tally.holds for rate, tally in solved.items()} == {1e-4: 0, 1e-3: 3, 1e-2: 3}
    assert by_seed(study, window(of_best=True))[0] == pytest.approx(dict.fromkeys(range(3), 1.5))


def test_of_nothing_there_is_no_window():
    study = swept({1e-3: [0.0] * 4, 1e-2: [0.0] * 4})
    assert by_seed(study, window(of_best=True))[0] == dict.fromkeys(range(3), 0.0)
