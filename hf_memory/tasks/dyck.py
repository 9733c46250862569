"""Dyck words: say at every position whether the brackets so far are completely balanced."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks import _brackets as brackets
from hf_memory.tasks import _crossed as crossed
from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Task
from hf_memory.tasks.heuristics import STACKS, heuristic_levels

LAWS = ("published", "balanced", "type_swap", "crossed")
"""How words are corrupted."""

BALANCED, OPEN, WRONG_TYPE, UNDERFLOW = range(4)
"""Values of the annotation ``cause``: why a prefix is balanced or not."""

_BLOCK_ROWS = 4096
_MAX_ENUMERATED = 1 << 24
_LENGTHS = (32, 48, 64, 128, 256)
_REFERENCE_ROWS = 2_500
_BASELINES = (
    *("constant", "position", "last_3_tokens", "even_position", "counter_without_failure", "type_blind_counter"),
    *("per_type_counters", "all_counters", *STACKS),
)
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
    * ``"type_swap"``: one closing bracket gets another type. Where a type-blind depth is zero, a counter that ignores
      types scores one half. A counter for each type is always right, and late positions are mostly wrong words: the
      law needs types remembered, and no stack.
    * ``"crossed"``: the closing bracket of a pair that holds other pairs is exchanged with that of a pair around it of
      another type. Words in which this cannot be done are drawn again, also among those that stay whole. Counters,
      flags and the last tokens say nothing of the last label, which alone is scored. The law for questions on stacks.
    * ``"balanced"``: no row is corrupted. At depth zero all labels are 1: the headline metric says nothing.

    Under ``"crossed"`` the square and the round bracket below have changed places:

    >>> show("{([()])}"), show("{([())]}")
    ('00000001', '00000000')

    Attributes:
        num_bracket_types: Number P of bracket types.
        max_depth: Largest number of open brackets in a word before its corruption; at most half of the length.
        law: ``"published"``, ``"type_swap"``, ``"crossed"`` or ``"balanced"``.
    """

    num_bracket_types: int = 3
    max_depth: int = 6
    law: str = "published"

    key: ClassVar[str] = "dyck"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stack"
    headline_metric: ClassVar[str] = "macro_recall_at_depth0"
    bracket_words: ClassVar[bool] = True
    levels_until: ClassVar[int | None] = 1_024
    presets: ClassVar[Mapping[str, Preset]] = {
        "len32": Preset(32, _LENGTHS, source=_POSTER),
        "len32_type_swap": Preset(32, _LENGTHS, {"law": "type_swap"}, source="a law that needs the types counted"),
        "len32_balanced": Preset(32, _LENGTHS, {"law": "balanced"}, source="the walk without corruption"),
        "len32_crossed": Preset(32, _LENGTHS, {"law": "crossed"}, source="a law of this package that needs a stack"),
    }

    def __post_init__(self) -> None:
        check_choice("law", self.law, LAWS)
        check_int(
            "num_bracket_types", self.num_bracket_types, 2 if self.law in ("type_swap", "crossed") else 1, 1 << 15
        )
        # A crossing needs a pair that holds one and is held by one.
        check_int("max_depth", self.max_depth, 3 if self.law == "crossed" else 1)

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
            walk = crossed.walk_with_crossing if self.law == "crossed" else brackets.walk
            tokens, depth = walk(rng, self.num_bracket_types, self.max_depth, length, count)
            balanced = depth == 0
            if self.law != "balanced":
                chosen = np.flatnonzero(rng.integers(0, 2, size=count, dtype=np.uint8))
                corrupt = _CORRUPTIONS[self.law]
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
        """``score``, the last position alone if ``"crossed"``; ``depth``, which ignores types and faults; ``cause``.

        ``cause`` is 0 where the prefix is balanced, 1 where brackets are open, 2 after a first fault of type, 3 after
        a closing bracket with nothing open.
        """
        depth, underflow, wrong = brackets.match_by_depth(np.asarray(input_ids), self.num_bracket_types)
        cause = np.select([underflow, wrong, depth > 0], [UNDERFLOW, WRONG_TYPE, OPEN], BALANCED).astype(np.int32)
        score = labels != IGNORE_INDEX
        if self.law == "crossed":
            score &= np.cumsum(score[:, ::-1], axis=1)[:, ::-1] == 1
        return {"score": score, "depth": depth, "cause": cause}

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[int, int]]:
        """Recall of the negatives by cause, and of both classes where the type-blind depth is zero.

        All supervised positions count, under the law ``"crossed"`` too.
        """
        notes = self.annotate(input_ids, labels)
        score, correct = labels != IGNORE_INDEX, predictions == labels
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
        """Value for an output that knows the position and the current bracket; NaN for metrics without such a level.

        Exact, but for the law ``"published"``, where it is estimated on fixed rows. ``sequence_accuracy`` is that of
        a constant output, and estimated. ``"balanced"`` has one class at depth zero, where any constant is right.
        """
        if metric not in ("macro_recall", "macro_recall_at_depth0", "token_accuracy", "sequence_accuracy"):
            return math.nan
        if self.law == "crossed":
            return 0.5
        if metric == "sequence_accuracy" or self.law == "published":
            rule = "constant" if metric == "sequence_accuracy" else "position_and_token"
            return _estimates(self, length, metric, (rule,))[rule]
        return self._best_by_position(metric, length)

    def _best_by_position(self, metric: str, length: int) -> float:
        """Exact value of the best output by position and bracket, for walks that are whole or have a type swapped."""
        zero, closing = brackets.walk_law(length, self.max_depth)
        # After t brackets at depth zero, t/2 of the L/2 closing brackets have come, each swapped with equal chances.
        swapped = np.arange(1, length + 1) / length / 2 if self.law == "type_swap" else np.zeros(length)
        positive = zero * (1 - swapped)
        negative = zero * swapped if metric == "macro_recall_at_depth0" else closing - positive
        opening = 0.0 if metric == "macro_recall_at_depth0" else float((1 - closing).sum())
        weights = np.array([positive.sum(), negative.sum() + opening])
        if metric == "token_accuracy":
            weights[:] = length
        elif not weights.all():
            return 1.0
        best = np.maximum(positive / weights[0], negative / weights[1]).sum() + opening / weights[1]
        return float(best if metric == "token_accuracy" else best / 2)

    def baselines(self, length: int, metric: str = "macro_recall_at_depth0") -> dict[str, float]:
        """Macro recall of the rules of :mod:`~hf_memory.tasks.heuristics`, at depth 0 unless ``metric`` says otherwise.

        Estimated on fixed rows, where the chance level is not exact. Stacks of bounded size are among them.
        """
        check_choice("metric", metric, ("macro_recall_at_depth0", "macro_recall"))
        values = dict(_estimates(self, length, metric, _BASELINES))
        return {**values, "position_and_token": self.chance_level(metric, length)}

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        self.validate_length(length)
        types, half = self.num_bracket_types, length // 2
        balanced = brackets.count_walks(length, self.max_depth) * types**half
        if self.law == "balanced":
            return balanced
        if self.law == "type_swap":
            return balanced * (1 + half * (types - 1))
        if self.law == "crossed":
            return crossed.count_crossed(length, self.max_depth, types)
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
        if self.law == "crossed":
            return crossed.all_crossed(words, types)
        row, column = np.nonzero(words >= types)
        swapped = [words]
        for shift in range(1, types):
            changed = words[row]
            changed[np.arange(len(row)), column] = types + (words[row, column] - types + shift) % types
            swapped.append(changed)
        return np.concatenate(swapped)


_CORRUPTIONS = {
    "published": brackets.shuffle_after_prefix,
    "type_swap": brackets.swap_type,
    "crossed": crossed.cross,
}


@functools.lru_cache(maxsize=256)
def _estimates(task: Dyck, length: int, metric: str, names: tuple[str, ...]) -> dict[str, float]:
    """Values of heuristics, fitted and scored on fixed rows."""
    levels = heuristic_levels(task, length, np.random.default_rng(0), _REFERENCE_ROWS, metric, names)
    return {name: value for name, (value, _) in levels.items()}
