"""Places of a grid in words."""

import pytest

from hf_memory.reports.study_axes import arm_label, by_task, drawing_name, home_split, is_on_edge, label_of
from tests.reports.study_examples import VALUES, recipe_of
from tests.studies.sweep_examples import made_up

PLACE = {"arm": "gru", "config": "iid_32", "width": 8, "data.num_pairs": 4}


def test_places_are_named_by_all_axes_and_curves_by_those_that_leave_the_data():
    assert label_of(PLACE) == "gru, config iid_32, width 8, num_pairs 4"
    assert arm_label(PLACE) == "gru, width 8"


def test_measured_results_are_grouped_by_their_data_alone():
    study = made_up(recipe_of(), VALUES)
    assert {group: len(results) for group, results in by_task(study).items()} == {"": 6}
    assert drawing_name(study, "config iid_32, num_pairs 4", "rates") == "tiny-config_iid_32-num_pairs_4-rates"
    assert drawing_name(study, "", "rates") == "tiny-rates"


def test_a_result_is_at_home_at_the_training_length():
    result = next(found for found in made_up(recipe_of(), VALUES).results if found.rows)
    assert home_split(result) == "test_8"
    del result.rows["test_8"]
    assert home_split(result) == "validation"


def test_the_best_of_two_rates_is_on_the_edge_and_that_of_three_need_not_be():
    rates = [1e-4, 1e-3, 1e-2]
    values = {("lstm", rate, 0): value for rate, value in zip(rates, (0.6, 0.9, 0.7), strict=True)}
    values |= {("gru", rate, 0): value for rate, value in zip(rates, (0.6, 0.7, 0.9), strict=True)}
    study = made_up(recipe_of(grid={}, learning_rates=rates), values)
    assert {place["arm"]: is_on_edge(study, place) for place in study.places()} == {"lstm": False, "gru": True}
    assert not is_on_edge(made_up(recipe_of(grid={}), VALUES), {"arm": "gru"})  # a run of the search crashed


@pytest.mark.parametrize("group", ["../../p", "arm /etc, width 8", "x" * 400, "..", "a\x00b"])
def test_no_name_from_outside_leaves_the_folder_of_the_page(group, tmp_path):
    name = drawing_name(made_up(recipe_of(), {}), group, "rates")
    assert len(name) <= 120
    assert (tmp_path / f"{name}.png").parent == tmp_path
    assert (tmp_path / f"{name}.png").resolve().is_relative_to(tmp_path.resolve())
