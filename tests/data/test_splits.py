"""The hash that decides which split a row may stand in."""

import numpy as np
import pytest

from hf_memory.data.splits import CLASS_RANGES, NUM_CLASSES, dealt_bounds, in_class, mix, row_hashes

_MASK = (1 << 64) - 1


def _mix_in_python(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _hash_in_python(row: list[int]) -> int:
    total = 0
    for position, symbol in enumerate(row, start=1):
        coefficient = _mix_in_python((position * 0x9E3779B97F4A7C15) & _MASK) | 1
        total = (total + coefficient * (symbol + 1)) & _MASK
    return _mix_in_python(total)


def test_hash_equals_the_definition_in_unbounded_integers(rng: np.random.Generator) -> None:
    for length in (1, 2, 7, 64):
        rows = rng.integers(0, 8192, size=(9, length), dtype=np.int32)
        assert row_hashes(rows).tolist() == [_hash_in_python(row) for row in rows.tolist()]


def test_finaliser_gives_the_published_stream_of_splitmix64() -> None:
    # First outputs of SplitMix64 with seed 1234567, as listed with its reference implementation.
    seeds = (1234567 + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    assert mix(seeds).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_hash_does_not_depend_on_the_integer_type_or_on_the_number_of_rows(rng: np.random.Generator) -> None:
    rows = rng.integers(0, 200, size=(5000, 6))
    hashes = row_hashes(rows.astype(np.int32))
    assert np.array_equal(hashes, row_hashes(rows.astype(np.uint8)))
    assert np.array_equal(hashes[4321:4330], row_hashes(rows[4321:4330]))


def test_rows_of_zeros_hash_unlike_for_unlike_lengths() -> None:
    assert len({int(row_hashes(np.zeros((1, length), dtype=np.int32))[0]) for length in range(1, 200)}) == 199


def test_no_two_of_many_rows_collide_and_classes_have_their_shares() -> None:
    numbers = np.arange(1 << 18)
    rows = ((numbers[:, None] >> np.arange(18)) & 1).astype(np.int32)
    hashes = row_hashes(rows)
    assert len(np.unique(hashes)) == len(hashes)
    for role, (low, high) in CLASS_RANGES.items():
        share = (high - low) / NUM_CLASSES
        spread = (share * (1 - share) / len(rows)) ** 0.5
        assert abs(in_class(hashes, role).mean() - share) < 4 * spread


def test_every_row_belongs_to_exactly_one_class(rng: np.random.Generator) -> None:
    hashes = row_hashes(rng.integers(0, 9, size=(3000, 12), dtype=np.int32))
    assert (sum(in_class(hashes, role).astype(int) for role in CLASS_RANGES) == 1).all()


@pytest.mark.parametrize("num_distinct", [0, 1, 9, 10, 11, 1820, 65536])
def test_dealt_ranges_cover_all_rows_once(num_distinct: int) -> None:
    ranges = [dealt_bounds(num_distinct, role) for role in ("train", "validation", "test")]
    assert [low for low, _ in ranges] == [0, ranges[0][1], ranges[1][1]]
    assert ranges[2][1] == num_distinct
