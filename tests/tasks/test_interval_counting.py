"""Interval counting: the law, exact errors, the offset rule against its definition, phase tests, spaces."""

import doctest
import itertools
import math

import numpy as np
import pytest

from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.tasks import _intervals as signals
from hf_memory.tasks import _renewal as renewal
from hf_memory.tasks import interval_counting
from hf_memory.tasks.base import Segment
from hf_memory.tasks.interval_counting import IntervalCounting

PRESETS = [(name, preset.length) for name, preset in IntervalCounting.presets.items()]


def runs(row):
    """Runs of a row as (value, first step, number of steps)."""
    position, found = 0, []
    for value, steps in itertools.groupby(row):
        count = len(list(steps))
        found.append((value, position, count))
        position += count
    return found


def plain_offset_errors(row, output, isi):
    """The offset rule word by word: the downward crossing nearest to the end of each complete interval."""
    found = []
    ones = [(first, count) for value, first, count in runs(row) if value == 1]
    for index, (start, count) in enumerate(ones):
        end = start + count - 1
        if end + 1 >= len(row):
            continue
        next_onset = ones[index + 1][0] if index + 1 < len(ones) else len(row)
        steps = range(start + 1, min(end + isi, next_onset, len(row) - 1) + 1)
        falls = [t - end for t in steps if output[t - 1] >= 0.5 > output[t]]
        error = min(falls, key=lambda late: (abs(late), late), default=None)
        held = [output[t] >= 0.5 for t in range(start, end)]
        interior = sum(held) / len(held) if held else 1.0
        found.append((error, error == 0 and interior >= 0.8))
    return found


def test_worked_examples_of_the_docstring_hold():
    results = doctest.testmod(interval_counting)
    assert results.attempted == 2
    assert results.failed == 0


@pytest.mark.parametrize(("name", "length"), PRESETS)
def test_rows_alternate_between_free_off_and_fixed_on_intervals(name, length):
    task = IntervalCounting(**IntervalCounting.presets[name].knobs)
    rows, labels = task.sample(np.random.default_rng(0), length, 10_000)
    np.testing.assert_array_equal(labels, task.solve(rows))
    assert labels.dtype == np.float32
    np.testing.assert_array_equal(labels[:, :-1], rows[:, 1:])
    assert (labels[:, -1] == -100).all()
    waits = []
    for row in rows[:1_000].tolist():
        found = runs(row)
        assert [value for value, _, _ in found] == [index % 2 for index in range(len(found))]
        waits += [count for value, _, count in found[:-1] if value == 0]
        assert all(count == task.isi for value, _, count in found[:-1] if value == 1)
        assert found[-1][2] <= (task.isi if found[-1][0] else task.iti_max)
    assert (min(waits), max(waits)) == (task.iti_min, task.iti_max)


def test_off_intervals_are_uniform_with_both_ends_included():
    rows, _ = IntervalCounting().sample(np.random.default_rng(0), 200, 21_000)
    first = np.argmax(rows == 1, axis=1)
    counts = np.bincount(first, minlength=41)[20:41]
    assert counts.sum() == 21_000
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 52  # chi-square with 20 degrees of freedom


def test_settings_and_errors_of_the_short_configuration_are_the_published_ones():
    preset = IntervalCounting.presets["isi10_len200"]
    assert (preset.length, dict(preset.knobs)) == (200, {"isi": 10, "iti_min": 20, "iti_max": 40})
    assert next(iter(IntervalCounting.presets)) == "isi10_len200"
    task = IntervalCounting()
    assert round(task.persistence_mse(200), 4) == 0.0465
    assert abs(task.best_mse(200) - 0.0198) < 2e-4


@pytest.mark.parametrize(("name", "length"), PRESETS)
def test_expected_errors_are_those_of_many_rows(name, length):
    task = IntervalCounting(**IntervalCounting.presets[name].knobs)
    rows, labels = task.sample(np.random.default_rng(0), length, 6_000)
    due, target = rows[:, :-1], labels[:, :-1]
    best = renewal.best_outputs(rows, task.isi, task.iti_min, task.iti_max)[:, :-1]
    mean = np.array([target[due == value].mean() for value in (0, 1)])[due]
    for output, expected in (
        (due, task.persistence_mse(length)),
        (best, task.best_mse(length)),
        (mean, task.chance_level("mse", length)),
    ):
        assert abs(np.square(output - target).mean() / expected - 1) < 0.01
    assert task.best_mse(length) < task.chance_level("mse", length) < task.persistence_mse(length)


