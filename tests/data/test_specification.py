"""Presets and overrides, resolved to the segments of each split."""

import dataclasses

import datasets
import numpy as np
import pytest

from hf_memory.data.specification import specify
from hf_memory.data.values import apportion, from_json, stable_digest, to_json
from hf_memory.tasks import TASKS, task_class
from hf_memory.tasks.base import Segment


def _sizes(task: str, *preset: str, **overrides: object) -> dict[str, int]:
    splits = specify(task, *preset, **overrides).splits
    return {name: split.num_examples for name, split in splits.items()}


def test_default_configuration_has_the_published_sizes_and_lengths() -> None:
    sizes = _sizes("bit_parity")
    assert list(sizes) == ["train", "validation", "test_32", "test_48", "test_64", "test_128", "test_256"]
    assert list(sizes.values()) == [100_000] + [3_000] * 6


def test_test_lengths_follow_the_length_unless_they_are_given() -> None:
    assert list(_sizes("bit_parity", length=8))[2:] == ["test_8", "test_12", "test_16", "test_32", "test_64"]
    assert list(_sizes("bit_parity", length=8, test_lengths=[16]))[2:] == ["test_16"]
    assert list(_sizes("bit_parity", length=8, test_lengths=[32, 48, 64, 128, 256]))[2] == "test_32"
    assert list(_sizes("bit_parity", length=(2, 64)))[2:4] == ["test_64", "test_96"]


def test_scaled_lengths_are_those_for_which_the_law_has_rows() -> None:
    assert list(_sizes("dyck", length=34))[2:] == ["test_34", "test_52", "test_68", "test_136", "test_272"]


def test_values_that_hold_anyway_are_dropped_and_types_are_those_of_json() -> None:
    said = specify("bit_parity", length=32, num_train=100_000, seed=0, modulus=2, test_lengths=(32, 48, 64, 128, 256))
    assert said == specify("bit_parity")
    assert said.overrides == {}
    assert specify("bit_parity", length=(32, 32)).overrides == {}
    assert specify("bit_parity", test_lengths=9) == specify("bit_parity", test_lengths=[9])
    changed = specify("bit_parity", seed=np.int64(3), length=(3, 9), test_lengths=np.array([9, 12]))
    assert changed.overrides == {"length": [3, 9], "seed": 3, "test_lengths": [9, 12]}
    assert all(type(value) in (int, list) for value in changed.overrides.values())


def test_a_split_of_size_zero_is_left_out() -> None:
    assert list(_sizes("bit_parity", num_validation=0, num_test=0)) == ["train"]
    assert list(_sizes("bit_parity", test_lengths=[])) == ["train", "validation"]


def test_named_tests_are_kept_until_their_setting_is_overridden() -> None:
    assert "test_24_iid" in _sizes("bit_parity", "ones12_len16")
    assert _sizes("bit_parity", "ones12_len16", num_test=7)["test_24_iid"] == 7
    assert "test_24_iid" not in _sizes("bit_parity", "ones12_len16", length=18)
    assert "test_24_iid" not in _sizes("bit_parity", "ones12_len16", num_ones=4)
    assert "test_24_iid" in _sizes("bit_parity", "ones12_len16", seed=4)


def test_a_mixture_keeps_its_proportions_and_validation_takes_after_it() -> None:
    whole = specify("mqar", "based_mixture").splits
    assert [part.num_examples for part in whole["train"].parts] == [100_000, 20_000, 20_000, 20_000, 20_000]
    assert [part.num_examples for part in whole["validation"].parts] == [1667, 334, 333, 333, 333]
    small = specify("mqar", "based_mixture", num_train=90).splits["train"]
    assert [part.num_examples for part in small.parts] == [50, 10, 10, 10, 10]
    assert [part.task.num_kv_pairs for part in small.parts] == [4, 8, 16, 32, 64]


