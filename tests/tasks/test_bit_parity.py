"""Bit parity: worked examples, exact chance levels, the controlled law, the pool, enumeration."""

import doctest
import itertools
import math

import numpy as np
import pytest

from hf_memory.tasks import bit_parity
from hf_memory.tasks.bit_parity import BitParity


def brute_force_rows(length, num_ones=None):
    rows = np.array(list(itertools.product((0, 1), repeat=length)), dtype=np.int32)
    return rows if num_ones is None else rows[rows.sum(axis=1) == num_ones]


def best_from_position_and_token(rows, labels, num_labels):
    """Right answers of the best table (position, bit) -> label, by counting."""
    right = 0
    for position in range(rows.shape[1]):
        for bit in (0, 1):
            right += np.bincount(labels[rows[:, position] == bit, position], minlength=num_labels).max()
    return right / rows.size


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(bit_parity).attempted == 5
    assert doctest.testmod(bit_parity).failed == 0


@pytest.mark.parametrize(("bits", "parities"), [("0011010", "0010011"), ("010101101", "011001001")])
def test_published_examples(bits, parities):
    assert "".join(map(str, BitParity().solve(np.array([list(map(int, bits))]))[0])) == parities


def test_labels_count_ones_modulo_three():
    assert BitParity(modulus=3).solve(np.array([[1, 1, 0, 1, 1]])).tolist() == [[1, 2, 2, 0, 1]]


@pytest.mark.parametrize(
    ("length", "expected"), [(16, 0.614010989), (24, 0.546047639), (32, 0.540584063), (48, 0.539327248)]
)
def test_chance_of_the_controlled_law_is_that_of_position_and_bit(length, expected):
    assert BitParity(num_ones=12).chance_level("token_accuracy", length) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("length", "num_ones", "modulus"), [(10, None, 2), (9, None, 3), (10, 7, 2), (11, 4, 3)])
def test_chance_equals_the_best_table_over_all_rows(length, num_ones, modulus):
    task = BitParity(num_ones=num_ones, modulus=modulus)
    rows = brute_force_rows(length, num_ones)
    expected = best_from_position_and_token(rows, np.cumsum(rows, axis=1) % modulus, modulus)
    assert task.chance_level("token_accuracy", length) == pytest.approx(expected, abs=1e-12)
    labels = np.cumsum(rows, axis=1) % modulus
    values = task.baselines(length)
    assert values["majority"] == pytest.approx(np.bincount(labels.ravel()).max() / labels.size, abs=1e-12)
    by_bit = sum(np.bincount(labels[rows == bit]).max() for bit in (0, 1)) / labels.size
    assert values["token"] == pytest.approx(by_bit, abs=1e-12)
    by_position = np.mean([np.bincount(column).max() / len(rows) for column in labels.T])
    assert values["position"] == pytest.approx(by_position, abs=1e-12)


def test_chance_of_independent_bits_is_one_half_after_the_first_position():
    for length in (1, 2, 32, 256):
        assert BitParity().chance_level("token_accuracy", length) == pytest.approx(0.5 + 0.5 / length)
        assert BitParity().chance_level("loss", length) == pytest.approx(math.log(2) * (length - 1) / length)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_chance_of_whole_rows_equals_the_best_of_all_tables(length):
    rows = brute_force_rows(length)
    labels = np.cumsum(rows, axis=1) % 2
    best = 0.0
    for table in itertools.product((0, 1), repeat=2 * length):
        answers = np.array(table).reshape(length, 2)[np.arange(length), rows]
        best = max(best, (answers == labels).all(axis=1).mean())
    assert BitParity().chance_level("sequence_accuracy", length) == best


def test_the_controlled_law_places_its_ones_uniformly():
    rows, _ = BitParity(num_ones=3).sample(np.random.default_rng(0), 6, 20_000)
    assert (rows.sum(axis=1) == 3).all()
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(counts) == 20
    # Chi-square with 19 degrees of freedom: 43.8 is exceeded once in a thousand draws.
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8


@pytest.mark.parametrize(("length", "num_ones"), [(1, None), (7, None), (8, 3), (5, 0), (5, 5), (40, 2)])
def test_enumerate_lists_every_row_once_in_order(length, num_ones):
    task = BitParity(num_ones=num_ones)
    rows = task.enumerate(length)
    assert len(rows) == task.num_distinct(length)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, np.unique(rows, axis=0))
    if length < 12:
        np.testing.assert_array_equal(rows, brute_force_rows(length, num_ones))


def test_enumerate_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="length 64 has 18446744073709551616 distinct rows"):
        BitParity().enumerate(64)


def test_the_pool_is_fixed_distinct_and_exhausted():
    task = BitParity(num_ones=12, distinct_pool=50)
    pool = task.enumerate(32)
    assert len(np.unique(pool, axis=0)) == 50 == task.num_distinct(32)
    assert (pool.sum(axis=1) == 12).all()
    for seed in (0, 1):
        rows, labels = task.sample(np.random.default_rng(seed), 32, 2_000)
        np.testing.assert_array_equal(np.unique(rows, axis=0), np.unique(pool, axis=0))
        np.testing.assert_array_equal(labels, np.cumsum(rows, axis=1) % 2)


def test_a_pool_as_large_as_the_space_is_the_space():
    rows = BitParity(num_ones=12, distinct_pool=1_820).enumerate(16)
    np.testing.assert_array_equal(np.unique(rows, axis=0), BitParity(num_ones=12).enumerate(16))


def test_ones_so_far_is_annotated():
    rows = np.array([[1, 0, 1, 1]])
    notes = BitParity().annotate(rows, BitParity().solve(rows))
    assert notes["ones_so_far"].tolist() == [[1, 1, 2, 3]]
    assert notes["score"].all()