def test_persistence_fails_with_tolerance_zero_and_passes_with_one():
    task = IntervalCounting()
    rows, labels = task.sample(np.random.default_rng(0), 200, 300)
    value = evaluate_predictions(task, 200, rows, labels, rows.astype(np.float32))
    assert value["exact_offsets"].value == task.baselines(200)["persistence"] == 0.0
    assert value["exact_offsets"].baselines["persistence"] == 0.0
    assert value["offsets_within_1"].value == task.chance_level("offsets_within_1", 200) == 1.0
    assert value["late_offsets"].value == 1.0
    assert value["normalised_error"].value == 1.0
    assert value["rows_exact"].value == value["rows_3_of_5"].value == 0.0
    off = evaluate_predictions(task, 200, rows, labels, np.zeros_like(labels))
    assert off["missed_offsets"].value == 1.0
    assert off["exact_offsets"].value == task.baselines(200)["always_off"]


def test_the_best_output_and_the_labels_are_exact():
    task = IntervalCounting()
    rows, labels = task.sample(np.random.default_rng(0), 200, 300)
    best = renewal.best_outputs(rows, 10, 20, 40)
    value = evaluate_predictions(task, 200, rows, labels, best)
    assert value["exact_offsets"].value == value["rows_exact"].value == value["rows_3_of_5"].value == 1.0
    assert value["normalised_error"].value == 0.0
    assert evaluate_predictions(task, 200, rows, labels, labels)["exact_offsets"].value == 1.0
    complete = sum(len(plain_offset_errors(row, row, 10)) for row in rows.tolist())
    assert value["exact_offsets"].denominator == complete


def test_the_best_output_follows_the_hazard_of_the_off_interval():
    row = np.array([[0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]])
    output = renewal.best_outputs(row, 3, 2, 4)[0]
    np.testing.assert_allclose(output, [0, 1 / 3, 1 / 2, 1, 1, 1, 0, 0, 1 / 3, 1 / 2, 1, 1, 1])


def test_the_offset_rule_is_its_definition_on_arbitrary_signals_and_outputs():
    rng = np.random.default_rng(0)
    checked = exact_total = 0
    for isi in (2, 3, 5):
        rows = (np.repeat(rng.integers(0, 2, size=(400, 12)), 3, axis=1) ^ (rng.random((400, 36)) < 0.05)).astype(int)
        # Outputs near the truth, so that early, exact, late and missed ends all occur.
        outputs = np.clip(np.roll(rows, -1, axis=1) + rng.normal(0, 0.4, size=rows.shape), 0, 1)
        outputs = np.where(rng.random(rows.shape) < 0.3, np.round(outputs), outputs)
        supervised = np.ones(rows.shape, dtype=bool)
        supervised[:, -1] = False
        found = signals.find_intervals(rows, supervised)
        errors = signals.offset_errors(found, outputs, isi)
        single = ~signals.is_double(found, isi)
        exact = signals.exact_intervals(found, outputs, isi)
        expected = [
            pair for row, output in zip(rows, outputs, strict=True) for pair in plain_offset_errors(row, output, isi)
        ]
        assert errors.tolist() == [signals.MISSED if error is None else error for error, _ in expected]
        assert exact[single].tolist() == [right for (_, right), kept in zip(expected, single, strict=True) if kept]
        checked += len(expected)
        exact_total += int(exact[single].sum())
    assert checked > 4_000
    assert 300 < exact_total < checked - 300


def test_a_late_onset_is_not_booked_as_exact():
    task = IntervalCounting(isi=10, iti_min=2, iti_max=4)
    row = np.array([[0] * 3 + [1] * 10 + [0] * 3])
    labels = task.solve(row)
    output = labels.copy()
    output[0, 2:4] = 0.0
    assert task.extra_metrics(row, labels, output)["exact_offsets"] == (1, 1)
    output[0, 2:6] = 0.0
    counts = task.extra_metrics(row, labels, output)
    assert counts["exact_offsets"] == (0, 1)
    assert counts["early_offsets"] == counts["late_offsets"] == counts["missed_offsets"] == (0, 1)


