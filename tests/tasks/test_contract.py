"""The contract of tasks, tried on every entry of the table: a new task is tested the moment its line exists."""

import hashlib
import json
import math
import random

import numpy as np
import pytest
import torch

from hf_memory.tasks import IGNORE_INDEX, TASKS, Segment, make_task, task_class

GOLDEN = {
    "associative_recall": ("1.0.0", "7ead0bef220a3176"),
    "bit_parity": ("1.0.0", "d3190566969bb8a5"),
    "compositional_mqar": ("1.0.0", "a9d7c9e1ec58e940"),
    "context_recall": ("1.0.0", "61ca9b84790d2b3e"),
    "copying": ("1.0.0", "d7bdaa3a683999f7"),
    "cycle_navigation": ("1.0.0", "d6a15d1d6c422c36"),
    "dyck": ("1.0.0", "0a74515e1faa664f"),
    "even_pairs": ("1.0.0", "1d0fd3e9569b981a"),
    "flip_flop": ("1.0.0", "4a63e56454b435f9"),
    "group_word_problem": ("1.0.0", "1cf2676d901e3e8a"),
    "induction": ("1.0.0", "580f5f8edaeab555"),
    "interval_counting": ("1.0.0", "c79b1b8742fc38c4"),
    "memorisation": ("1.0.0", "fb77f0743828ece6"),
    "modular_arithmetic": ("1.0.0", "0e7a2a96dec3059f"),
    "mqar": ("1.0.0", "e16ace756859cea9"),
    "multi_stack": ("1.0.0", "3b42f429110d62d8"),
    "reverse": ("1.0.0", "afd0965232415b8c"),
    "selective_copying": ("1.0.0", "2b02bbff805a19ef"),
    "state_naming": ("1.0.0", "d9781de0870400dc"),
    "state_recall": ("1.0.0", "5a1ec2214bd74b80"),
    "string_copy": ("1.0.0", "b55cba9748b7da8d"),
    "updating_mqar": ("1.0.0", "a9d60f52ac3d237c"),
}
"""Version, and digest of the first training rows of all presets but those below: it moves only with the version."""

JOINED = {
    ("bit_parity", "iid_1_40_separator"): "2f2829f332d6dd77",
    ("bit_parity", "iid_2_39_last"): "09031eb027d37450",
    ("bit_parity", "iid_3_40_last"): "b297f9e7d691db27",
    ("dyck", "len32_crossed"): "880ea414d0df3a37",
    ("group_word_problem", "a5_12_generators_k40"): "bfc7c55bb8a470bf",
    ("group_word_problem", "a5_2_generators_k40"): "ce158103f9c34ed0",
    ("group_word_problem", "a5_6_generators_k40"): "0ad52595d04e365c",
    ("group_word_problem", "a5_8_generators_k40"): "4a2c8309173e6bf3",
    ("group_word_problem", "s4_k128"): "914ec457d1a8babf",
    ("group_word_problem", "s5_32_generators_k40"): "b18a05975440a451",
    ("group_word_problem", "s5_4_generators_k40"): "cdcd200a769d8cda",
    ("group_word_problem", "s5_4_tokens_blank_k16"): "1bf6b53cf0753e3c",
    ("group_word_problem", "s5_4_tokens_copies_k16"): "5556d0843810a571",
    ("group_word_problem", "s5_8_generators_k40"): "962c2ee69858c07d",
    ("group_word_problem", "s5_k128"): "48d8e28abd413733",
    ("group_word_problem", "s5_k32"): "911843797a22376c",
    ("group_word_problem", "s5_moves_3_k32"): "935e8d8151c46bf2",
    ("group_word_problem", "s5_swaps_k32"): "05dc5d1b53605918",
    ("mqar", "forgetting"): "ddbe7340498d3dad",
    ("mqar", "forgetting_half"): "373b89c0fef3a97a",
    ("mqar", "kv16_len256_shuffled"): "4723796d061f9cb2",
    ("mqar", "kv4_len64_all"): "85f4d36f32e43885",
    ("mqar", "kv4_len64_shuffled"): "e03127ff01aa55bb",
    ("mqar", "kv8_len128_shuffled"): "af17fb83162721a8",
    ("selective_copying", "mad_16_of_1024"): "5161f54a133af439",
    ("selective_copying", "mad_16_of_256"): "8b49130fd3d2d552",
    ("selective_copying", "mad_16_of_256_subset"): "75b1fbc04df1c3f3",
    ("selective_copying", "mad_16_of_512"): "6ae5c3442f6eb6dd",
    ("selective_copying", "mad_32_of_256"): "5f21d5ec485b0fa7",
    ("selective_copying", "mad_64_of_256"): "d99c8cac8a5071a8",
    ("selective_copying", "mad_96_of_256"): "5207cbc170cac5bc",
    ("string_copy", "prefix3_len20_50_published"): "77e83fca4fd677b5",
    ("string_copy", "suffix3_len20_50_published"): "29aa73c2c33efc0f",
    ("updating_mqar", "kv4_len64_u25_r1_balanced"): "b5743025aa775082",
}
"""Digest of each preset that joined a version later, so that a new one leaves the digests of the others alone."""

