"""Dyck words: say at every position whether the brackets so far are completely balanced."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks import _brackets as brackets
from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks.base import Preset, Task

BALANCED, OPEN, WRONG_TYPE, UNDERFLOW = range(4)
"""Values of the annotation ``cause``: why a prefix is balanced or not."""

_BLOCK_ROWS = 4096
_MAX_ENUMERATED = 1 << 24
_LENGTHS = (32, 48, 64, 128, 256)
_POSTER = "poster, Dyck with 3 types and depth 6: trained at 32, evaluated at 48, 64, 128, 256"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dyck(Task):
    """The label is 1 where the prefix that ends there is a balanced word, nothing left open and no fault before.

    Brackets open as 0, 1, 2 and close as 3, 4, 5, written ``( [ {`` and ``) ] }``:

    >>> def show(word):
    ...     task = Dyck()
    ...     ids = np.array([[task.symbols.index(bracket) for bracket in word]])
    ...     return "".join(map(str, task.solve(ids)[0]))
    >>> show("{[]()}[]()")
    '0000010101'
    >>> show("()[)(]()")
    '01000000'

    Words are random walks of even length that never exceed ``max_depth`` and end balanced. Half of the rows are then
    corrupted, as the law says:

    * ``"published"``: one of the balanced prefixes short of the whole word is chosen and everything after it is
      shuffled, or the whole word where there is none. A counter that ignores types scores almost perfectly.
    * ``"type_swap"``: one closing bracket gets another type. At the positions where a type-blind depth is zero, a
      counter and every constant score exactly one half, so that a memory of types is needed.
    * ``"balanced"``: no row is corrupted. At depth zero all labels are 1: the headline metric says nothing.

    Attributes:
        num_bracket_types: Number P of bracket types.
        max_depth: Largest number of open brackets in a word before its corruption; at most half of the length.
        law: ``"published"``, ``"type_swap"`` or ``"balanced"``.
    """

    num_bracket_types: int = 3
    max_depth: int = 6
    law: str = "published"

    key: ClassVar[str] = "dyck"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stack"
    headline_metric: ClassVar[str] = "macro_recall_at_depth0"
    presets: ClassVar[Mapping[str, Preset]] = {
        "len32": Preset(32, _LENGTHS, source=_POSTER),
        "len32_type_swap": Preset(32, _LENGTHS, {"law": "type_swap"}, source="a law that needs the types remembered"),
        "len32_balanced": Preset(32, _LENGTHS, {"law": "balanced"}, source="the walk without corruption"),
    }

    def __post_init__(self) -> None:
        check_choice("law", self.law, ("published", "balanced", "type_swap"))
        check_int("num_bracket_types", self.num_bracket_types, 2 if self.law == "type_swap" else 1, 1 << 15)
        check_int("max_depth", self.max_depth, 1)

    @property
    def vocab_size(self) -> int:
        """An opening and a closing bracket of each type."""
        return 2 * self.num_bracket_types

    @property
    def num_labels(self) -> int:
        """Balanced or not."""
        return 2

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id: three kinds of brackets, numbered where there are more types."""
        pairs = ["()", "[]", "{}"]
        count = self.num_bracket_types
        return tuple(
            pairs[kind][side] if count <= 3 else f"{pairs[0][side]}{kind}" for side in range(2) for kind in range(count)
        )

    def validate_length(self, length: int) -> None:
        """Raise where the length is odd or too short for ``max_depth``."""
        check_int("length", length, 2)
        if length % 2:
            raise ValueError(f"length must be even, got {length}")
        check_int(f"max_depth at length {length}", self.max_depth, 1, length // 2)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: walks, half of them corrupted, with the labels that a stack gives."""
        self.validate_length(length)
        input_ids = np.empty((num_examples, length), dtype=np.int32)
        labels = np.empty((num_examples, length), dtype=np.int32)
        # Blocks keep the arrays of a step in the processor's cache.
        for begin in range(0, num_examples, _BLOCK_ROWS):
            block = slice(begin, min(begin + _BLOCK_ROWS, num_examples))
            count = block.stop - begin
            tokens, depth = brackets.walk(rng, self.num_bracket_types, self.max_depth, length, count)
            balanced = depth == 0
            if self.law != "balanced":
                chosen = np.flatnonzero(rng.integers(0, 2, size=count, dtype=np.uint8))
                corrupt = brackets.swap_type if self.law == "type_swap" else brackets.shuffle_after_prefix
                tokens[:, chosen], balanced[:, chosen] = corrupt(
                    rng, tokens[:, chosen], balanced[:, chosen], self.num_bracket_types
                )
            input_ids[block], labels[block] = tokens.T, balanced.T
        return input_ids, labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Match brackets by sorting them by depth, without a stack."""
        depth, underflow, wrong = brackets.match_by_depth(np.asarray(input_ids), self.num_bracket_types)
        return ((depth == 0) & ~underflow & ~wrong).astype(np.int32)

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``; ``depth``, which ignores types and faults; and ``cause``.

        ``cause`` is 0 where the prefix is balanced, 1 where brackets are open, 2 after a first fault of type, 3 after
        a closing bracket with nothing open.
        """
        depth, underflow, wrong = brackets.match_by_depth(np.asarray(input_ids), self.num_bracket_types)
        cause = np.select([underflow, wrong, depth > 0], [UNDERFLOW, WRONG_TYPE, OPEN], BALANCED).astype(np.int32)
        return {**super().annotate(input_ids, labels), "depth": depth, "cause": cause}

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[int, int]]:
        """Recall of the negatives by cause, and of both classes where the type-blind depth is zero."""
        notes = self.annotate(input_ids, labels)
        score, correct = notes["score"], predictions == labels
        depth0 = score & (notes["depth"] == 0)
        groups = {
            "recall_open": score & (notes["cause"] == OPEN),
            "recall_wrong_type": score & (notes["cause"] == WRONG_TYPE),
            "recall_underflow": score & (notes["cause"] == UNDERFLOW),
            "recall_balanced_at_depth0": depth0 & (labels == 1),
            "recall_unbalanced_at_depth0": depth0 & (labels == 0),
        }
        return {name: (int((correct & group).sum()), int(group.sum())) for name, group in groups.items()}

    def chance_level(self, metric: str, length: int) -> float:
        """Value for a constant output; NaN for metrics that have no such level.

        Macro recalls are one half, or 1 at depth 0 under the balanced law, which has one class there. Accuracies
        are estimated on fixed rows.
        """
        if metric in ("macro_recall", "macro_recall_at_depth0"):
            return 1.0 if self.law == "balanced" and metric == "macro_recall_at_depth0" else 0.5
        if metric in ("token_accuracy", "sequence_accuracy"):
            return _reference(self, length)[metric]["constant"]
        return math.nan

    def baselines(self, length: int, metric: str = "macro_recall_at_depth0") -> dict[str, float]:
        """Macro recall of heuristics, estimated on fixed rows; at depth 0 unless ``metric`` is ``"macro_recall"``.

        ``even_position`` knows that balanced words have even length; ``counter_without_failure`` counts depth and
        forgets faults; ``type_blind_counter`` remembers that the depth fell below zero, and ignores types.
        """
        check_choice("metric", metric, ("macro_recall_at_depth0", "macro_recall"))
        return dict(_reference(self, length)[metric])

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        self.validate_length(length)
        types, half = self.num_bracket_types, length // 2
        balanced = brackets.count_walks(length, self.max_depth) * types**half
        if self.law == "balanced":
            return balanced
        if self.law == "type_swap":
            return balanced * (1 + half * (types - 1))
        if self.max_depth > 1 or length == 2:
            # Every content has a word whose only balanced prefix is the whole, and that is shuffled from the start.
            return brackets.count_rearrangements(length, types)
        return types * brackets.count_rearrangements(length - 2, types)

    def enumerate(self, length: int) -> np.ndarray:
        """All distinct rows."""
        count = self.num_distinct(length)
        if count > _MAX_ENUMERATED:
            raise ValueError(f"length {length} has {count} distinct rows; at most {_MAX_ENUMERATED} can be enumerated")
        types = self.num_bracket_types
        if self.law == "published":
            if self.max_depth > 1 or length == 2:
                return brackets.all_rearrangements(length, types)
            rest = brackets.all_rearrangements(length - 2, types)
            first = np.repeat(np.arange(types, dtype=np.int32), len(rest))
            return np.concatenate([np.stack([first, first + types], axis=1), np.tile(rest, (types, 1))], axis=1)
        words = brackets.all_walks(length, self.max_depth, types)
        if self.law == "balanced":
            return words
        row, column = np.nonzero(words >= types)
        swapped = [words]
        for shift in range(1, types):
            changed = words[row]
            changed[np.arange(len(row)), column] = types + (words[row, column] - types + shift) % types
            swapped.append(changed)
        return np.concatenate(swapped)


@functools.lru_cache(maxsize=64)
def _reference(task: Dyck, length: int) -> dict[str, dict[str, float]]:
    """Values of heuristics on 2,000 fixed rows of a law, by metric."""
    input_ids, labels = task.sample(np.random.default_rng(0), length, 2_000)
    notes = task.annotate(input_ids, labels)
    depth = notes["depth"]
    heuristics = {
        "even_position": np.broadcast_to(np.arange(length) % 2, labels.shape),
        "counter_without_failure": (depth == 0).astype(np.int32),
        "type_blind_counter": ((depth == 0) & (np.minimum.accumulate(depth, axis=1) >= 0)).astype(np.int32),
    }
    values = {
        "token_accuracy": {"constant": float(max((labels == 0).mean(), (labels == 1).mean()))},
        "sequence_accuracy": {"constant": float((labels == 0).all(axis=1).mean())},
    }
    regions = {"macro_recall": notes["score"], "macro_recall_at_depth0": notes["score"] & (depth == 0)}
    for metric, where in regions.items():
        values[metric] = {"constant": task.chance_level(metric, length)}
        values[metric] |= {name: brackets.macro_recall(labels, output, where) for name, output in heuristics.items()}
    return values