def test_an_interval_cut_by_the_end_of_the_row_is_not_scored_with_padding_either():
    task = IntervalCounting(isi=3, iti_min=2, iti_max=4)
    row = np.array([[0, 0, 1, 1, 1, 0, 0, 1, 1, 1]])
    labels = task.solve(row)
    assert task.extra_metrics(row, labels, labels)["exact_offsets"] == (1, 1)
    padded = np.pad(row, ((0, 0), (0, 4)))
    labels = np.pad(labels, ((0, 0), (0, 4)), constant_values=-100)
    assert task.extra_metrics(padded, labels, labels)["exact_offsets"] == (1, 1)
    notes = task.annotate(padded, labels)
    assert np.flatnonzero(notes["offset"]).tolist() == [4]
    assert notes["elapsed"][0, :10].tolist() == [1, 2, 1, 2, 3, 1, 2, 1, 2, 3]
    assert notes["score"].sum() == 9


def test_three_of_the_first_five_intervals_pass_a_row():
    task = IntervalCounting(isi=3, iti_min=2, iti_max=2)
    rows = np.array([[0, 0, 1, 1, 1] * 6 + [0], [0, 0, 1, 1, 1] * 6 + [0]])
    labels = task.solve(rows)
    output = labels.copy()
    # The first row misses its first, second and last interval, the second one three of the first five.
    for row, missed in ((0, (0, 1, 5)), (1, (0, 2, 4))):
        for index in missed:
            output[row, 5 * index + 4] = 1.0
    counts = task.extra_metrics(rows, labels, output)
    assert counts["rows_3_of_5"] == (1, 2)
    assert counts["rows_exact"] == (0, 2)
    assert counts["exact_offsets"] == (6, 12)
    assert counts["late_offsets"] == (6, 12)


@pytest.mark.parametrize(("name", "length"), PRESETS)
def test_two_isi_rows_hold_two_intervals_and_the_listed_gaps(name, length):
    preset = IntervalCounting.presets[name]
    longest, shortest = preset.knobs["iti_max"], preset.knobs["iti_min"]
    gaps = [int(factor * longest) for factor in (1.25, 1.5, 2, 3)]
    assert [f"test_two_isi_{gap}" for gap in gaps] == [split for split in preset.tests if "two" in split]
    assert [f"test_double_isi_{gap}" for gap in (0, 1, 2, 5)] == [split for split in preset.tests if "double" in split]
    for gap in gaps:
        segment = preset.tests[f"test_two_isi_{gap}"][0]
        task = IntervalCounting(**{**preset.knobs, **segment.knobs})
        rows = task.enumerate(length)
        assert len(rows) == task.num_distinct(length) == segment.num_examples == longest - shortest + 1
        for wait, row in zip(range(shortest, longest + 1), rows.tolist(), strict=True):
            counts = [count for _, _, count in runs(row)]
            assert counts[:4] == [wait, task.isi, gap, task.isi]
            assert counts[4] >= shortest
        labels = task.solve(rows)
        counts = task.extra_metrics(rows, labels, labels)
        assert counts["rows_exact"] == (len(rows), len(rows))
        assert counts["exact_offsets"] == (2 * len(rows), 2 * len(rows))
        assert counts["false_alarms"] == (0, len(rows) * (gap - 1))
    if name == "isi10_len200":
        assert gaps == [50, 60, 80, 120]


def test_false_alarms_are_counted_in_the_gap_and_judged_nowhere():
    task = IntervalCounting(isi=3, iti_min=2, iti_max=4, phase_test="two_isi", gap=6)
    row = np.array([[0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0]])
    labels = task.solve(row)
    output = labels.copy()
    output[0, [7, 8]] = 0.7
    counts = task.extra_metrics(row, labels, output)
    assert counts["false_alarms"] == (2, 5)
    assert counts["rows_exact"] == (1, 1)