PRESETS = [(key, name) for key in sorted(TASKS) for name in task_class(key).presets]
KEYS = sorted(TASKS)


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


def digest_of(key, names):
    """Digest of 16 rows of every training segment of presets, at both ends of their lengths."""
    digest = hashlib.sha256()
    for name in sorted(names):
        for task, length, is_training in segments_of(key, name):
            if is_training:
                for rows in task.sample(np.random.default_rng(0), length, 16):
                    digest.update(rows.tobytes())
    return digest.hexdigest()[:16]


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


@pytest.mark.parametrize(("key", "name"), PRESETS)
def test_training_rows_of_every_preset_are_solved_independently(key, name):
    check_training_rows(key, name, 10_000, 400_000)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "name"), PRESETS)
def test_ten_thousand_training_rows_of_every_preset_are_solved_independently(key, name):
    check_training_rows(key, name, 10_000, 100_000_000)


@pytest.mark.parametrize(("key", "name"), PRESETS)
def test_test_splits_of_every_preset_hold_the_contract_and_have_chance_levels(key, name):
    rng = np.random.default_rng(1)
    for task, length, _ in segments_of(key, name):
        task.validate_length(length)
        ids, labels = task.sample(rng, length, 8)
        check_rows(task, length, ids, labels, 8)
        chance = task.chance_level(task.headline_metric, length)
        assert 0.0 <= chance <= 1.0
        assert task.num_distinct(length) >= 1


@pytest.mark.parametrize("key", KEYS)
def test_names_follow_from_the_key(key):
    cls = task_class(key)
    assert cls.key == key
    assert cls.__module__ == f"hf_memory.tasks.{key}"
    words = {"mqar": "MQAR"}
    assert cls.__name__ == "".join(words.get(word, word.capitalize()) for word in key.split("_"))
    assert all(name.replace("_", "a").isalnum() for name in cls.presets)
    splits = {split for preset in cls.presets.values() for split in preset.tests}
    assert all(split.startswith("test") and split.replace("_", "a").isalnum() for split in splits)


@pytest.mark.parametrize(("key", "name"), PRESETS)
def test_split_names_of_a_preset_are_unique(key, name):
    preset = task_class(key).presets[name]
    assert not {f"test_{length}" for length in preset.test_lengths} & set(preset.tests)
    assert len(set(preset.test_lengths)) == len(preset.test_lengths)
    assert preset.source


@pytest.mark.parametrize(("key", "name"), PRESETS)
def test_knobs_survive_json(key, name):
    for task, _, _ in segments_of(key, name):
        assert make_task(key, **json.loads(json.dumps(task.knobs()))) == task


@pytest.mark.parametrize("key", KEYS)
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


@pytest.mark.parametrize("key", KEYS)
def test_another_seed_draws_other_rows(key):
    assert not np.array_equal(default_rows(key, 16, seed=0)[2], default_rows(key, 16, seed=1)[2])


@pytest.mark.parametrize("key", KEYS)
def test_one_row_and_no_row_can_be_drawn(key):
    task, length, ids, labels = default_rows(key, 1)
    check_rows(task, length, ids, labels, 1)
    _, _, ids, labels = default_rows(key, 0)
    assert ids.shape == labels.shape == (0, task.row_length(length))


@pytest.mark.parametrize("key", KEYS)
def test_solve_and_annotate_leave_their_arguments_alone(key):
    task, _, ids, labels = default_rows(key, 8)
    ids_before, labels_before = ids.copy(), labels.copy()
    task.solve(ids)
    task.annotate(ids, labels)
    np.testing.assert_array_equal(ids, ids_before)
    np.testing.assert_array_equal(labels, labels_before)


@pytest.mark.parametrize("key", KEYS)
def test_chance_and_baselines_of_the_headline_metric_are_shares(key):
    task, length, _, _ = default_rows(key, 1)
    baselines = task.baselines(length)
    assert baselines
    assert all(0.0 <= value <= 1.0 for value in baselines.values())
    assert not math.isnan(task.chance_level(task.headline_metric, length))
    assert math.isnan(task.chance_level("no_such_metric", length))


@pytest.mark.parametrize("key", KEYS)
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


@pytest.mark.parametrize("key", KEYS)
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


@pytest.mark.parametrize("key", KEYS)
def test_rows_of_a_version_never_change(key):
    first = [name for name in task_class(key).presets if (key, name) not in JOINED]
    found = task_class(key).version, digest_of(key, first)
    assert found == GOLDEN[key], f"rows of {key!r} or its presets changed; raise the version if a law changed"


@pytest.mark.parametrize(("key", "name"), sorted(JOINED))
def test_rows_of_presets_that_joined_later_never_change(key, name):
    assert digest_of(key, [name]) == JOINED[key, name]


def test_an_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="unknown task: 'mqr'; did you mean 'mqar'"):
        task_class("mqr")
