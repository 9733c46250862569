"""The contract of tasks on every entry of the table, and what a version promises: its rows never change."""

import hashlib

import numpy as np
import pytest

from hf_memory.tasks import TASKS, task_class
from hf_memory.testing.contracts import TASK_MODULES, contracts, run
from hf_memory.testing.laws import check_training_rows, segments_of
from tests.golden import GOLDEN

JOINED = {
    ("bit_parity", "iid_1_40_separator"): "2f2829f332d6dd77",
    ("bit_parity", "iid_2_39_last"): "09031eb027d37450",
    ("bit_parity", "iid_3_40_last"): "b297f9e7d691db27",
    ("dyck", "len32_crossed"): "880ea414d0df3a37",
    ("group_word_problem", "a5_12_generators_k40"): "bfc7c55bb8a470bf",
    ("group_word_problem", "a5_2_generators_k40"): "ce158103f9c34ed0",
    ("group_word_problem", "a5_6_generators_k40"): "0ad52595d04e365c",
    ("group_word_problem", "a5_8_generators_k40"): "4a2c8309173e6bf3",
    ("group_word_problem", "a5_all_k32"): "233f21c3fb13cb30",
    ("group_word_problem", "s3_k32"): "3e2dd98645a7d7be",
    ("group_word_problem", "s4_2_generators_k32"): "b737c6df2da00520",
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
    ("group_word_problem", "z2_k32"): "1ce8dafc3e063929",
    ("mqar", "forgetting"): "ddbe7340498d3dad",
    ("mqar", "forgetting_half"): "373b89c0fef3a97a",
    ("mqar", "kv16_len256_shuffled"): "4723796d061f9cb2",
    ("mqar", "kv4_to_32_len128"): "04b2a84f904d368c",
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


@pytest.mark.parametrize("contract", contracts(TASK_MODULES), ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("key", KEYS)
def test_task(key, contract):
    run(contract, key)


def digest_of(key, names):
    """Digest of 16 rows of every training segment of presets, at both ends of their lengths."""
    digest = hashlib.sha256()
    for name in sorted(names):
        for task, length, is_training in segments_of(key, name):
            if is_training:
                for rows in task.sample(np.random.default_rng(0), length, 16):
                    digest.update(rows.tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "name"), PRESETS)
def test_ten_thousand_training_rows_of_every_preset_are_solved_independently(key, name):
    check_training_rows(key, name, 10_000, 100_000_000)


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


@pytest.mark.parametrize("key", KEYS)
def test_rows_of_a_version_never_change(key):
    first = [name for name in task_class(key).presets if (key, name) not in JOINED]
    found = task_class(key).version, digest_of(key, first)
    version, first_rows, _ = GOLDEN.get(key, ("", "", ""))
    assert found == (version, first_rows), f"rows of {key!r} or its presets changed; raise the version if a law changed"


@pytest.mark.parametrize(("key", "name"), sorted(JOINED))
def test_rows_of_presets_that_joined_later_never_change(key, name):
    assert digest_of(key, [name]) == JOINED[key, name]


def test_an_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="unknown task: 'mqr'; did you mean 'mqar'"):
        task_class("mqr")