def test_two_intervals_in_one_run_need_a_fall_after_each():
    task = IntervalCounting(isi=6, iti_min=8, iti_max=9, phase_test="double_isi", gap=0)
    row = task.enumerate(30)[:1]
    assert [count for _, _, count in runs(row[0].tolist())] == [8, 12, 10]
    labels = task.solve(row)
    # The labels themselves never fall inside the run, so that copying the next input does not pass.
    assert task.extra_metrics(row, labels, labels)["rows_exact"] == (0, 1)
    output = labels.copy()
    output[0, 13] = 0.2
    assert task.extra_metrics(row, labels, output)["rows_exact"] == (1, 1)
    output[0, 14] = 0.2
    assert task.extra_metrics(row, labels, output)["rows_exact"] == (1, 1)
    output[0, 15] = 0.2
    assert task.extra_metrics(row, labels, output)["rows_exact"] == (0, 1)
    output[0, 14:16] = 1.0
    output[0, 19] = 0.8
    assert task.extra_metrics(row, labels, output)["rows_exact"] == (0, 1)


@pytest.mark.parametrize("gap", [1, 2, 5])
def test_short_gaps_are_scored_like_two_intervals(gap):
    task = IntervalCounting(phase_test="double_isi", gap=gap)
    rows, labels = task.sample(np.random.default_rng(0), 200, 50)
    assert all([count for _, _, count in runs(row)][1:4] == [10, gap, 10] for row in rows.tolist())
    assert task.extra_metrics(rows, labels, labels)["exact_offsets"] == (100, 100)
    assert task.extra_metrics(rows, labels, rows)["exact_offsets"] == (0, 100)


@pytest.mark.parametrize(("phase_test", "gap"), [("two_isi", 6), ("two_isi", 7), ("double_isi", 0), ("double_isi", 2)])
def test_phase_tests_share_no_row_with_the_training_law(phase_test, gap):
    law = IntervalCounting(isi=2, iti_min=3, iti_max=5)
    phase = law.replace(phase_test=phase_test, gap=gap)
    rows = set(map(bytes, phase.enumerate(20)))
    assert len(rows) == 3
    assert not rows & set(map(bytes, law.enumerate(20)))


def test_sizes_are_those_of_the_protocol():
    preset = IntervalCounting.presets["isi10_len200"]
    assert preset.train == (Segment(200, 200),)
    assert preset.tests["test"] == (Segment(100, 200),)
    assert preset.test_lengths == (200, 400, 800)


@pytest.mark.parametrize(("isi", "iti_min", "iti_max"), [(2, 1, 3), (3, 2, 2), (3, 1, 4)])
def test_small_spaces_are_enumerated_completely(isi, iti_min, iti_max):
    task = IntervalCounting(isi=isi, iti_min=iti_min, iti_max=iti_max)
    for length in (8, 11, 14):
        count = 14 // (isi + iti_min) + 1
        expected = set()
        for waits in itertools.product(range(iti_min, iti_max + 1), repeat=count):
            signal = [value for wait in waits for value in [0] * wait + [1] * isi]
            expected.add(tuple(signal[:length]))
        rows = task.enumerate(length)
        assert set(map(tuple, rows.tolist())) == expected
        assert task.num_distinct(length) == len(rows) == len(expected)


def test_chance_levels_without_a_value_are_nan():
    task = IntervalCounting()
    assert math.isnan(task.chance_level("token_accuracy", 200))
    assert math.isnan(task.replace(phase_test="two_isi", gap=60).chance_level("mse", 200))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"isi": 1}, "isi must be an integer at least 2"),
        ({"iti_min": 0}, "iti_min must be an integer at least 1"),
        ({"iti_max": 19}, "iti_max must be an integer at least 20"),
        ({"phase_test": "three_isi"}, "phase_test must be one of 'two_isi', 'double_isi'"),
        ({"phase_test": "two_isi", "gap": 40}, "gap of two_isi must be an integer at least 41"),
        ({"phase_test": "double_isi", "gap": 20}, "gap of double_isi must be an integer between 0 and 19"),
        ({"gap": 5}, "gap without a phase_test must be an integer between 0 and 0"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        IntervalCounting(**knobs)


def test_rows_that_cannot_hold_their_intervals_are_refused():
    with pytest.raises(
        ValueError, match="length with isi 10, iti_max 40 and gap 0 must be an integer at least 51, got 50"
    ):
        IntervalCounting().sample(np.random.default_rng(0), 50, 1)
    with pytest.raises(ValueError, match="gap 120 must be an integer at least 200, got 199"):
        IntervalCounting(phase_test="two_isi", gap=120).validate_length(199)
