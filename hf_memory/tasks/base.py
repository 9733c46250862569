"""The contract of a task: how a sequence is drawn, labelled, annotated and scored.

A task is the law alone. Which lengths, how many rows and which seed are decided by whoever builds a dataset; a
:class:`Preset` only names a choice that a paper made.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from hf_memory.names import check_names
from hf_memory.tasks._rows import knows_ids, takes_rows

IGNORE_INDEX = -100
"""Label of a position that is not supervised, in integer and in floating point label columns alike."""

SPLIT_NAME = r"train|validation|test(_\w+(\.\w+)*)?"
"""Form of the names of splits: tests begin with ``test``, by which they are told from what is trained on."""

Length = int | tuple[int, int]
"""One length, or an inclusive range from which each row draws its own uniformly."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """A block of rows of one split that share their length (or range of lengths) and their knobs.

    Attributes:
        num_examples: Number of rows.
        length: One length or an inclusive range, on the axis over which the task generalises.
        knobs: Knobs of the task that differ from the configuration's, for these rows only.
    """

    num_examples: int
    length: Length
    knobs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named choice of knobs and lengths, usually the setting of a paper.

    Attributes:
        length: Training length, or an inclusive range of training lengths.
        test_lengths: Lengths of the ``test_<length>`` splits.
        knobs: Knobs of the task that differ from its defaults.
        tests: Further test splits by name, which begins with ``test``, each a list of segments with their own knobs.
        train: Segments of the training split where it is a mixture; ``None`` means one segment of ``length``.
        source: Where the setting comes from.
    """

    length: Length
    test_lengths: tuple[int, ...]
    knobs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tests: Mapping[str, tuple[Segment, ...]] = dataclasses.field(default_factory=dict)
    train: tuple[Segment, ...] | None = None
    source: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Base class of the laws. The fields of a subclass are its knobs; every task constructs with no arguments.

    Class attributes:
        key: Name of the task, of its module and of its dataset.
        version: Version of the law. It moves whenever the rows of some configuration change.
        head: ``"causal"`` where ``labels[t + 1]`` is the target of the output at ``t`` (the convention of all causal
            heads in transformers), ``"token_classification"`` where the target stands at its own position.
        problem_type: ``"classification"`` or ``"regression"``.
        category: Kind of memory that the task needs.
        headline_metric: The metric that ``extrapolation_length`` thresholds.
        levels_until: The longest length at which chance levels and baselines are worked out, beyond which that would
            take longer than a model's pass over the rows; None for every length.
        bracket_words: Whether rows are words of brackets, which rules that count brackets can read.
        presets: Named settings; the first is the default.

    ``solve``, ``annotate`` and ``candidates`` are written for arrays (n, L), and take lists, tensors and columns of a
    dataset too. Rows of unlike lengths are computed length by length, and the results padded on the right with
    ``IGNORE_INDEX``, masks with False. Rows that are padded already are taken as they are.
    """

    key: ClassVar[str]
    version: ClassVar[str] = "1.0.0"
    head: ClassVar[Literal["causal", "token_classification"]]
    problem_type: ClassVar[Literal["classification", "regression"]] = "classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]]
    headline_metric: ClassVar[str] = "token_accuracy"
    levels_until: ClassVar[int | None] = None
    bracket_words: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Preset]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("solve", "annotate", "candidates"):
            if name in vars(cls):
                method = knows_ids(vars(cls)[name]) if name == "solve" else vars(cls)[name]
                setattr(cls, name, takes_rows(method))

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Number of input ids."""

    @property
    @abc.abstractmethod
    def num_labels(self) -> int:
        """Number of classes of the head; 1 for regression, the vocabulary for causal tasks."""

    def row_length(self, length: int) -> int:
        """Number of columns of a row whose length, on the task's own axis, is ``length``."""
        return length

    def validate_length(self, length: int) -> None:
        """Raise a ``ValueError`` that names the field and the accepted range where no row of ``length`` exists."""
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows. All randomness comes from ``rng``.

        Returns:
            ``input_ids`` (n, L) int32 and ``labels`` (n, L), int32 or float32, with ``IGNORE_INDEX`` where a position
            is not supervised; ``L`` is ``row_length(length)``.
        """

    @abc.abstractmethod
    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Derive the labels of rows (n, L) from their ids alone, by another road than the sampler's.

        Raises:
            ValueError: For an id that is none of the task's; it and the accepted range are named.
        """

    @takes_rows
    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """What metrics score and slice by, derived from raw rows: arrays (n, L) by name, ``score`` among them."""
        return {"score": labels != IGNORE_INDEX}

    @takes_rows
    def candidates(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
        """Positions (n, L) whose ids may be asked for later, where answers are ids of the row; ``None`` for classes.

        A guess that ignores what it would have to remember may still name such a position: see
        :mod:`hf_memory.tasks.heuristics`.
        """
        return None

    @abc.abstractmethod
    def chance_level(self, metric: str, length: int) -> float:
        """Expected value of ``metric`` for the best predictor that ignores what it would have to remember."""

    def baselines(self, length: int) -> dict[str, float]:
        """Value of the headline metric for named heuristics that do not solve the task."""
        return {}

    def knows_levels(self, length: int) -> bool:
        """Whether chance levels and baselines are worked out at ``length``, see ``levels_until``."""
        return self.levels_until is None or length <= self.levels_until

    def known_chance(self, metric: str, length: int) -> float | None:
        """The chance level; None where it is not known or not worked out."""
        level = self.chance_level(metric, length) if self.knows_levels(length) else math.nan
        return None if math.isnan(level) else level

    def known_baselines(self, length: int) -> dict[str, float]:
        """The baselines; none where they are not worked out."""
        return self.baselines(length) if self.knows_levels(length) else {}

    @abc.abstractmethod
    def num_distinct(self, length: int) -> int:
        """Number of distinct rows of ``length`` that can be drawn (exact, or a lower bound where it is huge)."""

    def enumerate(self, length: int) -> np.ndarray:
        """All distinct ``input_ids`` of ``length`` as (n, L) int32. Only called where ``num_distinct`` is small.

        The default draws until every one of them has been seen.
        """
        rng = np.random.default_rng(0)
        wanted = self.num_distinct(length)
        rows = np.zeros((0, self.row_length(length)), dtype=np.int32)
        for _ in range(200):
            drawn, _ = self.sample(rng, length, max(2 * wanted, 1024))
            rows = np.unique(np.concatenate([rows, drawn]), axis=0)
            if len(rows) >= wanted:
                return rows
        raise ValueError(f"{self.key}: {len(rows)} of {wanted} distinct rows of length {length} were found")

    def replace(self, **knobs: Any) -> "Task":
        """A copy with other knobs. Unknown names raise a ``ValueError`` that suggests the nearest."""
        check_names(knobs, self.knob_names(), f"knob of task {self.key!r}")
        return dataclasses.replace(self, **knobs)

    @classmethod
    def knob_names(cls) -> tuple[str, ...]:
        """Names of the knobs of the law."""
        return tuple(field.name for field in dataclasses.fields(cls))

    def knobs(self) -> dict[str, Any]:
        """The knobs as a dictionary of JSON values."""
        return {name: getattr(self, name) for name in self.knob_names()}
