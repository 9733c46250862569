"""The contract of tasks: rows, labels, chance levels, knobs, and the spaces from which rows are drawn."""

import json
import math
import random

import numpy as np
import pytest
import torch

from hf_memory.tasks import make_task, task_class
from hf_memory.tasks.base import IGNORE_INDEX, Segment


def ends(length):
    """The lengths at both ends of a length or an inclusive range."""
    return sorted({length} if isinstance(length, int) else set(length))


def segments_of(key, name):
    """Every segment of a preset as (task, length, number of rows), training segments first."""
    preset = task_class(key).presets[name]
    blocks = list(preset.train or (Segment(100_000, preset.length),))
    num_train = len(blocks)
    blocks += [Segment(3_000, length) for length in preset.test_lengths]
    blocks += [segment for segments in preset.tests.values() for segment in segments]
    task = make_task(key, **preset.knobs)
    return [
        (task.replace(**block.knobs), length, index < num_train)
        for index, block in enumerate(blocks)
        for length in ends(block.length)
    ]


def default_rows(key, num_examples, seed=0):
    """Rows of the default preset, at the longest of its training lengths."""
    preset = next(iter(task_class(key).presets.values()))
    task, length = make_task(key, **preset.knobs), ends(preset.length)[-1]
    return task, length, *task.sample(np.random.default_rng(seed), length, num_examples)


def check_rows(task, length, ids, labels, num_examples):
    shape = (num_examples, task.row_length(length))
    assert ids.shape == labels.shape == shape
    assert ids.dtype == np.int32
    assert labels.dtype == (np.float32 if task.problem_type == "regression" else np.int32)
    assert ids.min() >= 0
    assert ids.max() < task.vocab_size
    supervised = labels != IGNORE_INDEX
    assert supervised.any(axis=1).all()
    if task.problem_type == "classification":
        assert labels[supervised].min() >= 0
        assert labels[supervised].max() < task.num_labels
    notes = task.annotate(ids, labels)
    assert all(note.shape == shape for note in notes.values())
    assert notes["score"].dtype == bool
    assert notes["score"].any(axis=1).all()
    assert not (notes["score"] & ~supervised).any()
    solved = task.solve(ids)
    assert solved.dtype == labels.dtype
    # A task may mark positions whose supervision the ids alone do not decide; the labels that exist still agree.
    undecided = notes.get("undecided", np.zeros(shape, dtype=bool)) & ~supervised
    np.testing.assert_array_equal(np.where(undecided, IGNORE_INDEX, solved), labels)


def check_training_rows(key, name, num_examples, num_tokens):
    """Check ``num_examples`` rows over the training segments, fewer where they would hold more than ``num_tokens``."""
    training = [(task, length) for task, length, is_training in segments_of(key, name) if is_training]
    rng = np.random.default_rng(0)
    for task, length in training:
        columns = task.row_length(length)
        wanted = max(1, min(-(-num_examples // len(training)), num_tokens // (len(training) * columns)))
        # In blocks, so that long rows need little memory.
        block = max(1, 500_000 // columns)
        for start in range(0, wanted, block):
            rows = min(block, wanted - start)
            check_rows(task, length, *task.sample(rng, length, rows), rows)


def test_training_rows_of_every_preset_are_solved_independently(key):
    for name in task_class(key).presets:
        check_training_rows(key, name, 10_000, 400_000)


def test_test_splits_of_every_preset_hold_the_contract_and_have_chance_levels(key):
    rng = np.random.default_rng(1)
    for task, length, _ in (segment for name in task_class(key).presets for segment in segments_of(key, name)):
        task.validate_length(length)
        ids, labels = task.sample(rng, length, 8)
        check_rows(task, length, ids, labels, 8)
        chance = task.chance_level(task.headline_metric, length)
        assert 0.0 <= chance <= 1.0
        assert task.num_distinct(length) >= 1


def test_split_names_of_a_preset_are_unique(key):
    for preset in task_class(key).presets.values():
        assert not {f"test_{length}" for length in preset.test_lengths} & set(preset.tests)
        assert len(set(preset.test_lengths)) == len(preset.test_lengths)
        assert preset.source


def test_knobs_survive_json(key):
    for task, _, _ in (segment for name in task_class(key).presets for segment in segments_of(key, name)):
        assert make_task(key, **json.loads(json.dumps(task.knobs()))) == task


def test_randomness_comes_from_the_generator_alone(key):
    _, _, ids, labels = default_rows(key, 16)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    _, _, ids_again, labels_again = default_rows(key, 16)
    np.testing.assert_array_equal(ids, ids_again)
    np.testing.assert_array_equal(labels, labels_again)
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_another_seed_draws_other_rows(key):
    assert not np.array_equal(default_rows(key, 16, seed=0)[2], default_rows(key, 16, seed=1)[2])


def test_one_row_and_no_row_can_be_drawn(key):
    task, length, ids, labels = default_rows(key, 1)
    check_rows(task, length, ids, labels, 1)
    _, _, ids, labels = default_rows(key, 0)
    assert ids.shape == labels.shape == (0, task.row_length(length))


def test_solve_and_annotate_leave_their_arguments_alone(key):
    task, _, ids, labels = default_rows(key, 8)
    ids_before, labels_before = ids.copy(), labels.copy()
    task.solve(ids)
    task.annotate(ids, labels)
    np.testing.assert_array_equal(ids, ids_before)
    np.testing.assert_array_equal(labels, labels_before)


def test_chance_and_baselines_of_the_headline_metric_are_shares(key):
    task, length, _, _ = default_rows(key, 1)
    baselines = task.baselines(length)
    assert baselines
    assert all(0.0 <= value <= 1.0 for value in baselines.values())
    assert not math.isnan(task.chance_level(task.headline_metric, length))
    assert math.isnan(task.chance_level("no_such_metric", length))


def test_small_spaces_are_enumerated_completely(key):
    task = task_class(key)()
    small = 0
    for length in range(1, 80):
        try:
            task.validate_length(length)
        except ValueError:
            continue
        distinct = task.num_distinct(length)
        if distinct > 4_000:
            break
        rows = task.enumerate(length)
        assert rows.dtype == np.int32
        assert len(rows) == len(np.unique(rows, axis=0)) == distinct
        drawn, _ = task.sample(np.random.default_rng(0), length, 500)
        assert set(map(bytes, drawn)) <= set(map(bytes, rows))
        small += 1
    # Without a small length, the space of the shortest one must really be too large to list.
    assert small or distinct > 4_000


def test_mistyped_knobs_and_lengths_are_named(key):
    task = task_class(key)()
    first = task.knob_names()[0]
    with pytest.raises(ValueError, match=f"did you mean '{first}'"):
        make_task(key, **{first + "s": 1})
    with pytest.raises(ValueError, match=f"unknown knob of task '{key}'"):
        task.replace(no_such_knob=1)
    for length in (0, -1):
        with pytest.raises(ValueError, match="length"):
            task.sample(np.random.default_rng(0), length, 1)
