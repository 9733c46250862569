"""Which split a row may stand in, decided by the row alone.

A 64-bit hash of ``input_ids`` puts every possible row into one of three classes, 14/16 train, 1/16 validation and 1/16
test. A split only holds rows of its class, so two splits share no row, whatever the length, seed or size they were
drawn with. The hash is written out here in 64-bit integer arithmetic: it is the same on every platform and for every
version of numpy, and it is independent of ``PYTHONHASHSEED``.

It is the multilinear family of Carter and Wegman (1979, "Universal classes of hash functions") over the ring of 64-bit
integers, h(x) = sum_t a_t (x_t + 1), with the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, figure 17) on top.
"""

from typing import Literal

import numpy as np

Role = Literal["train", "validation", "test"]

NUM_CLASSES = 16
"""Equally likely values of the top four bits of a hash."""

CLASS_RANGES: dict[str, tuple[int, int]] = {"train": (0, 14), "validation": (14, 15), "test": (15, 16)}
"""Half-open range of the top four bits that belongs to each role."""

DEALT_SHARES: dict[str, tuple[int, int]] = {"train": (0, 8), "validation": (8, 9), "test": (9, 10)}
"""Half-open range, in tenths of all rows in the order of their hashes, that belongs to each role of a small space."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ROWS_PER_PASS = 4096


def mix(values: np.ndarray) -> np.ndarray:
    """The SplitMix64 finaliser, a bijection of 64-bit integers that lets every input bit move every output bit."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def row_hashes(input_ids: np.ndarray) -> np.ndarray:
    """Hash rows.

    Args:
        input_ids: Rows (n, L) of non-negative integers.

    Returns:
        Hashes (n,) uint64. Rows of unlike length hash unlike, since the symbol 0 contributes too.
    """
    num_rows, length = input_ids.shape
    coefficients = mix(np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN) | np.uint64(1)
    # sum a_t (x_t + 1) = sum a_t x_t + sum a_t; passes keep the 64-bit copy of the ids in the processor's cache.
    sums = np.empty(num_rows, dtype=np.uint64)
    for start in range(0, num_rows, _ROWS_PER_PASS):
        sums[start : start + _ROWS_PER_PASS] = (
            input_ids[start : start + _ROWS_PER_PASS].astype(np.uint64) @ coefficients
        )
    return mix(sums + coefficients.sum(dtype=np.uint64))


def in_class(hashes: np.ndarray, role: Role) -> np.ndarray:
    """Whether rows with these hashes (n,) may stand in a split of ``role``, as booleans (n,)."""
    low, high = CLASS_RANGES[role]
    classes = hashes >> np.uint64(60)
    return (classes >= low) & (classes < high)


def dealt_bounds(num_distinct: int, role: Role) -> tuple[int, int]:
    """Range of positions, in the order of hashes, that ``role`` gets of ``num_distinct`` rows."""
    low, high = DEALT_SHARES[role]
    return num_distinct * low // 10, num_distinct * high // 10
