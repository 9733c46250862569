"""Even pairs: is the number of changes of a bit string odd, which its first and last bit tell."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hf_memory.tasks._answers import AnswerTask
from hf_memory.tasks.base import Preset, Segment

_MAX_ENUMERATED = 24
_CHOMSKY = (
    "Delétang et al. (2023), Chomsky hierarchy: 1 to 40 bits, the answer read at an empty token after them; lengths 41 "
    "to 500, whose mean is their score, are one split"
)
_XLSTM = (
    "Beck et al. (2024), xLSTM: trained at 3 to 40 tokens, tested at 40 to 256; one of them is the answer, which is "
    "not counted here"
)
_THREE_TO_FORTY = (
    "Walker et al. (2025), SLiCE, and the PD-SSM paper (2025): 3 to 40 bits, the answer due at the last; their lengths "
    "from 40 to 256 are one split"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvenPairs(AnswerTask):
    """Is the number of changes between neighbouring bits odd?

    It is odd exactly where the first and the last bit differ, so that one bit, held from the start, solves the task
    (Delétang et al., 2023).

    >>> task = EvenPairs()
    >>> task.solve(np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1]]))[:, -1].tolist()
    [1, 0]

    Bits are independent and uniform; a row of one bit has no change. Expected to be solved by every recurrent mixer
    that can hold a bit, diagonal ones included, at any length; attention finds the first bit by its position, and
    without a code of positions hardly (Delétang et al., 2023; Walker et al., 2025).
    """

    key: ClassVar[str] = "even_pairs"
    num_labels: ClassVar[int] = 2
    num_symbols: ClassVar[int] = 2
    presets: ClassVar[Mapping[str, Preset]] = {
        "len3_40": Preset(
            (3, 40),
            (40, 64, 128, 256),
            tests={"test_40_to_256": (Segment(8_192, (40, 256)),)},
            source=_THREE_TO_FORTY,
        ),
        "len2_39": Preset((2, 39), (39, 63, 127, 255), source=_XLSTM),
        "len1_40_separator": Preset(
            (1, 40),
            (40, 100, 250, 500),
            {"separator": True},
            {"test_41_to_500": (Segment(3_000, (41, 500)),)},
            source=_CHOMSKY,
        ),
    }

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        return ("0", "1", "=")[: self.vocab_size]

    def draw(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw bits, and compare the ends."""
        bits = rng.integers(0, 2, size=(num_examples, length), dtype=np.uint8)
        return bits, bits[:, 0] ^ bits[:, -1]

    def answers(self, symbols: np.ndarray) -> np.ndarray:
        """Count the changes."""
        return (symbols[:, 1:] != symbols[:, :-1]).sum(axis=1) % 2

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score`` and ``changes``, the number of them up to each position."""
        changes = np.zeros(input_ids.shape, dtype=np.int32)
        np.cumsum((input_ids[:, 1:] != input_ids[:, :-1]) & (input_ids[:, 1:] < 2), axis=1, out=changes[:, 1:])
        return {**super().annotate(input_ids, labels), "changes": changes}

    def joint(self, length: int, width: int) -> np.ndarray:
        """All windows are as likely; the answer is a coin unless the first bit is among them."""
        windows = np.array(list(itertools.product((0, 1), repeat=width)))
        joint = np.full((len(windows), 2), 0.5)
        if width == length:
            joint = np.eye(2)[windows[:, 0] ^ windows[:, -1]]
        return joint / len(windows)

    def num_distinct(self, length: int) -> int:
        """Every row of bits can be drawn."""
        return 2**length

    def enumerate(self, length: int) -> np.ndarray:
        """All rows in lexicographic order."""
        if length > _MAX_ENUMERATED:
            raise ValueError(f"length must be at most {_MAX_ENUMERATED} to list all rows, got {length}")
        bits = np.arange(2**length)[:, None] >> np.arange(length)[::-1] & 1
        return np.pad(bits, ((0, 0), (0, int(self.separator))), constant_values=2).astype(np.int32)
