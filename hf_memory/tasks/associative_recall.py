"""Associative recall: key-value pairs and one query."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks._draws import draw_distinct, expected_largest_count
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

ROLES = ("shared", "disjoint_in_row")
LOSS_REGIONS = ("answers", "all")
_CLASSIC = "associative recall with a vocabulary of 50 (Ba et al., 2016; Fu et al., 2023, H3), the row full of pairs"
_SMALL = "few pairs: the same law at a size that trains on a CPU"


def _pairs(num_kv_pairs: int, length: int, vocab_size: int, source: str) -> Preset:
    """Train at one size; test at 1, 1.5 and 2 times the length, the pairs kept or filling the longer row."""
    lengths = (length, length * 3 // 2, 2 * length)
    tests = {}
    for longer in lengths[1:]:
        pairs = num_kv_pairs * longer // length
        tests[f"test_{longer}_kv{pairs}"] = (Segment(3_000, longer, {"num_kv_pairs": pairs}),)
    return Preset(length, lengths, {"num_kv_pairs": num_kv_pairs, "vocab_size": vocab_size}, tests, source=source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssociativeRecall(Task):
    """Recall the value of the one key that comes again at the end.

    A row is ``key value key value ...`` with distinct keys, blanks where there is room, then one of the keys, which is
    as likely to be any of them. Its value is due at once; by the convention of causal heads the label stands at the
    last position, under a blank. Pairs stand at the start, so that a longer row with the same pairs holds them longer.

    >>> import numpy as np
    >>> row = np.array([[3, 12, 5, 9, 0, 0, 5, 0]])
    >>> AssociativeRecall(num_kv_pairs=2).solve(row).tolist()
    [[-100, -100, -100, -100, -100, -100, -100, 9]]

    Attributes:
        vocab_size: Number of ids V. Keys and values come from [1, V), and 0 is the blank.
        num_kv_pairs: Number of pairs k; ``None`` for as many as the row holds.
        roles: ``"shared"``: values are drawn from the whole vocabulary with replacement, so that an id may be key here
            and value there, in one row too, where only its place tells which; such queries are annotated as
            ``ambiguous``. ``"disjoint_in_row"``: values are drawn, with replacement, among the ids that are no key of
            the row.
        loss_region: ``"answers"``: the last position alone is supervised; ``"all"``: every token is, with the answer
            at the last.
    """

    key: ClassVar[str] = "associative_recall"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "associative"
    headline_metric: ClassVar[str] = "recall"
    presets: ClassVar[Mapping[str, Preset]] = {
        "kv15_len32": _pairs(15, 32, 50, _CLASSIC),
        "kv7_len16": _pairs(7, 16, 50, _SMALL),
        "kv4_len32": _pairs(4, 32, 50, _SMALL),
    }

    vocab_size: int = 50
    num_kv_pairs: int | None = None
    roles: str = "shared"
    loss_region: str = "answers"

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, 3)
        check_choice("roles", self.roles, ROLES)
        check_choice("loss_region", self.loss_region, LOSS_REGIONS)
        name = f"num_kv_pairs with vocab_size {self.vocab_size} and roles {self.roles!r}"
        check_int(name, self.num_kv_pairs, 1, self._most_pairs, optional=True)

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def _most_pairs(self) -> int:
        """Each key is an id of its own, and with disjoint roles one id must remain for the values."""
        return self.vocab_size - 1 - (self.roles == "disjoint_in_row")

    def pairs_at(self, length: int) -> int:
        """Number of pairs k in rows of ``length``."""
        return (length - 2) // 2 if self.num_kv_pairs is None else self.num_kv_pairs

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` holds the pairs, the query and the blank after it."""
        if self.num_kv_pairs is None:
            check_int(f"length with vocab_size {self.vocab_size}", length, 4, 2 * self._most_pairs + 3)
        else:
            check_int(f"length with {self.num_kv_pairs} num_kv_pairs", length, 2 * self.num_kv_pairs + 2)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, the last position of each row supervised."""
        self.validate_length(length)
        k, row = self.pairs_at(length), np.arange(num_examples)
        keys = draw_distinct(rng, num_examples, k, self.vocab_size - 1) + 1
        if self.roles == "shared":
            values = rng.integers(1, self.vocab_size, size=(num_examples, k))
        else:
            values = _number_among_others(rng.integers(0, self.vocab_size - 1 - k, size=(num_examples, k)), keys)
        asked = rng.integers(0, k, size=num_examples)
        input_ids = np.zeros((num_examples, length), dtype=np.int32)
        input_ids[:, 0 : 2 * k : 2] = keys
        input_ids[:, 1 : 2 * k : 2] = values
        input_ids[:, -2] = keys[row, asked]
        labels = self._other_labels(input_ids)
        labels[:, -1] = values[row, asked]
        return input_ids, labels

    def _other_labels(self, input_ids: np.ndarray) -> np.ndarray:
        """Labels (n, L) without the answers."""
        return (
            input_ids.astype(np.int32)
            if self.loss_region == "all"
            else np.full(input_ids.shape, IGNORE_INDEX, np.int32)
        )

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Walk over the pairs and keep the value of the one whose key is the query."""
        labels = self._other_labels(input_ids)
        for position in range(0, 2 * self.pairs_at(input_ids.shape[1]), 2):
            found = input_ids[:, position] == input_ids[:, -2]
            labels[found, -1] = input_ids[found, position + 1]
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, and at each scored position what may make its recall hard.

        ``distance``: tokens from the key's place in the context to the query, -1 elsewhere; ``ambiguous``: the queried
        key also stands as a value, so that its earlier places are followed by different ids.
        """
        score = labels != IGNORE_INDEX
        # Pads stand at the end: the answer is the last label.
        score &= np.cumsum(score, axis=1) == score.sum(axis=1, keepdims=True)
        row, column = np.nonzero(score)
        query = input_ids[row, column - 1][:, None]
        # Pads stand at the end and are never before the query.
        before = np.arange(input_ids.shape[1]) < (column - 1)[:, None]
        same = (input_ids[row] == query) & before
        distance = np.full(labels.shape, -1, dtype=np.int32)
        distance[row, column] = column - 1 - 2 * np.argmax(same[:, 0::2], axis=1)
        ambiguous = np.zeros(labels.shape, dtype=bool)
        ambiguous[row, column] = same[:, 1::2].any(axis=1)
        return {"score": score, "distance": distance, "ambiguous": ambiguous}

    def candidates(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The values of the context."""
        mask = np.zeros(input_ids.shape, dtype=bool)
        mask[:, 1 : 2 * self.pairs_at(input_ids.shape[1]) : 2] = True
        return mask

    def chance_level(self, metric: str, length: int) -> float:
        """The most frequent value of the context: its expected count over k, exact; above 1/k, as values repeat.

        Any pair is queried as often as any other, so that positions tell nothing.

        ``loss`` is not known in closed form. NaN for it and for other metrics.
        """
        if metric in ("recall", "token_accuracy", "sequence_accuracy"):
            return self.baselines(length)["most_frequent_value"]
        return math.nan

    def baselines(self, length: int) -> dict[str, float]:
        """Recall of one fixed value, of 1/k as if no value came twice, and of values of the context."""
        k, values = self.pairs_at(length), self._values_at(length)
        return {
            "any_value": 1.0 / (self.vocab_size - 1),
            "one_over_k": 1.0 / k,
            "value_in_context": (1.0 + (k - 1) / values) / k,
            "most_frequent_value": expected_largest_count(k, values) / k,
        }

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        self.validate_length(length)
        k = self.pairs_at(length)
        return math.perm(self.vocab_size - 1, k) * self._values_at(length) ** k * k

    def _values_at(self, length: int) -> int:
        """Number of ids from which each value of a row is drawn."""
        return self.vocab_size - 1 - (self.pairs_at(length) if self.roles == "disjoint_in_row" else 0)


def _number_among_others(ranks: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The ids of given ``ranks`` (n, m) among the positive ids that are not in ``keys`` (n, k)."""
    ids = ranks + 1
    for key in np.sort(keys, axis=1).T:
        # In ascending order: each key at or below an id pushes it up by one.
        ids += ids >= key[:, None]
    return ids
