"""Bit parity: how many ones have been seen so far, modulo two, at every position."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

_MAX_ENUMERATED = 1 << 26
_SETTLED = 1e-16
"""Change of a probability by one step below which a chain counts as settled."""
_POSTER = "poster, bit parity: trained at 32, evaluated at 48, 64, 128, 256"
_LONGER = "project page, bit parity: evaluated at sequences 50 % longer"
_CONTROLLED = "poster, controlled bit parity: exactly 12 ones, evaluated at sequences 50 % longer"
_SHORT_MIX = "lengths of Beck et al. (2024), xLSTM, and Grazzi et al. (2025), who score the last parity alone"
_SHORT_MIX_LAST = (
    "Beck et al. (2024), xLSTM, and Grazzi et al. (2025): one answer a row, trained at 3 to 40 tokens, evaluated at "
    "40 to 256; one of them is the answer, which is not counted here: 2 to 39 bits, then 39 to 255"
)
_THREE_TO_FORTY = (
    "Walker et al. (2025), SLiCE, and the PD-SSM paper (2025): 3 to 40 bits, the answer due at the last; their lengths "
    "from 40 to 256 are one split"
)
_CHOMSKY = (
    "Delétang et al. (2023), Chomsky hierarchy: 1 to 40 bits, the answer read at an empty token after them; lengths 41 "
    "to 500, whose mean is their score, are one split"
)
_POOLED = {"test_40_to_256": (Segment(8_192, (40, 256)),)}


def _controlled(length: int, num_ones: int, **knobs: int) -> Preset:
    """A preset with a fixed number of ones, whose tests separate a longer sequence from another density of ones.

    ``test_<length>`` keeps the number of ones; the suffixes ``longer_density`` and ``iid`` name the other laws.
    """
    longer = length * 3 // 2
    free: dict[str, int | None] = dict.fromkeys(knobs)
    tests = {
        f"test_{longer}_longer_density": (Segment(3_000, longer, {"num_ones": num_ones * 3 // 2, **free}),),
        f"test_{length}_iid": (Segment(3_000, length, {"num_ones": None, **free}),),
        f"test_{longer}_iid": (Segment(3_000, longer, {"num_ones": None, **free}),),
    }
    lengths: tuple[int, ...] = (length, longer)
    if knobs:
        lengths = (length,)
        tests[f"test_{longer}_longer"] = (Segment(3_000, longer, {"num_ones": num_ones, **free}),)
    return Preset(length, lengths, {"num_ones": num_ones, **knobs}, tests, source=_CONTROLLED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitParity(Task):
    """Track the parity of a bit string: ``y_t = (x_1 + ... + x_t) mod 2``, so that 1 means an odd number of ones.

    >>> import numpy as np
    >>> def show(bits):
    ...     return "".join(map(str, BitParity().solve(np.array([[int(bit) for bit in bits]]))[0]))
    >>> show("0011010")
    '0010011'
    >>> show("010101101")
    '011001001'

    Bits are independent and uniform, or, in the controlled law, exactly ``num_ones`` of them are 1, on a uniform
    subset of the positions. The controlled law moves chance away from one half: after the last one the label is
    constant, and position and current bit alone tell more the denser the ones are.

    Where a separator ends the row, the one answer is due there:

    >>> BitParity(score="last", separator=True).solve(np.array([[1, 1, 0, 1, 2]])).tolist()
    [[-100, -100, -100, -100, 1]]

    Expected to be solved at any length by nonlinear recurrences and by linear ones whose eigenvalues reach below zero
    (Grazzi et al., 2025); those with eigenvalues in [0, 1] alone, and attention, do not go beyond the trained lengths.

    Attributes:
        num_ones: Number of ones in each row; ``None`` for independent bits.
        distinct_pool: Size of a fixed pool of distinct rows from which all rows come; ``None`` for no limit. It tells
            memorising a small space apart from a high density of ones. The pool depends on the other knobs alone.
        modulus: Modulus of the count. 2 is parity; a larger one gives as many classes.
        score: ``"all"``: every position is supervised; ``"last"``: the last one only, where nothing but the whole row
            tells the answer of independent bits.
        separator: End each row with a third id, under which the answer is due. Only where the last position is scored.
    """

    key: ClassVar[str] = "bit_parity"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stateful"
    levels_until: ClassVar[int | None] = 4_096
    presets: ClassVar[Mapping[str, Preset]] = {
        "iid_32": Preset(32, (32, 48, 64, 128, 256), source=_POSTER),
        "iid_16": Preset(16, (16, 24), source=_LONGER),
        "iid_64": Preset(64, (64, 96), source=_LONGER),
        "iid_128": Preset(128, (128, 192), source=_LONGER),
        "iid_256": Preset(256, (256, 384), source=_LONGER),
        "iid_3_40": Preset((3, 40), (40, 64, 128, 256), source=_SHORT_MIX),
        "iid_2_39_last": Preset((2, 39), (39, 63, 127, 255), {"score": "last"}, source=_SHORT_MIX_LAST),
        "iid_3_40_last": Preset((3, 40), (40, 64, 128, 256), {"score": "last"}, _POOLED, source=_THREE_TO_FORTY),
        "iid_1_40_separator": Preset(
            (1, 40),
            (40, 100, 250, 500),
            {"score": "last", "separator": True},
            {"test_41_to_500": (Segment(3_000, (41, 500)),)},
            source=_CHOMSKY,
        ),
        "ones12_len16": _controlled(16, 12),
        "ones12_len32": _controlled(32, 12),
        "ones4_len32": _controlled(32, 4),
        "ones20_len32": _controlled(32, 20),
        "ones12_len32_pool1820": _controlled(32, 12, distinct_pool=1_820),
    }

    num_ones: int | None = None
    distinct_pool: int | None = None
    modulus: int = 2
    score: str = "all"
    separator: bool = False

    def __post_init__(self) -> None:
        check_int("num_ones", self.num_ones, 0, optional=True)
        check_int("distinct_pool", self.distinct_pool, 1, optional=True)
        check_int("modulus", self.modulus, 2)
        check_choice("score", self.score, ("all", "last"))
        check_choice("separator", self.separator, (False, True) if self.score == "last" else (False,))

    @property
    def vocab_size(self) -> int:
        """The bits, and the separator where there is one."""
        return 2 + self.separator

    def row_length(self, length: int) -> int:
        """Columns of ``length`` bits and of the separator."""
        return length + self.separator

    @property
    def num_labels(self) -> int:
        """One class for each remainder."""
        return self.modulus

    def validate_length(self, length: int) -> None:
        """Raise where a row cannot hold the ones or where there are fewer rows than the pool asks for."""
        check_int("length", length, 1)
        check_int(f"num_ones at length {length}", self.num_ones, 0, length, optional=True)
        check_int(f"distinct_pool at length {length}", self.distinct_pool, 1, self._space(length), optional=True)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, every position supervised or the last."""
        self.validate_length(length)
        if self.distinct_pool is None:
            bits = _draw_bits(rng, length, num_examples, self.num_ones)
        else:
            pool = _pool(self._unscored(), length)
            bits = pool[rng.integers(0, len(pool), size=num_examples)]
        labels = np.cumsum(bits, axis=1, dtype=np.int32)
        if self.modulus == 2:
            labels &= 1
        else:
            labels %= self.modulus
        return self._separated(bits), self._supervised(labels)

    def _separated(self, bits: np.ndarray) -> np.ndarray:
        """Rows (n, L) int32 of bits, with the separator at their end where there is one."""
        end = np.full((len(bits), int(self.separator)), 2, dtype=np.int32)
        return np.concatenate([bits, end], axis=1, dtype=np.int32) if self.separator else bits.astype(np.int32)

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Walk a counter that wraps at the modulus over the bits of each row."""
        bits = input_ids.shape[1] - self.separator
        labels = np.empty((len(input_ids), bits), dtype=np.int32)
        state = np.zeros(len(input_ids), dtype=np.int32)
        for position in range(bits):
            state = np.where(input_ids[:, position] == 1, state + 1, state)
            state[state == self.modulus] = 0
            labels[:, position] = state
        return self._supervised(labels)

    def _supervised(self, labels: np.ndarray) -> np.ndarray:
        """Labels (n, L), ignored where a position is not supervised, of remainders after each bit."""
        if self.separator:
            labels = np.concatenate([labels, labels[:, -1:]], axis=1)
        if self.score == "last":
            labels[:, :-1] = IGNORE_INDEX
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score`` (every labelled position) and ``ones_so_far``, the count whose remainder is the label."""
        ones = np.cumsum(input_ids == 1, axis=1, dtype=np.int32)
        return {**super().annotate(input_ids, labels), "ones_so_far": ones}

    def chance_level(self, metric: str, length: int) -> float:
        """The best predictor from position and current bit, by exact count: over the pool if there is one.

        ``token_accuracy`` and ``loss`` (nats) are exact for every knob. ``sequence_accuracy`` is known where one
        position is scored, and for independent bits and modulus 2: such a predictor can be right at every position for
        ``2^ceil(L/2)`` of the ``2^L`` rows. NaN for other metrics.
        """
        if metric == "token_accuracy" or (metric == "sequence_accuracy" and self.score == "last"):
            return self.baselines(length)["position_and_token"]
        if metric == "loss":
            joint = self._joint(length, 1 - self.separator)
            given = joint / np.maximum(joint.sum(axis=2, keepdims=True), 1e-300)
            return float(-(joint * np.log(np.where(joint > 0, given, 1.0))).sum() / len(joint))
        if metric == "sequence_accuracy" and self.modulus == 2 and self.num_ones is self.distinct_pool is None:
            return 0.5 ** (length // 2)
        return math.nan

    def baselines(self, length: int) -> dict[str, float]:
        """Token accuracy of the best tables of nothing, position, bit, both, 3 bits, the commoner bit; exact."""
        check_int(f"num_ones at length {length}", self.num_ones, 0, length, optional=True)
        # The separator takes the place of a token, and says nothing.
        joint = self._joint(length, 1 - self.separator)
        majority = self._scored(_majority_joint(self._unscored(), length))
        return {
            "majority": float(joint.sum(axis=1).mean(axis=0).max()),
            "position": float(joint.sum(axis=1).max(axis=1).mean()),
            "token": float(joint.mean(axis=0).max(axis=1).sum()),
            "position_and_token": float(joint.max(axis=2).sum(axis=1).mean()),
            "last_3_tokens": float(self._joint(length, 3 - self.separator).mean(axis=0).max(axis=1).sum()),
            "majority_so_far": float(majority.mean(axis=0).max(axis=1).sum()),
        }

    def _joint(self, length: int, width: int) -> np.ndarray:
        """Probability (S, W, C) that the last ``width`` bits are w and the label y, at each scored position."""
        if width == 0:
            return self._joint(length, 1).sum(axis=1, keepdims=True)
        joint = (
            _joint_of_pool(self._unscored(), length, width)
            if self.distinct_pool
            else _joint(length, self.num_ones, self.modulus, width)
        )
        return self._scored(joint)

    def _unscored(self) -> "BitParity":
        """The law without what tells which positions are scored."""
        return dataclasses.replace(self, score="all", separator=False)

    def _scored(self, joint: np.ndarray) -> np.ndarray:
        """The scored positions of an array whose first axis is the position."""
        return joint if self.score == "all" else joint[-1:]

    def knows_levels(self, length: int) -> bool:
        """For the parity of independent bits at every length, which a closed form and a settled chain give."""
        return (self.modulus == 2 and self.num_ones is self.distinct_pool is None) or super().knows_levels(length)

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        space = self._space(length)
        return space if self.distinct_pool is None else min(space, self.distinct_pool)

    def enumerate(self, length: int) -> np.ndarray:
        """All distinct rows in lexicographic order, or the pool."""
        self.validate_length(length)
        if self.distinct_pool is not None:
            return self._separated(_pool(self._unscored(), length))
        return self._separated(_unrank(length, self.num_ones))

    def _space(self, length: int) -> int:
        return 2**length if self.num_ones is None else math.comb(length, self.num_ones)


def _draw_bits(rng: np.random.Generator, length: int, num_examples: int, num_ones: int | None) -> np.ndarray:
    """Bits (n, L) uint8. A fixed number of ones is placed by selection sampling, which needs integers only."""
    if num_ones is None:
        return rng.integers(0, 2, size=(num_examples, length), dtype=np.uint8)
    bits = np.empty((length, num_examples), dtype=np.uint8)
    left = np.full(num_examples, num_ones, dtype=np.uint32)
    for position in range(length):
        # Of the ``length - position`` places that remain, ``left`` are ones, and each is as likely to be this one.
        chosen = rng.integers(0, length - position, size=num_examples, dtype=np.uint32) < left
        left -= chosen
        bits[position] = chosen
    return np.ascontiguousarray(bits.T)


def _unrank(length: int, num_ones: int | None) -> np.ndarray:
    """All rows (n, L) uint8 in lexicographic order, each found from its rank."""
    count = 2**length if num_ones is None else math.comb(length, num_ones)
    if count > _MAX_ENUMERATED:
        raise ValueError(f"length {length} has {count} distinct rows; at most {_MAX_ENUMERATED} can be enumerated")
    rank = np.arange(count, dtype=np.int64)
    rows = np.empty((count, length), dtype=np.uint8)
    ones = np.full(count, -1 if num_ones is None else num_ones, dtype=np.int64)
    for position in range(length):
        rest = length - position - 1
        if num_ones is None:
            rows[:, position] = (rank >> rest) & 1
            continue
        # Rows that hold a zero here come first: there are C(rest, ones) of them.
        zeros_first = np.array([min(math.comb(rest, k), count) for k in range(num_ones + 1)], dtype=np.int64)[ones]
        bit = rank >= zeros_first
        rank = rank - np.where(bit, zeros_first, 0)
        ones = ones - bit
        rows[:, position] = bit
    return rows


@functools.lru_cache(maxsize=8)
def _pool(task: BitParity, length: int) -> np.ndarray:
    """The fixed pool of a task: ``distinct_pool`` distinct rows (P, L) uint8, drawn by a generator of its own."""
    size, ones = task.distinct_pool or 0, task.num_ones
    rng = np.random.default_rng([length, 0 if ones is None else ones + 1, size])
    if 2 * size >= task._space(length):
        rows = rng.permutation(_unrank(length, ones))[:size]
    else:
        rows = np.zeros((0, length), dtype=np.uint8)
        while len(rows) < size:
            rows = np.concatenate([rows, _draw_bits(rng, length, 2 * size, ones)])
            _, first = np.unique(rows, axis=0, return_index=True)
            rows = rows[np.sort(first)]
        rows = rows[:size]
    rows.setflags(write=False)
    return rows


def _windows(position: int, width: int) -> list[tuple[int, tuple[int, ...]]]:
    """The last bits at a position and the number of each window; those cut short by the row's start come after all."""
    seen = min(position + 1, width)
    start = sum(2**size for size in range(seen + 1, width + 1))
    return [(start + rank, bits) for rank, bits in enumerate(itertools.product((0, 1), repeat=seen))]


@functools.lru_cache(maxsize=16)
def _joint(length: int, num_ones: int | None, modulus: int, width: int) -> np.ndarray:
    """Probability (L, W, C) that the last ``width`` bits at a position are w and its label is y."""
    # The count is a Markov chain. Independent bits need its remainder only; otherwise it says how many ones are left.
    counts = np.arange(modulus if num_ones is None else num_ones + 1)
    joint = np.zeros((length, 2 ** (width + 1) - 2, modulus))
    before = [(counts == 0).astype(np.float64)]

    def step(chance: np.ndarray, position: int, bit: int) -> np.ndarray:
        one = np.full(len(counts), 0.5) if num_ones is None else (num_ones - counts) / (length - position)
        return np.roll(chance * one, 1) if bit else chance * (1 - one)

    for position in range(length):
        for window, bits in _windows(position, width):
            start = position + 1 - len(bits)
            chance = before[start]
            for offset, bit in enumerate(bits):
                chance = step(chance, start + offset, bit)
            np.add.at(joint[position, window], counts % modulus, chance)
        before.append(step(before[-1], position, 0) + step(before[-1], position, 1))
        # Independent bits forget where they began: from here on one position is like the next.
        if num_ones is None and position >= width and np.ptp(before[-width - 1 :], axis=0).max() < _SETTLED:
            joint[position:] = joint[position]
            break
    joint.setflags(write=False)
    return joint


@functools.lru_cache(maxsize=8)
def _joint_of_pool(task: BitParity, length: int, width: int) -> np.ndarray:
    """As :func:`_joint`, over the rows of a pool."""
    rows = _pool(task, length)
    labels = np.cumsum(rows, axis=1, dtype=np.int64) % task.modulus
    joint = np.zeros((length, 2 ** (width + 1) - 2, task.modulus))
    for position in range(length):
        for window, bits in _windows(position, width):
            here = (rows[:, position + 1 - len(bits) : position + 1] == bits).all(axis=1)
            joint[position, window] = np.bincount(labels[here, position], minlength=task.modulus) / len(rows)
    joint.setflags(write=False)
    return joint


def _majority_of_coins(length: int) -> np.ndarray:
    """As :func:`_majority_joint` for independent bits and their parity, in closed form.

    Of n bits, the counts k <= m = floor(n / 2) have probability 1/2 (n odd) or 1/2 + C(n, m) / 2^(n + 1), and even ones
    among them outweigh the odd ones by sum_k<=m (-1)^k C(n, k) / 2^n = (-1)^m C(n - 1, m) / 2^n.
    """
    n = np.arange(1, length + 1)
    middle = n // 2
    # C(n, floor(n / 2)) / 2^n, each from the one before; C(n - 1, m) is C(n, m) (n - m) / n.
    central = np.cumprod(np.where(n % 2, n / (n + 1), 1.0))
    few = np.where(n % 2, 0.5, 0.5 + central / 2)
    gap = np.where(middle % 2, -1.0, 1.0) * central * (n - middle) / n
    joint = np.stack([few + gap, few - gap, 1 - few - gap, 1 - few + gap], axis=1).reshape(length, 2, 2) / 2
    joint.setflags(write=False)
    return joint


@functools.lru_cache(maxsize=64)
def _majority_joint(task: BitParity, length: int) -> np.ndarray:
    """Probability (L, 2, C) that ones are more than zeros so far, or not, and that the label at a position is y."""
    if task.modulus == 2 and task.num_ones is task.distinct_pool is None:
        return _majority_of_coins(length)
    counts = np.arange(length + 1)
    joint = np.zeros((length, 2, task.modulus))
    chance = (counts == 0).astype(np.float64)
    pool = None if task.distinct_pool is None else np.cumsum(_pool(task, length), axis=1, dtype=np.int64)
    for position in range(length):
        if pool is None:
            left = length - position
            one = 0.5 if task.num_ones is None else np.clip((task.num_ones - counts) / left, 0.0, 1.0)
            chance = chance * (1 - one) + np.roll(chance * one, 1)
        else:
            chance = np.bincount(pool[:, position], minlength=length + 1) / len(pool)
        more = (2 * counts > position + 1).astype(np.intp)
        np.add.at(joint[position], (more, counts % task.modulus), chance)
    joint.setflags(write=False)
    return joint
