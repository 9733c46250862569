"""Statistics of a study, against values worked out by hand."""

import itertools
import math

import pytest

from hf_memory.studies.statistics import (
    FOUR_POINTS,
    best_of_n,
    bump,
    cycle_reading,
    grid_regret,
    late_drop,
    left_plateau,
    log_spaced,
    on_plateau,
    plateau,
    seed_reading,
    seeds_that_pass,
    steps_to,
    window,
)


@pytest.mark.parametrize(
    ("solved", "decades"),
    [((1, 1, 1), 2.0), ((0, 1, 0), 1.0), ((1, 0, 1), 1.0), ((0, 0, 1), 0.5), ((0, 0, 0), 0.0), ((1, 1, 0), 1.5)],
)
def test_a_window_is_the_share_of_the_grid_that_was_solved(solved, decades):
    rates = dict(zip((1e-4, 1e-3, 1e-2), map(bool, solved), strict=True))
    assert window(rates) == pytest.approx(decades)
    assert window(dict(reversed(rates.items()))) == pytest.approx(decades)


def test_a_window_of_an_uneven_grid_counts_each_rate_half_way_to_its_neighbours():
    assert window({1e-4: False, 1e-3: True, 3.162e-3: False}) == pytest.approx(0.75, abs=1e-4)


def test_regret_is_what_the_four_points_miss():
    grid = {1e-4: 0.1, 2.15e-4: 0.2, 4.64e-4: 0.3, 1e-3: 0.95, 2.15e-3: 0.6, 4.64e-3: 0.2, 1e-2: 0.1}
    assert grid_regret(grid) == pytest.approx(0.35)
    assert grid_regret({rate: grid[rate] for rate in FOUR_POINTS}) == 0.0
    with pytest.raises(ValueError, match="must hold the rates"):
        grid_regret({1e-4: 0.1, 1e-3: 0.9})


def test_best_of_n_is_the_mean_over_all_subsets():
    values = [0.2, 0.9, 0.4, 0.4]
    for size, found in enumerate(best_of_n(values), start=1):
        subsets = list(itertools.combinations(values, size))
        assert found == pytest.approx(sum(map(max, subsets)) / len(subsets))


def test_steps_to_a_level_need_three_evaluations_in_a_row():
    points = [(1, 0.5), (2, 0.96), (4, 0.8), (8, 0.96), (16, 0.97), (32, 0.95), (64, 0.1)]
    assert steps_to(points, 0.95) == 8
    assert steps_to(points, 0.97) is None
    assert steps_to(points[:5], 0.95) is None
    assert steps_to(points[:5], 0.95, hold=2) == 8
    assert steps_to([], 0.5) is None


def test_late_drop_is_taken_from_the_running_median():
    assert late_drop([0.5, 0.9, 0.9, 0.9, 0.7, 0.7]) == pytest.approx(0.2)
    assert late_drop([0.5, 0.9, 0.5, 0.6, 0.6, 0.6]) == 0.0
    assert late_drop([0.1, 0.2, 0.3]) == 0.0
    assert math.isnan(late_drop([]))


def test_plateau_is_the_share_of_steps_near_its_level():
    assert [on_plateau(value, 0.25) for value in (0.1, 0.13, 0.25, 0.29, 0.31)] == [False, True, True, True, False]
    assert plateau([(10, 0.0), (20, 0.25), (80, 0.26), (100, 0.9)], 0.25) == pytest.approx(0.7)
    assert math.isnan(plateau([], 0.25))
    assert [left_plateau(value, 0.25) for value in (0.0, 0.29, 0.31)] == [False, False, True]
    assert left_plateau(0.0, None)


def test_bump_is_the_largest_fall_within_a_tenth_of_the_steps():
    smooth = [(step, 1 - step / 100) for step in range(0, 101, 10)]
    assert bump(smooth) == pytest.approx(0.1)
    sudden = [(0, 1.0), (50, 1.0), (55, 0.2), (100, 0.0)]
    assert bump(sudden) == pytest.approx(0.8 + 0.2 * 5 / 45)
    assert math.isnan(bump([(0, 1.0), (100, 1.0)]))
    assert math.isnan(bump([(0, 1.0)]))


def test_a_bump_below_a_level_does_not_see_the_fall_to_it():
    unlearned = [(0, 5.0), (5, 1.0), (100, 0.0)]
    assert bump(unlearned) == pytest.approx((5.0 - 1.0 + 5 / 95) / 5.0)
    assert bump(unlearned, below=1.0) == pytest.approx(10 / 95)
    assert math.isnan(bump(unlearned[:2], below=1.0))


def test_log_spaced_steps_hold_both_ends_and_no_repeats():
    steps = log_spaced(40, 6000)
    assert steps[0] == 1
    assert steps[-1] == 6000
    assert steps == sorted(set(steps))
    assert 30 <= len(steps) <= 40
    assert log_spaced(3, 100) == [1, 10, 100]
    assert log_spaced(1, 7) == [7]
    assert log_spaced(0, 7) == []


def test_three_of_five_is_read_over_seeds_and_over_cycles():
    assert seed_reading([1.0, 0.3, 0.9]) == (2, 3)
    assert seed_reading([0.89, math.nan]) == (0, 2)
    assert seed_reading([0.96, 0.94], share=0.95) == (1, 2)
    assert cycle_reading([0.5, 0.51, math.nan, 1.0]) == (2, 4)
    assert seeds_that_pass([0.91, 0.9, math.nan], 0.9) == (1, 3)
