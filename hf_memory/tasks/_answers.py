"""What tasks share that owe one answer to a whole row: it is due at the last position, and nothing else is."""

import abc
import dataclasses
import functools
import math
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice
from hf_memory.tasks.base import IGNORE_INDEX, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerTask(Task):
    """Base of the tasks with one answer a row.

    Attributes:
        separator: End each row with one more id, under which the answer is due; without it the answer is due at the
            last symbol.
    """

    separator: bool = False

    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stateful"

    def __post_init__(self) -> None:
        check_choice("separator", self.separator, (False, True))

    @property
    @abc.abstractmethod
    def num_symbols(self) -> int:
        """Number of ids without the separator."""

    @property
    def vocab_size(self) -> int:
        """The symbols, and the separator where there is one."""
        return self.num_symbols + self.separator

    def num_columns(self, length: int) -> int:
        """Number of symbols of a row of ``length``."""
        return length

    def row_length(self, length: int) -> int:
        """The symbols, and the separator where there is one."""
        return self.num_columns(length) + self.separator

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Symbols (n, k) of fresh rows and their answers (n,)."""

    @abc.abstractmethod
    def answers(self, symbols: np.ndarray) -> np.ndarray:
        """The answers (n,) of symbols (n, k), by another road than that of :meth:`draw`."""

    @abc.abstractmethod
    def joint(self, length: int, width: int) -> np.ndarray:
        """Probability (W, C) that the last ``width`` symbols are those of a window, and the answer of a class."""

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, the last position supervised."""
        self.validate_length(length)
        symbols, answers = self.draw(rng, length, num_examples)
        ids = np.full((num_examples, self.row_length(length)), self.num_symbols, dtype=np.int32)
        ids[:, : symbols.shape[1]] = symbols
        return ids, _due_at_the_end(ids, answers)

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Answer each row from its symbols."""
        return _due_at_the_end(input_ids, self.answers(input_ids[:, : input_ids.shape[1] - self.separator]))

    def chance_level(self, metric: str, length: int) -> float:
        """The best guess from the last token, exact. ``loss`` in nats; NaN for other metrics."""
        joint = self._seen(length, 1)
        if metric in ("token_accuracy", "sequence_accuracy"):
            return float(joint.max(axis=1).sum())
        if metric == "loss":
            given = joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300)
            return float(-(joint * np.log(np.where(joint > 0, given, 1.0))).sum())
        return math.nan

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy of the commonest answer and of the best tables of the last token and of the last three, exact."""
        widths = {"constant": 0, "last_token": 1, "last_3_tokens": 3}
        return {name: float(self._seen(length, width).max(axis=1).sum()) for name, width in widths.items()}

    def _seen(self, length: int, width: int) -> np.ndarray:
        """As :meth:`joint`, of the last ``width`` tokens: a separator takes the place of a symbol and says nothing."""
        symbols = min(max(width - self.separator, 0), self.num_columns(length))
        return _joint(self, length, symbols)


@functools.lru_cache(maxsize=256)
def _joint(task: AnswerTask, length: int, width: int) -> np.ndarray:
    if width == 0:
        return _joint(task, length, 1).sum(axis=0, keepdims=True)
    joint = task.joint(length, width)
    joint.setflags(write=False)
    return joint


def _due_at_the_end(ids: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Labels (n, L) of rows that owe their answers (n,) at the last position."""
    labels = np.full(ids.shape, IGNORE_INDEX, dtype=np.int32)
    labels[:, -1] = answers
    return labels
