"""Memorisation: one map for all rows, which a table of two tokens is."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import memorisation
from hf_memory.tasks.memorisation import Memorisation


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(memorisation).attempted == 3
    assert doctest.testmod(memorisation).failed == 0


def test_rows_have_the_layout_of_the_source():
    task = Memorisation()
    ids, labels = task.sample(np.random.default_rng(0), 32, 2_000)
    assert (ids[:, 1::2] == 255).all() and (labels[:, 0::2] == -100).all()
    assert (ids[:, 0::2].min(), ids[:, 0::2].max()) == (0, 126)
    assert (labels[:, 1::2].min(), labels[:, 1::2].max()) == (127, 253)
    # One value for each key, in all rows.
    pairs = {*zip(ids[:, 0::2].ravel().tolist(), labels[:, 1::2].ravel().tolist(), strict=True)}
    assert len(pairs) == len({key for key, _ in pairs}) == len({value for _, value in pairs}) == 127


def test_the_map_depends_on_its_seed_alone():
    first, again, other = (Memorisation(map_seed=seed).mapping for seed in (12345, 12345, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert sorted(first) == list(range(127, 254))


def test_levels_and_presets():
    task = Memorisation()
    assert task.chance_level("token_accuracy", 32) == task.baselines(32)["any_value"] == pytest.approx(1 / 127)
    assert task.chance_level("loss", 32) == pytest.approx(math.log(127))
    assert task.chance_level("sequence_accuracy", 4) == pytest.approx(127**-2)
    assert task.baselines(32)["table_of_the_key"] == 1.0
    assert Memorisation.presets["vocab256_len32"].train[0].num_examples == 256


@pytest.mark.parametrize(("knobs", "message"), [({"vocab_size": 4}, "vocab_size"), ({"map_seed": -1}, "map_seed")])
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        Memorisation(**knobs)
    with pytest.raises(ValueError, match="length must be even"):
        Memorisation().validate_length(3)