def test_controlled_presets_hold_the_four_test_laws():
    preset = BitParity.presets["ones12_len16"]
    assert preset.test_lengths == (16, 24)
    knobs = {name: (segments[0].length, segments[0].knobs["num_ones"]) for name, segments in preset.tests.items()}
    assert knobs == {"test_24_longer_density": (24, 18), "test_16_iid": (16, None), "test_24_iid": (24, None)}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"score": "first"}, "score must be one of 'all', 'last', got 'first'"),
        ({"modulus": 1}, "modulus must be an integer at least 2, got 1"),
        ({"num_ones": -1}, "num_ones must be None or an integer at least 0"),
        ({"num_ones": True}, "num_ones"),
        ({"num_ones": 2.5}, "num_ones"),
        ({"distinct_pool": 0}, "distinct_pool must be None or an integer at least 1"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        BitParity(**knobs)


def test_impossible_lengths_are_named():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"num_ones at length 8 .* between 0 and 8, got 12"):
        BitParity(num_ones=12).sample(rng, 8, 1)
    with pytest.raises(ValueError, match=r"distinct_pool at length 4 .* between 1 and 16, got 17"):
        BitParity(distinct_pool=17).sample(rng, 4, 1)
    with pytest.raises(ValueError, match="length must be an integer at least 1, got 0"):
        BitParity().sample(rng, 0, 1)


@pytest.mark.parametrize("knobs", [{}, {"modulus": 3}, {"num_ones": 4}, {"num_ones": 4, "distinct_pool": 20}])
def test_scoring_the_last_position_leaves_the_rows_and_ignores_the_other_labels(knobs):
    rows, labels = BitParity(**knobs).sample(np.random.default_rng(1), 9, 200)
    task = BitParity(score="last", **knobs)
    again, last = task.sample(np.random.default_rng(1), 9, 200)
    np.testing.assert_array_equal(again, rows)
    assert (last[:, :-1] == -100).all()
    np.testing.assert_array_equal(last[:, -1], labels[:, -1])
    np.testing.assert_array_equal(task.solve(rows), last)
    assert task.annotate(rows, last)["score"].sum() == 200


def test_chance_of_the_last_position_is_one_half_or_certain():
    task = BitParity(score="last")
    for metric in ("token_accuracy", "sequence_accuracy"):
        assert task.chance_level(metric, 40) == 0.5
        assert BitParity(score="last", num_ones=12).chance_level(metric, 40) == pytest.approx(1.0)
    assert task.chance_level("loss", 40) == pytest.approx(math.log(2))
    assert BitParity(score="last", modulus=3).chance_level("token_accuracy", 40) == pytest.approx(1 / 3, abs=1e-6)
    # A row of one bit is its own answer.
    assert task.chance_level("token_accuracy", 1) == 1.0


@pytest.mark.parametrize("num_ones", [None, 5])
@pytest.mark.parametrize("modulus", [2, 3])
def test_the_best_table_of_three_bits_and_of_the_commoner_bit_is_that_of_all_rows(num_ones, modulus):
    rows = brute_force_rows(9, num_ones)
    labels = np.cumsum(rows, axis=1) % modulus
    padded = np.pad(rows + 1, ((0, 0), (2, 0)))
    window = padded[:, :-2] * 9 + padded[:, 1:-1] * 3 + padded[:, 2:]
    more = 2 * np.cumsum(rows, axis=1) > np.arange(1, 10)
    values = BitParity(num_ones=num_ones, modulus=modulus).baselines(9)
    for name, codes in (("last_3_tokens", window), ("majority_so_far", more)):
        right = sum(np.bincount(labels[codes == code]).max() for code in np.unique(codes))
        assert values[name] == pytest.approx(right / labels.size, abs=1e-12), name


def test_the_preset_of_one_answer_counts_bits_without_the_answer():
    preset = BitParity.presets["iid_2_39_last"]
    assert preset.length == (2, 39) and preset.test_lengths == (39, 63, 127, 255)
    assert preset.knobs == {"score": "last"}


def test_a_separator_ends_the_row_and_holds_the_answer():
    task, plain = BitParity(score="last", separator=True), BitParity(score="last")
    ids, labels = task.sample(np.random.default_rng(4), 9, 300)
    bits, answers = plain.sample(np.random.default_rng(4), 9, 300)
    np.testing.assert_array_equal(ids[:, :-1], bits)
    assert (ids[:, -1] == 2).all() and (labels[:, :-1] == -100).all()
    np.testing.assert_array_equal(labels[:, -1], answers[:, -1])
    np.testing.assert_array_equal(task.solve(ids), labels)
    np.testing.assert_array_equal(task.annotate(ids, labels)["ones_so_far"][:, -1], bits.sum(axis=1))
    assert (task.vocab_size, task.num_labels, task.row_length(9)) == (3, 2, 10)
    assert task.enumerate(3).tolist() == [[*bits, 2] for bits in itertools.product((0, 1), repeat=3)]
    with pytest.raises(ValueError, match="separator must be one of False, got True"):
        BitParity(separator=True)


@pytest.mark.parametrize("num_ones", [None, 3])
def test_levels_before_a_separator_are_those_of_the_bits_that_are_seen(num_ones):
    task, length = BitParity(score="last", separator=True, num_ones=num_ones), 5
    ids = task.enumerate(length)
    answers = task.solve(ids)[:, -1]
    values = task.baselines(length)
    for name, codes in {
        "position_and_token": ids[:, -1],
        "token": ids[:, -1],
        "last_3_tokens": ids[:, -3] * 2 + ids[:, -2],
    }.items():
        right = sum(np.bincount(answers[codes == code]).max() for code in np.unique(codes))
        assert values[name] == pytest.approx(right / len(ids)), name
