"""Induction: at the end a trigger comes again, and what followed it the first time is due."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks._draws import draw_distinct, expected_largest_count
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

LOSS_REGIONS = ("answers", "all")
_EXACT_COUNTS = 128
_MAMBA = (
    "Gu and Dao (2023), Mamba: induction heads, 16 ids, trained at 256 and tested up to 2^20; that the trigger is one "
    "of the 16 is assumed, and the law of its place is that of Akyürek et al. (2024)"
)
_SMALL = "the same law at a size that trains on a CPU"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Induction(Task):
    """A trigger stands once among random tokens and again at the end; what followed it is due (Olsson et al., 2022).

    A row has ``length`` columns of uniform tokens, in which each of the triggers is written over one, with an answer
    after it that is not the last column; then one of the triggers again, and its answer, which stands in the input too
    and is not to be seen when it is due. The triggers are the first ids.

    >>> row = np.array([[5, 3, 0, 7, 2, 9, 0, 7]])
    >>> Induction().solve(row).tolist()
    [[-100, -100, -100, -100, -100, -100, -100, 7]]
    >>> Induction(answer_length=2).solve(np.array([[5, 0, 7, 2, 9, 0, 7, 2]]))[0, -2:].tolist()
    [7, 2]

    The most frequent token is a little more often right than any, on short rows. Expected to be solved by mixers that
    can let the input choose what they hold: Mamba trained at 256 holds it to 2^20 (Gu and Dao, 2023). Attention of two
    layers solves the trained length and loses it at two to four times that, whatever its code of positions.

    Attributes:
        vocab_size: Number of ids V, triggers among them.
        num_triggers: Number of triggers m; one of them is asked for, each as likely.
        answer_length: Number of tokens that are due.
        loss_region: ``"answers"``: only those are supervised; ``"all"``: every token is, random ones too.
    """

    key: ClassVar[str] = "induction"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "associative"
    headline_metric: ClassVar[str] = "recall"
    presets: ClassVar[Mapping[str, Preset]] = {
        "len256": Preset(256, (64, 128, 256, 512, 1024, 2048, 4096), source=_MAMBA),
        "len256_all": Preset(256, (64, 256, 1024, 4096), {"loss_region": "all"}, source=_MAMBA),
        "len64": Preset(64, (64, 128, 256, 1024), source=_SMALL),
        "len64_8_triggers": Preset(
            64, (64, 128, 256, 1024), {"vocab_size": 64, "num_triggers": 8}, source=f"several triggers: {_SMALL}"
        ),
        "len256_long": Preset(
            256,
            (256,),
            # Fewer rows the longer they are: a row of 2^20 tokens takes eight megabytes.
            tests={f"test_{2**power}": (Segment(2 ** (26 - power) // 16, 2**power),) for power in (14, 17, 20)},
            source=_MAMBA,
        ),
    }

    vocab_size: int = 16
    num_triggers: int = 1
    answer_length: int = 1
    loss_region: str = "answers"

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, 3)
        check_int(f"num_triggers with vocab_size {self.vocab_size}", self.num_triggers, 1, self.vocab_size - 2)
        check_int("answer_length", self.answer_length, 1)
        check_choice("loss_region", self.loss_region, LOSS_REGIONS)

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    def row_length(self, length: int) -> int:
        """The random tokens, a trigger and its answer."""
        return length + 1 + self.answer_length

    def _num_places(self, length: int) -> int:
        """Places of a trigger, once the answers of all triggers are taken out of the row."""
        return length - 1 - self.num_triggers * self.answer_length

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` holds the triggers, their answers and one more token."""
        least = self.num_triggers * (1 + self.answer_length) + 1
        check_int(f"length with {self.num_triggers} num_triggers", length, least)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, the answers supervised, or all tokens."""
        self.validate_length(length)
        n, m, size = num_examples, self.num_triggers, self.answer_length
        ids = np.empty((n, self.row_length(length)), dtype=np.int32)
        ids[:, :length] = rng.integers(m, self.vocab_size, size=(n, length), dtype=np.int32)
        # Distinct places of a row without the answers; each answer then moves what comes after it.
        if m == 1:
            place = rng.integers(0, self._num_places(length), size=(n, 1))
        else:
            place = draw_distinct(rng, n, m, self._num_places(length))
            place += size * np.argsort(np.argsort(place, axis=1), axis=1)
        row = np.arange(n)
        ids[row[:, None], place] = np.arange(m)
        asked = rng.integers(0, m, size=n) if m > 1 else np.zeros(n, dtype=np.int64)
        ids[:, length] = asked
        found = place[row, asked]
        for step in range(1, size + 1):
            ids[:, length + step] = ids[row, found + step]
        if self.loss_region == "all":
            return ids, ids.copy()
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, length + 1 :] = ids[:, length + 1 :]
        return ids, labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Find the first place of the last trigger, and read on from there; the answer in the row is not read."""
        size = self.answer_length
        labels = input_ids.astype(np.int32) if self.loss_region == "all" else np.full(input_ids.shape, IGNORE_INDEX)
        asked = input_ids[:, -1 - size]
        found = np.argmax(input_ids == asked[:, None], axis=1)
        follows = found[:, None] + np.arange(1, size + 1)
        labels[:, -size:] = np.take_along_axis(input_ids, follows, axis=1)
        return labels.astype(np.int32)

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score`` and, where it is true, ``distance``, from the first place of the trigger to the last; else -1."""
        supervised = labels != IGNORE_INDEX
        # Pads stand at the end: the answer is the last that is supervised.
        last = labels.shape[1] - 1 - np.argmax(supervised[:, ::-1], axis=1)
        column = np.arange(labels.shape[1])
        score = supervised & (column <= last[:, None]) & (column > last[:, None] - self.answer_length)
        trigger = last - self.answer_length
        asked = input_ids[np.arange(len(input_ids)), trigger]
        away = trigger - np.argmax(input_ids == asked[:, None], axis=1)
        return {"score": score, "distance": np.where(score, away[:, None], -1).astype(np.int32)}

    def chance_level(self, metric: str, length: int) -> float:
        """Any token but the triggers. ``loss`` in nats is known where answers alone are supervised; NaN for others."""
        values = self.vocab_size - self.num_triggers
        levels = {
            "recall": 1.0 / values,
            "token_accuracy": 1.0 / values,
            "sequence_accuracy": values**-self.answer_length,
        }
        if self.loss_region == "answers":
            levels["loss"] = math.log(values)
        return levels.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Recall of a fixed token and of the most frequent one: its expected count over the tokens, exact to 128."""
        self.validate_length(length)
        values, tokens = self.vocab_size - self.num_triggers, length - self.num_triggers
        # Of more tokens the share of the commonest is smaller.
        counted = min(tokens, _EXACT_COUNTS)
        return {"any_token": 1.0 / values, "most_frequent_token": expected_largest_count(counted, values) / counted}

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        self.validate_length(length)
        values, tokens = self.vocab_size - self.num_triggers, length - self.num_triggers
        return math.perm(self._num_places(length), self.num_triggers) * values**tokens * self.num_triggers