def test_a_mixture_part_that_asks_for_its_whole_space_is_not_held_out() -> None:
    splits = specify("group_word_problem", "a5_k8").splits
    assert [(part.length, part.num_examples, part.covered) for part in splits["train"].parts] == [
        (8, 100_000, False),
        (2, 3_600, True),
    ]
    assert [(part.length, part.num_examples) for part in splits["validation"].parts] == [(8, 3_000)]


@pytest.mark.parametrize("task", TASKS)
def test_every_preset_has_splits_that_the_hub_can_show(task: str) -> None:
    for preset in task_class(task).presets:
        splits = specify(task, preset).splits
        # The viewer of the Hub shows at most 30 splits, and split names are words.
        assert len(splits) <= 30
        assert list(splits)[:2] == ["train", "validation"]
        assert all(datasets.NamedSplit(name) == name for name in splits)


def test_train_length_covers_the_segments() -> None:
    assert specify("bit_parity").train_length == 32
    assert specify("bit_parity", "iid_3_40").train_length == (3, 40)
    assert specify("mqar", "based_mixture").train_length == (64, 256)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lenght": 5}, "did you mean 'length'"),
        ({"num_one": 5}, "did you mean 'num_ones'"),
        ({"length": 0}, "length must be an integer of at least 1"),
        ({"length": "32"}, "length must be an integer"),
        ({"length": True}, "length must be an integer"),
        ({"length": (9, 3)}, r"a pair \(low, high\)"),
        ({"test_lengths": [4, 4]}, "test_lengths must be distinct integers"),
        ({"test_lengths": ["a"]}, "test_lengths must be distinct integers of at least 1"),
        ({"num_train": 0}, "num_train must be an integer of at least 1"),
        ({"num_test": -1}, "num_test must be an integer of at least 0"),
        ({"seed": 0.5}, "seed must be an integer of at least 0"),
        ({"seed": object()}, "keywords must be numbers"),
        ({"num_ones": 33}, "num_ones at length 32"),
    ],
)
def test_bad_keywords_are_named(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        specify("bit_parity", **overrides)


def test_unknown_tasks_and_presets_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'mqar'"):
        specify("mqra")
    with pytest.raises(ValueError, match="did you mean 'kv4_len64'"):
        specify("mqar", "kv4_len46")


def test_apportioned_counts_add_up_and_are_within_one_of_their_share() -> None:
    for total in (0, 1, 7, 3000):
        for weights in ([1], [1, 1, 1], [100_000, 3_600], [5, 0, 2]):
            counts = apportion(total, weights)
            assert sum(counts) == total
            assert all(abs(c - total * w / sum(weights)) < 1 for c, w in zip(counts, weights, strict=True))
    assert apportion(5, []) == []


def test_digest_is_that_of_the_canonical_text() -> None:
    # Written out once: it must never move, because rows and cache keys hang on it.
    assert stable_digest({"b": [1, 2], "a": None}).hex() == stable_digest({"a": None, "b": [1, 2]}).hex()
    assert stable_digest({"a": 1}).hex() == "2c6b113b8dd15ffbded9860b43eb0c6c"


def test_values_survive_their_json_form() -> None:
    assert to_json((1, np.float64(0.5), (None, "x"))) == [1, 0.5, [None, "x"]]
    assert from_json([1, 0.5, [None, "x"]]) == (1, 0.5, (None, "x"))


@pytest.mark.parametrize("name", ["phase", "validation", "testing", "test 8", "test_", "test_8"])
def test_names_of_tests_begin_with_test_and_are_words(name, monkeypatch) -> None:
    preset = task_class("bit_parity").presets["iid_32"]
    wrong = dataclasses.replace(preset, test_lengths=(8,), tests={name: (Segment(4, 8),)})
    monkeypatch.setattr(task_class("bit_parity"), "presets", {"iid_32": wrong})
    with pytest.raises(ValueError, match="names of test splits must be distinct words that begin with 'test'"):
        specify("bit_parity", "iid_32")
