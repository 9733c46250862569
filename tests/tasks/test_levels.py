"""Chance levels and baselines of long rows: worked out where that is quick, unknown where it is not."""

import time

import numpy as np
import pytest

import hf_memory.tasks.bit_parity
from hf_memory.data.specification import length_bounds, specify
from hf_memory.tasks import TASKS, make_task, task_class
from hf_memory.tasks._arithmetic import plain_joint
from hf_memory.tasks.bit_parity import BitParity

LONGEST = 1 << 20


def longest_known(task) -> int:
    """The longest length at which levels are known, up to a million, and rows exist."""
    for length in range(task.levels_until or LONGEST, 0, -1):
        try:
            task.validate_length(length)
        except ValueError:
            continue
        return length
    raise ValueError("no length is known")


@pytest.mark.parametrize("key", TASKS)
def test_levels_of_all_published_lengths_are_known(key):
    for preset in task_class(key).presets:
        specification = specify(key, preset)
        for split in specification.splits.values():
            assert all(part.task.knows_levels(length_bounds(part.length)[1]) for part in split.parts)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("key", TASKS)
def test_known_levels_take_seconds(key):
    task = make_task(key)
    length, started = longest_known(task), time.process_time()
    chance, baselines = task.known_chance(task.headline_metric, length), task.known_baselines(length)
    assert time.process_time() - started < 20
    assert chance is not None
    assert all(np.isfinite(level) for level in baselines.values())


@pytest.mark.parametrize("key", [key for key in TASKS if task_class(key).levels_until])
def test_levels_beyond_are_unknown_at_once(key, monkeypatch):
    task = make_task(key, **({"modulus": 3} if key == "bit_parity" else {}))
    for name in ("chance_level", "baselines"):
        monkeypatch.setattr(type(task), name, None)
    length = task.levels_until + 1
    assert (task.known_chance(task.headline_metric, length), task.known_baselines(length)) == (None, {})


def test_a_level_that_no_law_gives_is_none():
    assert make_task("bit_parity").known_chance("no_such_metric", 8) is None


def test_parity_of_coins_is_known_in_closed_form_at_every_length():
    task, counts = BitParity(), np.zeros((300, 301, 2))
    chance = np.eye(1, 301)[0]
    for position in range(300):
        chance = (chance + np.roll(chance, 1)) / 2
        for label in (0, 1):
            counts[position, label::2, label] = chance[label::2]
    more = np.arange(301) > np.arange(1, 301)[:, None] / 2
    table = np.stack([(counts * (more == side)[..., None]).sum(axis=1) for side in (False, True)], axis=1)
    assert task.baselines(300)["majority_so_far"] == pytest.approx(table.mean(axis=0).max(axis=1).sum(), abs=1e-12)
    assert task.known_chance("token_accuracy", LONGEST) == pytest.approx(0.5 + 0.5 / LONGEST, abs=1e-12)


def test_a_chain_that_has_settled_is_that_of_all_steps(monkeypatch):
    def levels(modulus: int) -> dict[str, float]:
        hf_memory.tasks.bit_parity._joint.cache_clear()
        return BitParity(modulus=modulus).baselines(200)

    settled = {modulus: levels(modulus) for modulus in (2, 3, 5)}
    monkeypatch.setattr(hf_memory.tasks.bit_parity, "_SETTLED", -1.0)
    for modulus, found in settled.items():
        assert found == pytest.approx(levels(modulus), abs=1e-12)
    hf_memory.tasks.bit_parity._joint.cache_clear()


def test_expressions_of_a_thousand_digits_have_a_level():
    # Digits and operators forget where the expression began: the last tokens say the same at any length.
    short, long = (plain_joint(length, 5, 3, 3) for length in (60, 1_024))
    np.testing.assert_allclose(long, short, atol=1e-9)
    assert long.sum() == pytest.approx(1.0)
