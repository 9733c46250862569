"""Selective copying: positions without replacement, layouts, solver against the plain definition, spaces."""

import doctest
import itertools
import math

import numpy as np
import pytest

from hf_memory.tasks import selective_copying
from hf_memory.tasks.selective_copying import SelectiveCopying


def draw(length, num_examples, seed=0, **knobs):
    task = SelectiveCopying(**knobs)
    return task, *task.sample(np.random.default_rng(seed), length, num_examples)


def test_worked_examples_of_the_docstring_hold():
    results = doctest.testmod(selective_copying)
    assert results.attempted == 3
    assert results.failed == 0


@pytest.mark.parametrize("markers", ["one", "many"])
@pytest.mark.parametrize(("axis", "length"), [("blank", 1), ("blank", 7), ("pattern", 1), ("pattern", 9)])
def test_every_symbol_is_placed_before_the_marker_and_recalled_in_order(markers, axis, length):
    task, rows, labels = draw(length, 200, axis=axis, pattern_length=4, blank_length=6, markers=markers)
    size, blank = (4, length) if axis == "blank" else (length, 6)
    slots = size + blank - (markers == "one")
    assert rows.shape == labels.shape == (200, blank + 2 * size)
    assert task.num_slots(length) == slots
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        pattern = [token for token in row[:slots] if token]
        # Without replacement, no symbol overwrites another: all S of them are there.
        assert len(pattern) == size
        assert max(pattern) <= 8
        assert row[slots:] == ([9] + [0] * size if markers == "one" else [9] * size)
        assert label == [0] * (size + blank) + pattern


@pytest.mark.parametrize("region", ["all", "pattern"])
@pytest.mark.parametrize("markers", ["one", "many"])
def test_sampled_labels_are_solved(markers, region):
    for name, preset in SelectiveCopying.presets.items():
        task = SelectiveCopying(**{**preset.knobs, "markers": markers, "loss_region": region})
        for length in np.ravel(preset.length).tolist():
            rows, labels = task.sample(np.random.default_rng(0), length, 1_000 if length < 1_000 else 20)
            np.testing.assert_array_equal(labels, task.solve(rows), err_msg=name)


def test_every_subset_of_the_slots_is_equally_likely():
    _, rows, _ = draw(4, 63_000, pattern_length=3, markers="one")
    subsets = list(itertools.combinations(range(6), 3))
    code = ((rows[:, :6] > 0) @ (1 << np.arange(6))).astype(int)
    counts = np.array([(code == sum(1 << place for place in subset)).sum() for subset in subsets])
    assert counts.sum() == 63_000
    statistic = ((counts - 3_150) ** 2 / 3_150).sum()
    assert statistic < 50  # chi-square with 19 degrees of freedom: exceeded once in 10,000 draws


def test_symbols_are_uniform_and_independent_of_their_place():
    _, rows, _ = draw(6, 30_000, pattern_length=4)
    for place in (0, 4, 8):
        symbols = rows[:, place][rows[:, place] > 0]
        assert np.abs(np.bincount(symbols, minlength=9)[1:] / len(symbols) - 1 / 8).max() < 0.015


def test_blanks_alone_score_nothing():
    task, rows, labels = draw(50, 200)
    score = task.annotate(rows, labels)["score"]
    assert score.sum() == 200 * 10
    assert not (labels[score] == 0).any()
    assert math.isclose((labels == 0).mean(), 60 / 70)
    assert task.baselines(50)["all_blank"] == 0.0
    assert task.chance_level("token_accuracy", 50) == 1 / 8


def test_distance_counts_the_steps_since_each_symbol():
    task = SelectiveCopying(pattern_length=3)
    rows = np.array([[0, 5, 0, 1, 5, 0, 9, 0, 0, 0], [2, 0, 0, 0, 0, 3, 9, 0, 0, 0]])
    rows[1, 4] = 2
    notes = task.annotate(rows, task.solve(rows))
    assert notes["distance"].tolist() == [[0] * 7 + [6, 5, 5], [0] * 7 + [7, 4, 4]]
    assert notes["recall_index"].tolist() == [[-1] * 7 + [0, 1, 2]] * 2


@pytest.mark.parametrize("markers", ["one", "many"])
def test_every_row_is_enumerated_once(markers):
    task = SelectiveCopying(pattern_length=2, alphabet_size=3, markers=markers)
    rows = task.enumerate(3)
    slots = 4 if markers == "one" else 5
    assert len(np.unique(rows, axis=0)) == len(rows) == task.num_distinct(3) == 9 * math.comb(slots, 2)
    drawn, _ = task.sample(np.random.default_rng(0), 3, 10_000)
    np.testing.assert_array_equal(np.unique(drawn, axis=0), np.unique(rows, axis=0))
    with pytest.raises(ValueError, match="at most 16777216 can be enumerated"):
        SelectiveCopying().enumerate(50)


def test_presets_carry_the_published_settings():
    assert SelectiveCopying.presets["blanks_50"].length == (1, 50)
    assert SelectiveCopying.presets["pattern_10"].length == (1, 10)
    preset = SelectiveCopying.presets["noise_4096"]
    task = SelectiveCopying(**preset.knobs)
    assert (task.vocab_size, task.sizes(preset.length), task.markers) == (16, (16, 4096), "many")


def test_published_places_deal_blanks_out_to_the_symbols_they_stand_before():
    task = SelectiveCopying(pattern_length=16, alphabet_size=14, loss_region="pattern", places="published")
    ids, labels = task.sample(np.random.default_rng(0), 224, 4_000)
    np.testing.assert_array_equal(task.solve(ids), labels)
    assert ids.shape == (4_000, 256) and (ids[:, 239] == 15).all()
    symbols = (ids[:, :239] > 0) & (ids[:, :239] < 15)
    assert (symbols.sum(axis=1) == 16).all()
    # No blank follows the last symbol; 223 blanks fall to 16 symbols, each as likely.
    assert symbols[:, -1].all()
    places = np.nonzero(symbols)[1].reshape(4_000, 16)
    gaps = np.diff(places, axis=1, prepend=-1) - 1
    assert (gaps.sum(axis=1) == 223).all()
    assert gaps.mean(axis=0) == pytest.approx(np.full(16, 223 / 16), abs=0.3)
    assert gaps.std(axis=0) == pytest.approx(np.full(16, np.sqrt(223 * 15) / 16), rel=0.06)
    # A uniform subset leaves gaps of all sizes.
    uniform, _ = task.replace(places="subset").sample(np.random.default_rng(0), 224, 4_000)
    places = np.nonzero(uniform[:, :239] > 0)[1].reshape(4_000, 16)
    assert np.diff(places, axis=1).std() > 12


def test_published_places_are_all_listed():
    task = SelectiveCopying(pattern_length=2, alphabet_size=3, places="published")
    rows = task.enumerate(4)
    assert len(np.unique(rows, axis=0)) == task.num_distinct(4) == 9 * 4
    drawn, _ = task.sample(np.random.default_rng(0), 4, 2_000)
    assert set(map(bytes, drawn)) == set(map(bytes, rows))
    with pytest.raises(ValueError, match="places must be one of 'subset', 'published'"):
        SelectiveCopying(places="dealt")


def test_rows_of_the_mad_presets_have_their_tokens():
    for name, preset in SelectiveCopying.presets.items():
        if name.startswith("mad"):
            symbols, tokens = (int(part) for part in name.split("_")[1:4:2])
            task = SelectiveCopying(**preset.knobs)
            assert (task.row_length(preset.length), task.pattern_length) == (tokens, symbols)
