"""Reverse: a string, and then the same string backwards."""

import dataclasses
import math
import string
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks._draws import expected_largest_count
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

ANSWERS = ("shown", "hidden")
_MAX_ENUMERATED = 1 << 20
_EXACT_COUNTS = 128
_CHOMSKY = (
    "Delétang et al. (2023), Chomsky hierarchy: reverse string, 1 to 40 bits, outputs read at empty tokens and not fed "
    "back; lengths 41 to 500, whose mean is their score, are one split"
)
_KIMI = "Kimi Team (2025), Kimi Linear: palindromes, rows of 256 to 2048 tokens; the letters are not stated there"
_SMALL = "the same law at a size that trains on a CPU"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reverse(Task):
    """Repeat a string of uniform letters backwards, so that what came last is due first.

    A row is the string, a bar and as many columns for the answer, ``length`` each. By the convention of causal heads a
    label stands one position after the output that owes it, the first of them after the bar.

    >>> def show(row, **knobs):
    ...     task = Reverse(**knobs)
    ...     ids = np.array([[task.symbols.index(sign) for sign in row]])
    ...     return "".join("." if label < 0 else task.symbols[label] for label in task.solve(ids)[0])
    >>> show("abcd|dcba")
    '.....dcba'
    >>> show("aab|___", answer="hidden")
    '....baa'

    Expected: no state of fixed size holds strings of any length. Linear attention and the delta rule hold as many
    letters as their state has room for, KDA more than Gated DeltaNet and Mamba-2 (Kimi Team, 2025); LSTM and RNN fail
    beyond the trained length, as softmax attention does for want of positions (Delétang et al., 2023).

    Attributes:
        alphabet_size: Number of letters A.
        answer: ``"shown"``: the answer stands in the input as well, for teacher forcing; ``"hidden"``: blanks stand
            there.
    """

    key: ClassVar[str] = "reverse"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stack"
    presets: ClassVar[Mapping[str, Preset]] = {
        "len1_40_bits": Preset(
            (1, 40),
            (40, 60, 80, 250, 500),
            {"alphabet_size": 2, "answer": "hidden"},
            {"test_41_to_500": (Segment(3_000, (41, 500)),)},
            source=_CHOMSKY,
        ),
        "len127": Preset(127, (127, 255), source=_KIMI),
        "len255": Preset(255, (255, 511), source=_KIMI),
        "len511": Preset(511, (511, 1023), source=_KIMI),
        "len1023": Preset(1023, (1023,), source=_KIMI),
        "len1_16": Preset((1, 16), (8, 16, 24, 32), source=_SMALL),
    }

    alphabet_size: int = 26
    answer: str = "shown"

    def __post_init__(self) -> None:
        check_int("alphabet_size", self.alphabet_size, 2, 26)
        check_choice("answer", self.answer, ANSWERS)

    @property
    def vocab_size(self) -> int:
        """Letters, the bar and the blank."""
        return self.alphabet_size + 2

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        return (*string.ascii_lowercase[: self.alphabet_size], "|", "_")

    def row_length(self, length: int) -> int:
        """The string, the bar and the string backwards."""
        return 2 * length + 1

    def prompt_length(self, length: int) -> int:
        """Number of columns before the answer: what a model is given when it generates."""
        return length + 1

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, the answer supervised."""
        self.validate_length(length)
        text = rng.integers(0, self.alphabet_size, size=(num_examples, length), dtype=np.int32)
        ids = self._rows(text)
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, length + 1 :] = text[:, ::-1]
        return ids, labels

    def _rows(self, text: np.ndarray) -> np.ndarray:
        """Rows (n, 2 length + 1) of strings (n, length)."""
        length = text.shape[1]
        ids = np.full((len(text), 2 * length + 1), self.alphabet_size + 1, dtype=np.int32)
        ids[:, :length], ids[:, length] = text, self.alphabet_size
        if self.answer == "shown":
            ids[:, length + 1 :] = text[:, ::-1]
        return ids

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Push letters until the bar comes, then pop one for each column; the answer in the row is not read."""
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        stack = []
        for column, letters in enumerate(input_ids.T):
            if column < input_ids.shape[1] // 2:
                stack.append(letters)
            elif stack and column > input_ids.shape[1] // 2:
                labels[:, column] = stack.pop()
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``; ``answer_index``, the place in the answer from 0, else -1; ``distance`` to where it was shown."""
        score = labels != IGNORE_INDEX
        index = np.where(score, np.cumsum(score, axis=1) - 1, -1).astype(np.int32)
        return {"score": score, "answer_index": index, "distance": np.where(score, 2 * index + 2, -1).astype(np.int32)}

    def chance_level(self, metric: str, length: int) -> float:
        """Any letter. ``loss`` in nats; NaN for other metrics."""
        levels = {
            "token_accuracy": 1 / self.alphabet_size,
            "sequence_accuracy": float(self.alphabet_size) ** -length,
            "loss": math.log(self.alphabet_size),
        }
        return levels.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy of any letter, of memories of the last letters, and of the most frequent one so far.

        The last letters are the first that are due. Of the letters of a string the most frequent is right as often as
        it stands there; where the answer is shown, letters that were answered count twice, and help no more.
        """
        guess, counted = 1 / self.alphabet_size, min(length, _EXACT_COUNTS)
        kept = {f"last_{size}_letters": (min(size, length) * (1 - guess)) / length + guess for size in (1, 3)}
        return {
            "any_letter": guess,
            "most_frequent_letter": expected_largest_count(counted, self.alphabet_size) / counted,
            **kept,
        }

    def num_distinct(self, length: int) -> int:
        """Every string can be drawn."""
        return self.alphabet_size**length

    def enumerate(self, length: int) -> np.ndarray:
        """All rows in the lexicographic order of their strings."""
        count = self.num_distinct(length)
        if count > _MAX_ENUMERATED:
            raise ValueError(f"length {length} has {count} distinct rows; at most {_MAX_ENUMERATED} can be enumerated")
        numbers = np.arange(count)
        return self._rows(np.stack(np.unravel_index(numbers, (self.alphabet_size,) * length), axis=1).astype(np.int32))
