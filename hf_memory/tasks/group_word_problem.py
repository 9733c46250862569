"""The word problem of a finite group: the running product of a stream of elements."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks.base import Preset, Segment, Task
from hf_memory.tasks.groups import (
    commutator_order,
    element_names,
    group_order,
    multiplication_table,
    parse_group,
    prefix_products,
)

_EXTRAPOLATION = (8, 16, 24, 32, 40, 64, 128, 256, 512)
_MERRILL = "Merrill, Petty and Sabharwal (2024), word problems of groups of order 60, with all pairs in training"
_MAX_ENUMERATED = 1 << 26
_LONG = "one layer trained at long lengths, without pairs"


def _with_pairs(group: str, source: str = _MERRILL, pairs: int | None = None) -> Preset:
    """Training at length 8 together with pairs: every pair once, or ``pairs`` of 100,000 rows."""
    if pairs is None:
        train = (Segment(100_000, 8), Segment(group_order(group) ** 2, 2))
    else:
        train = (Segment(100_000 - pairs, 8), Segment(pairs, 2))
    return Preset(length=8, test_lengths=_EXTRAPOLATION, knobs={"group": group}, train=train, source=source)


def _presets() -> dict[str, Preset]:
    order_60 = {"z60": "Z60", "a4xz5": "A4xZ5", "a5": "A5"}
    presets = {f"{name}_k8": _with_pairs(group) for name, group in reversed(order_60.items())}
    for name, group in order_60.items():
        presets[f"{name}_k8_pairs10"] = _with_pairs(group, "a tenth of the training rows are pairs", pairs=10_000)
        for length in (16, 32, 64, 128, 256, 512):
            presets[f"{name}_k{length}"] = Preset(length, (length,), knobs={"group": group}, source=_LONG)
    for name, group in {"z12": "Z12", "a4": "A4", "s3": "S3", "s5": "S5"}.items():
        presets[f"{name}_k8"] = _with_pairs(group, "small or unsolvable companions of the groups of order 60")
    presets["s3_k128"] = Preset(128, (128, 256, 512), knobs={"group": "S3"}, source="DeltaProduct (2025), k 128 to 512")
    return presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupWordProblem(Task):
    """The label at each step is the product of all group elements seen so far.

    With the right factor of a product acting first, ``y_t = x_1 x_2 ... x_t``; the first label repeats its token. In
    the alternating group A5, elements numbered by their one-line notation:

    >>> GroupWordProblem(group="A5").solve(np.array([[1, 2, 3, 17, 59]])).tolist()
    [[1, 0, 3, 28, 50]]
    >>> GroupWordProblem(group="Z60").solve(np.array([[59, 2, 30, 30]])).tolist()
    [[59, 1, 31, 1]]

    Rows are uniform and independent. Of 100,000 rows of 8 elements of a group of order 60 no two are alike but with
    probability 3e-5, so that the training sets of the presets are min(N, 60^k) distinct rows, with every pair once; of
    six elements some 3,000 rows come again. There are no marker tokens: only the first position scores for free.

    Attributes:
        group: A product of cyclic, symmetric and alternating groups, such as ``"A5"``, ``"A4xZ5"``, ``"Z60"``.
    """

    group: str = "A5"

    key: ClassVar[str] = "group_word_problem"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stateful"
    headline_metric: ClassVar[str] = "sequence_accuracy"
    presets: ClassVar[Mapping[str, Preset]] = _presets()

    def __post_init__(self) -> None:
        parse_group(self.group)

    @property
    def vocab_size(self) -> int:
        """Order of the group."""
        return group_order(self.group)

    @property
    def num_labels(self) -> int:
        """Order of the group."""
        return group_order(self.group)

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        return element_names(self.group)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows of uniform elements and fold them through the multiplication table."""
        self.validate_length(length)
        order = self.vocab_size
        table = multiplication_table(self.group).reshape(-1)
        steps = rng.integers(0, order, size=(length, num_examples), dtype=np.int32)
        products = np.empty_like(steps)
        products[0] = steps[0]
        for t in range(1, length):
            np.take(table, products[t - 1] * order + steps[t], out=products[t], mode="clip")
        return np.ascontiguousarray(steps.T), np.ascontiguousarray(products.T)

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Compose the elements themselves: sums modulo n and permutations in one-line notation."""
        return prefix_products(self.group, np.asarray(input_ids)).astype(np.int32)

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[int, int]]:
        """Counts without the first position, whose label is its own token, and at the last position of each row."""
        score = self.annotate(input_ids, labels)["score"]
        correct = (predictions == labels) & score
        later = score.copy()
        later[:, 0] = False
        last = score & (np.cumsum(score[:, ::-1], axis=1)[:, ::-1] == 1)
        return {
            "token_accuracy_after_first": (int((correct & later).sum()), int(later.sum())),
            "last_token_accuracy": (int((correct & last).sum()), int(last.sum())),
        }

    def chance_level(self, metric: str, length: int) -> float:
        """Value for an output that knows the position and the current token only: the first label, then a guess.

        ``loss`` is the mean cross-entropy in nats. NaN for metrics that have no such level.
        """
        guess = 1 / self.vocab_size
        levels = {
            "sequence_accuracy": guess ** (length - 1),
            "token_accuracy": (1 + (length - 1) * guess) / length,
            "token_accuracy_after_first": guess,
            "last_token_accuracy": guess if length > 1 else 1.0,
            "loss": (length - 1) / length * math.log(self.vocab_size),
        }
        return levels.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Sequence accuracy of a uniform guess, of the last tokens, and of tracking the commutative quotient.

        The last one knows the first token and, everywhere, the image of the product in the largest commutative
        quotient, which needs counters but no order of the factors. It is left out where it solves the task.
        """
        order = self.vocab_size
        values = {
            "uniform": order**-length,
            "current_token": order ** -(length - 1),
            "last_3_tokens": order ** -max(length - 3, 0),
        }
        hidden = commutator_order(self.group)
        if hidden > 1:
            values["commutative_quotient"] = hidden ** -(length - 1)
        return {name: float(value) for name, value in values.items()}

    def num_distinct(self, length: int) -> int:
        """Every sequence of elements can be drawn."""
        return self.vocab_size**length

    def enumerate(self, length: int) -> np.ndarray:
        """All sequences in lexicographic order."""
        count = self.num_distinct(length)
        if count > _MAX_ENUMERATED:
            raise ValueError(f"length {length} has {count} distinct rows; at most {_MAX_ENUMERATED} can be enumerated")
        numbers = np.arange(count)
        return np.stack(np.unravel_index(numbers, (self.vocab_size,) * length), axis=1).astype(np.int32)
