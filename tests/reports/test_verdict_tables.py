"""Tables of claims say how often a relation held, and what luck alone would give."""

import dataclasses
import math

import pytest

from hf_memory.reports.verdict_tables import (
    VERDICT_COLUMNS,
    chance_by_luck,
    changed_table,
    expectation_table,
    is_lower_bound,
    verdict_table,
    window_table,
)
from hf_memory.studies.expectations import Measure
from hf_memory.studies.judging import Judgement
from hf_memory.studies.verdicts import Tally
from hf_memory.studies.watched import HistoryPoint
from tests.reports.study_examples import CHANGED, FINAL, WORDS, words_recipe
from tests.studies.sweep_examples import made_up, tiny_recipe

SEARCHED = {key: value for key, value in FINAL.items() if key[2] < 2}


def test_seeds_that_do_not_count_stand_in_brackets():
    recipe = words_recipe(learning_rates=[1e-3])
    study = made_up(recipe, {key: value for key, value in SEARCHED.items() if key[1] == 1e-3})
    left, right = {100: 0.9, 101: math.inf, 102: math.nan}, {100: 0.5, 101: 0.5, 102: 0.25}
    judgement = Judgement(recipe.expectations[2], "not decided", left, right, "why", Tally(1, 1, 3), (101, 102))
    cells = verdict_table(study, [judgement], "v").lines[0].cells
    assert [cell.text for cell in cells][2:6] == ["not decided", "why", "0.9, (never), (none)", "0.5, (0.5), (0.25)"]


def test_luck_depends_on_the_looks_that_a_recipe_has():
    def luck(looks, claim=0, search=(0, 1)):
        recipe = words_recipe(seeds={"search": list(search), "looks": looks})
        return chance_by_luck(recipe, recipe.expectations[claim])

    assert luck([5]) == pytest.approx(2**-5)
    assert luck([5, 10]) == pytest.approx(2**-5 + 5 * 2**-10)  # then four of five, and all of the next five
    assert luck([5, 10, 20]) == pytest.approx(0.05, abs=5e-3)
    assert luck([3]) == 0.0
    assert luck([5], claim=3) == 0.0  # two seeds of the search
    assert luck([5], claim=3, search=range(5)) == pytest.approx(2**-5)


def test_values_on_the_edge_of_the_grid_are_lower_bounds():
    study = made_up(words_recipe(), SEARCHED)
    for changes, bound in [({}, True), ({"minus": "test_8"}, False), ({"quantity": "steps_to"}, False),
                           ({"metric": "loss"}, False), ({"metric": "token_accuracy"}, True),
                           ({"rate": "best"}, False)]:  # fmt: skip
        assert is_lower_bound(study, Measure.from_json({"arms": "lstm", **changes})) is bound


def test_a_window_is_the_rates_at_which_two_thirds_of_the_seeds_solve():
    claim = {"left": {"arms": "lstm", "quantity": "lr_window"}, "relation": ">", "right": 0.5, "claim": "Wide."}
    recipe = tiny_recipe(
        arms={"lstm": {}},
        learning_rates=[1e-4, 1e-3, 1e-2],
        seeds={"search": [0, 1, 2]},
        expectations=[claim, {**claim, "claim": "Its own.", "left": {**claim["left"], "of_best": True}}],
    )
    study = made_up(recipe, {("lstm", rate, seed): 0.9 for seed in range(3) for rate in recipe.learning_rates})

    def looks(result):
        rate, seed = result.cell.learning_rate, result.cell.seed
        best = {1e-4: 0.5, 1e-3: 0.95, 1e-2: 0.95 if seed else 0.5}[rate]
        points = [HistoryPoint(step, "validation", {"token_accuracy": best}) for step in (1, 2, 4)]
        return [] if (rate, seed) == (1e-3, 2) else points  # lost

    results = tuple(dataclasses.replace(result, history=looks(result)) for result in study.results)
    table = window_table(dataclasses.replace(study, results=results), "w")
    assert table.columns == ("arm", "level", "0.0001", "0.001", "0.01", "window")
    assert table.texts() == [
        ["lstm", "0.9 on validation", "0 of 3", "2 of 3, 1 missing", "2 of 3", "0.001, 0.01"],
        # Its best is that of all rates, so that what was lost at one leaves the seed open at all.
        [
            "lstm",
            "0.9 of its best on validation",
            "0 of 3, 1 missing",
            "2 of 3, 1 missing",
            "1 of 3, 1 missing",
            "0.001",
        ],
    ]
    assert window_table(made_up(words_recipe(), SEARCHED), "w") is None


def test_registered_claims_have_no_verdict():
    table = expectation_table(words_recipe(), "e")
    assert table.columns == ("claim", "published", "measured", "because")
    assert [line[0] for line in table.texts()] == [item["claim"] for item in WORDS]
    assert table.texts()[2][2] == "token accuracy on test_12 of lstm >= token accuracy on test_12 of gru + 0.5"


def test_a_changed_claim_counts_as_not_held():
    table = changed_table(words_recipe(), "c")
    assert table.texts() == [[CHANGED[0]["claim"], "not held", CHANGED[0]["date"], CHANGED[0]["why"]]]


def test_every_line_has_a_cell_for_every_column():
    study = made_up(words_recipe(), SEARCHED)
    judgements = [Judgement(item, "not decided", {}, {}, "why") for item in study.recipe.expectations]
    assert {len(line) for line in verdict_table(study, judgements, "v").texts()} == {len(VERDICT_COLUMNS)}
