"""Say at each position which of the marks 1 to ``num_marks`` came last; 0 is a blank.

A row begins with a mark. For two marks, the ids 1 0 2 0 0 have the labels 0 0 1 1 1.

A task in a file of its own, which every command takes::

    hf-memory train --include last_mark.py --mixer gru --task last_mark --smoke
"""

import dataclasses

import numpy as np

from hf_memory.tasks import Preset, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastMark(Task):
    """Remember the last mark over blanks.

    Attributes:
        num_marks: Number of marks.
    """

    key = "last_mark"
    head = "token_classification"
    category = "stable"
    presets = {"short": Preset(length=8, test_lengths=(8, 16, 32), source="an example of how a task is written")}

    num_marks: int = 2

    def __post_init__(self) -> None:
        if not 2 <= self.num_marks <= 64:
            raise ValueError(f"num_marks must be from 2 to 64, got {self.num_marks}")

    @property
    def vocab_size(self) -> int:
        """Marks and the blank."""
        return self.num_marks + 1

    @property
    def num_labels(self) -> int:
        """One for each mark."""
        return self.num_marks

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Each position but the first holds a mark or a blank, with equal odds for all ids."""
        self.validate_length(length)
        ids = rng.integers(0, self.vocab_size, (num_examples, length), dtype=np.int32)
        ids[:, 0] = rng.integers(1, self.vocab_size, num_examples, dtype=np.int32)
        labels = np.empty_like(ids)
        labels[:, 0] = last = ids[:, 0] - 1
        for column in range(1, length):
            last = np.where(ids[:, column] > 0, ids[:, column] - 1, last)
            labels[:, column] = last
        return ids, labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """The mark at the last place that holds one, by a running maximum of places."""
        places = np.maximum.accumulate(np.where(input_ids > 0, np.arange(input_ids.shape[1]), 0), axis=1)
        return np.take_along_axis(input_ids, places, axis=1) - 1

    def chance_level(self, metric: str, length: int) -> float:
        """A mark answers for itself; at a blank every mark is as likely as any other."""
        if metric not in ("token_accuracy", "sequence_accuracy"):
            return float("nan")
        blank = 1 / self.vocab_size
        at_blank = blank / self.num_marks + (1 - blank)
        return at_blank ** (length - 1) if metric == "sequence_accuracy" else (1 + (length - 1) * at_blank) / length

    def baselines(self, length: int) -> dict[str, float]:
        """Always the first mark."""
        return {"first mark": 1 / self.num_marks}

    def num_distinct(self, length: int) -> int:
        """Free choice at every place but the first."""
        return self.num_marks * self.vocab_size ** (length - 1)
