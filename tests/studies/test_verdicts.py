"""The rule of a verdict: its boundaries, and how often it is wrong where the truth is known."""

import itertools

import numpy as np
import pytest

from hf_memory.studies.verdicts import (
    LOOKS,
    Tally,
    chance_of_verdicts,
    chance_to_hold_again,
    count,
    decide,
    decide_in_looks,
    exact_interval,
    fewest_that_hold,
)


@pytest.mark.parametrize(
    ("tally", "verdict"),
    [
        (Tally(5, 0, 5), "agrees"), (Tally(4, 1, 5), "not decided"), (Tally(0, 5, 5), "disagrees"),
        (Tally(9, 1, 10), "agrees"), (Tally(8, 2, 10), "not decided"), (Tally(1, 9, 10), "disagrees"),
        (Tally(15, 5, 20), "agrees"), (Tally(14, 6, 20), "not decided"), (Tally(5, 15, 20), "disagrees"),
        (Tally(4, 0, 4), "leans"), (Tally(3, 0, 3), "leans"), (Tally(0, 0, 0), "not decided"),
    ],
)  # fmt: skip
def test_the_boundaries_are_those_of_the_looks(tally, verdict):
    assert decide(tally) == verdict


def test_seeds_that_tell_nothing_count_for_neither_side():
    assert decide(Tally(4, 0, 5)) == "not decided"
    assert decide(Tally(0, 4, 5)) == "not decided"
    assert decide(count([True, True, None, True, True])) == "not decided"
    with pytest.raises(ValueError, match="planned seeds must be fewer than 5, or one of"):
        decide(Tally(6, 0, 6))
    with pytest.raises(ValueError, match="at most planned in all"):
        Tally(3, 3, 5)


def test_the_first_look_that_decides_stands():
    first = [True] * 5
    assert decide_in_looks(first) == ("agrees", Tally(5, 0, 5))
    assert decide_in_looks([*first, *[False] * 5]) == ("agrees", Tally(5, 0, 5))
    assert decide_in_looks([False, *[True] * 9]) == ("agrees", Tally(9, 1, 10))
    assert decide_in_looks([False, False, *[True] * 8]) == ("not decided", Tally(8, 2, 10))
    assert decide_in_looks([*[False] * 4, True, *[False] * 5]) == ("disagrees", Tally(1, 9, 10))
    assert decide_in_looks([True, True, True]) == ("leans", Tally(3, 0, 3))
    assert decide_in_looks([]) == ("not decided", Tally(0, 0, 0))


@pytest.mark.parametrize(("share", "power"), [(0.7, 0.472), (0.8, 0.829), (0.9, 0.990)])
def test_a_coin_is_called_wrong_rarely_and_a_clear_share_is_found(share, power):
    coin = chance_of_verdicts(0.5)
    assert coin["agrees"] == pytest.approx(coin["disagrees"])
    assert coin["agrees"] == pytest.approx(0.0503, abs=1e-4) and coin["agrees"] <= 0.06
    assert chance_of_verdicts(share)["agrees"] == pytest.approx(power, abs=1e-3)
    assert chance_of_verdicts(1 - share)["disagrees"] == pytest.approx(power, abs=1e-3)
    assert sum(chance_of_verdicts(share).values()) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_simulated_studies_get_the_verdicts_that_the_rule_promises(share):
    draws = np.random.default_rng(0).random((20_000, max(LOOKS))) < share
    found = [decide_in_looks([bool(x) for x in row])[0] for row in draws[:4000]]
    expected = chance_of_verdicts(share)
    for verdict, chance in expected.items():
        error = 4 * (chance * (1 - chance) / len(found)) ** 0.5
        assert abs(found.count(verdict) / len(found) - chance) <= error


def test_intervals_are_exact():
    # Clopper and Pearson: 0 and n have closed forms, the rest is tabled.
    assert exact_interval(0, 5) == pytest.approx((0.0, 1 - 0.025**0.2), abs=1e-6)
    assert exact_interval(5, 5) == pytest.approx((0.025**0.2, 1.0), abs=1e-6)
    assert exact_interval(8, 10) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    with pytest.raises(ValueError, match="successes must be in"):
        exact_interval(3, 2)


def test_a_replication_is_compared_with_what_the_first_seeds_predict():
    # After 5 of 5 the share has a Beta(6, 1) distribution, whose fifth moment is 6 / 11.
    assert chance_to_hold_again(Tally(5, 0, 5), 5) == pytest.approx(6 / 11)
    assert chance_to_hold_again(Tally(9, 1, 10), 5) == pytest.approx(np.prod([(10 + i) / (12 + i) for i in range(5)]))
    shares = np.random.default_rng(0).beta(6, 1, 200_000)
    assert chance_to_hold_again(Tally(5, 0, 5), 3) == pytest.approx(np.mean(shares**2 * (3 - 2 * shares)), abs=3e-3)


def test_the_fewest_lines_that_hold_are_a_quantile_of_their_sum():
    chances = [0.9, 0.5, 0.6]
    counts = [0.0] * 4
    for held in itertools.product((0, 1), repeat=3):
        counts[sum(held)] += np.prod([c if h else 1 - c for c, h in zip(chances, held, strict=True)])
    for share in (0.01, 0.05, 0.3, 0.9):
        assert fewest_that_hold(chances, share) == int(np.searchsorted(np.cumsum(counts), share))
    assert fewest_that_hold([]) == 0
    assert fewest_that_hold([1.0, 1.0]) == 2
