"""Compositional recall: values of pairs of keys, neither of which alone tells which value it is."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int, check_real
from hf_memory.tasks._draws import draw_distinct, draw_weighted_distinct
from hf_memory.tasks._slots import slot_levels
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

ASSIGNMENTS = ("published", "shuffled")
FILLERS = ("zero", "random")
LOSS_REGIONS = ("answers", "all")
_TRIPLE = 3
_ZOOLOGY = "the published code of Zoology (2026), compositional recall: the mixture of its sizes{}"
_SMALL = "the same law at a size that trains on a CPU"
_SHUFFLED = "; the queries shuffled over the slots, repaired by this package"


def _mixture(words: str = "", **knobs: str) -> Preset:
    train = ((100_000, 64, 4), (20_000, 128, 9), (20_000, 256, 16), (20_000, 256, 25), (20_000, 256, 36))
    test = ((64, 4), (64, 9), (128, 16), (256, 36), (512, 64), (1024, 144), (2048, 256))
    return Preset(
        64,
        (64,),
        {"filler": "random", **knobs},
        {f"test_{length}_kv{pairs}": (Segment(1_000, length, {"num_kv_pairs": pairs}),) for length, pairs in test},
        tuple(Segment(count, length, {"num_kv_pairs": pairs}) for count, length, pairs in train),
        source=_ZOOLOGY.format(words),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompositionalMQAR(Task):
    """Recall the value of each pair of keys when the pair comes again, in a row that holds all pairs of a grid.

    Of g first and g second keys all k = g^2 pairs are bound, as ``first second value`` in uniformly random order. Slots
    of three tokens follow; each pair is queried once, in one slot, as ``first second blank``, and its value is due at
    the second key. By the convention of causal heads the label stands under the blank. The i-th of the pairs gets the
    i-th slot that is drawn with weight ``(s + 1)^(power_a - 1)``, as in :class:`~hf_memory.tasks.mqar.MQAR`.

    >>> row = np.array([[1, 8, 14, 2, 8, 12, 2, 9, 15, 1, 9, 13, 2, 8, 0, 1, 9, 0, 1, 8, 0, 2, 9, 0]])
    >>> CompositionalMQAR(vocab_size=18).solve(row)[0, 12:].tolist()
    [-100, -100, 12, -100, -100, 13, -100, -100, 14, -100, -100, 15]

    A memory of one of the two keys leaves g values to choose from, so that its recall is 1/g: one half at four pairs.

    Expected to be solved by attention of two layers and, up to the size of their state, by linear recurrences with a
    short convolution, which makes one key of two; without one, only where a layer below has joined the keys.

    Attributes:
        vocab_size: Number of ids V: first keys, second keys and values from the thirds of [1, V), and 0 is the blank.
        num_kv_pairs: Number of pairs k, a square.
        power_a: Exponent of the slots' law: near 0 most queries come early, 1 is uniform.
        filler: What stands in the slots without a query and under the blanks: ``"zero"``, or ``"random"``, uniform over
            all ids.
        slot_assignment: ``"published"``, as above; ``"shuffled"``: the drawn slots are given to the pairs in uniformly
            random order, so that a slot tells nothing of its pair.
        loss_region: ``"answers"``: only those are supervised; ``"all"``: every token is, with the answers at theirs.
    """

    key: ClassVar[str] = "compositional_mqar"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "associative"
    headline_metric: ClassVar[str] = "recall"
    levels_until: ClassVar[int | None] = 16_384
    presets: ClassVar[Mapping[str, Preset]] = {
        "kv4_len64": Preset(64, (64, 128, 256), {"num_kv_pairs": 4}, source=_SMALL),
        "kv9_len64": Preset(64, (64, 128, 256), {"num_kv_pairs": 9}, source=_SMALL),
        "zoology_mixture": _mixture(),
        "zoology_mixture_shuffled": _mixture(_SHUFFLED, slot_assignment="shuffled"),
    }

    vocab_size: int = 8192
    num_kv_pairs: int = 4
    power_a: float = 0.01
    filler: str = "zero"
    slot_assignment: str = "published"
    loss_region: str = "answers"

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, 7)
        check_int(f"num_kv_pairs with vocab_size {self.vocab_size}", self.num_kv_pairs, 1, self._third**2)
        if self.grid**2 != self.num_kv_pairs or self.num_kv_pairs > self._third:
            raise ValueError(f"num_kv_pairs must be a square of at most {self._third}, got {self.num_kv_pairs!r}")
        check_real("power_a", self.power_a, 0.0, 8.0, open_low=True)
        check_choice("filler", self.filler, FILLERS)
        check_choice("slot_assignment", self.slot_assignment, ASSIGNMENTS)
        check_choice("loss_region", self.loss_region, LOSS_REGIONS)

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def grid(self) -> int:
        """Number g of first and of second keys."""
        return math.isqrt(self.num_kv_pairs)

    @property
    def context_length(self) -> int:
        """Number of tokens before the first slot."""
        return _TRIPLE * self.num_kv_pairs

    @property
    def _third(self) -> int:
        """Number of first keys, of second keys and of values to draw from."""
        return (self.vocab_size - 1) // _TRIPLE

    @property
    def _all(self) -> bool:
        return self.loss_region == "all"

    def _num_slots(self, length: int) -> int:
        return (length - self.context_length) // _TRIPLE

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` holds the context and a slot for each query; what is left of a slot is filler."""
        check_int(f"length with {self.num_kv_pairs} num_kv_pairs", length, 2 * self.context_length)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, k positions of each row supervised, or all."""
        self.validate_length(length)
        n, k, grid, third = num_examples, self.num_kv_pairs, self.grid, self._third
        first, second = (draw_distinct(rng, n, grid, third) + 1 + third * side for side in (0, 1))
        values = draw_distinct(rng, n, k, third) + 1 + 2 * third
        order = rng.permuted(np.broadcast_to(np.arange(k), (n, k)), axis=1)
        row = np.arange(n)[:, None]
        keys = first[row, order // grid], second[row, order % grid]
        weights = np.arange(1, self._num_slots(length) + 1, dtype=np.float64) ** (self.power_a - 1.0)
        slots = draw_weighted_distinct(rng, n, k, weights)
        if self.slot_assignment == "shuffled":
            slots = rng.permuted(slots, axis=1)
        query_at = self.context_length + _TRIPLE * slots

        ids, labels = np.zeros((n, length), dtype=np.int32), np.full((n, length), IGNORE_INDEX, dtype=np.int32)
        if self.filler == "random":
            size = (n, length - self.context_length)
            ids[:, self.context_length :] = rng.integers(0, self.vocab_size, size=size, dtype=np.int32)
        ids[:, : self.context_length] = np.stack([*keys, values], axis=2).reshape(n, self.context_length)
        ids[row, query_at], ids[row, query_at + 1] = keys
        labels[row, query_at + 2] = values
        return ids, np.where(labels == IGNORE_INDEX, ids, labels) if self._all else labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Compare both tokens of every slot with those of every pair of the context.

        Under random filler a pair may come by accident, and is labelled as well.
        """
        answers = self._answers(input_ids)
        return np.where(answers == IGNORE_INDEX, input_ids, answers).astype(np.int32) if self._all else answers

    def _answers(self, ids: np.ndarray) -> np.ndarray:
        """Answers (n, L), ignored where none is due."""
        labels = np.full(ids.shape, IGNORE_INDEX, dtype=np.int32)
        context = ids[:, : self.context_length].reshape(len(ids), -1, _TRIPLE)
        for column in range(self.context_length, ids.shape[1] - 2, _TRIPLE):
            same = (context[:, :, :2] == ids[:, None, column : column + 2]).all(axis=2)
            value = np.where(same, context[:, :, 2], 0).sum(axis=1)
            labels[:, column + 2] = np.where(same.any(axis=1), value, IGNORE_INDEX)
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, and at each scored position (-1 elsewhere) what may make its recall hard.

        ``distance``: tokens from the second key in the context to the one of the query; ``pair``: place of the pair in
        the context; ``slot``: place of the query. Where random filler repeats a pair, ``undecided`` marks all of them.
        """
        answers = self._answers(input_ids)
        score = (labels != IGNORE_INDEX) & (answers != IGNORE_INDEX)
        row, column = np.nonzero(score)
        context = input_ids[:, : self.context_length].reshape(len(input_ids), -1, _TRIPLE)
        query = np.stack([input_ids[row, column - 2], input_ids[row, column - 1]], axis=1)
        pair = np.argmax((context[row, :, :2] == query[:, None]).all(axis=2), axis=1)
        found = {
            "distance": column - 2 - _TRIPLE * pair,
            "pair": pair,
            "slot": (column - self.context_length) // _TRIPLE,
        }
        undecided = np.zeros(labels.shape, dtype=bool)
        if self.filler == "random":
            for value in input_ids[:, 2 : self.context_length : _TRIPLE].T:
                same = answers == value[:, None]
                undecided |= same & (same.sum(axis=1, keepdims=True) > 1)
        notes = {"score": score, "undecided": undecided}
        for name, numbers in found.items():
            notes[name] = np.full(labels.shape, -1, dtype=np.int32)
            notes[name][row, column] = numbers
        return notes

    def chance_level(self, metric: str, length: int) -> float:
        """The best guess of the pair from the position of its query, exact from the law of the slots.

        ``recall`` and, where answers alone are supervised, ``loss`` (nats): 1/k and ln k where a slot tells nothing of
        its pair. NaN for other metrics.
        """
        tells = self.slot_assignment == "published" and self.power_a != 1.0
        if metric not in ("recall", "token_accuracy") and not (metric == "loss" and not self._all):
            return math.nan
        if not tells:
            return math.log(self.num_kv_pairs) if metric == "loss" else 1.0 / self.num_kv_pairs
        self.validate_length(length)
        recall, loss = slot_levels(self._num_slots(length), self.num_kv_pairs, float(self.power_a))
        return loss if metric == "loss" else recall

    def baselines(self, length: int) -> dict[str, float]:
        """Recall of a value of the context, of the likeliest pair, and of a memory of one of the two keys, 1/g."""
        return {
            "value_in_context": 1.0 / self.num_kv_pairs,
            "position": self.chance_level("recall", length),
            "one_key": 1.0 / self.grid,
        }

    def candidates(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The values of the context."""
        mask = np.zeros(input_ids.shape, dtype=bool)
        mask[:, 2 : self.context_length : _TRIPLE] = True
        return mask

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact without filler; with it a lower bound, from zero filler."""
        self.validate_length(length)
        k, third = self.num_kv_pairs, self._third
        grids = math.comb(third, self.grid) ** 2 * math.factorial(k)
        return grids * math.perm(third, k) * math.perm(self._num_slots(length), k)
