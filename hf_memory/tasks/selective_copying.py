"""Selective copying, also called denoising: recall symbols that were scattered among blanks."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hf_memory.tasks._checks import check_choice
from hf_memory.tasks._recall import SHARED_PRESETS, RecallTask
from hf_memory.tasks.base import Preset

PLACES = ("subset", "published")
_MAD = "Poli et al. (2024), mechanistic architecture design: selective copying, {} of 14 symbols in rows of {} tokens{}"
_MAMBA = "Gu and Dao (2023), Mamba: 16 of 14 symbols among 4,096 blanks, an answer slot for each"


def _mad(symbols: int, tokens: int, places: str) -> Preset:
    """Rows of so many tokens: the interval is what symbols and answers leave of them."""
    knobs = {"pattern_length": symbols, "alphabet_size": 14, "loss_region": "pattern", "places": places}
    words = "" if places == "published" else "; blanks repaired by this package: a uniform subset"
    return Preset(tokens - 2 * symbols, (tokens - 2 * symbols,), knobs, source=_MAD.format(symbols, tokens, words))


def _mad_presets() -> dict[str, Preset]:
    """The settings of the source, with their nearly regular blanks, and the first with a uniform subset."""
    presets = {"mad_16_of_256_subset": _mad(16, 256, "subset")}
    for symbols, tokens in ((16, 256), (16, 512), (16, 1024), (32, 256), (64, 256), (96, 256)):
        presets[f"mad_{symbols}_of_{tokens}"] = _mad(symbols, tokens, "published")
    return presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopying(RecallTask):
    """S symbols are scattered among blanks, and after a marker they are recalled in the order of their appearance.

    Positions are a uniform S-subset of the slots before the marker: drawn without replacement, so that every symbol
    of the pattern is in the row. Symbols are 1 to 8, the blank is 0 and the marker 9:

    >>> task = SelectiveCopying(pattern_length=3)
    >>> task.solve(np.array([[0, 5, 0, 1, 5, 0, 9, 0, 0, 0]])).tolist()
    [[0, 0, 0, 0, 0, 0, 0, 5, 1, 5]]
    >>> task.replace(markers="many").solve(np.array([[7, 0, 0, 2, 0, 0, 2, 9, 9, 9]])).tolist()
    [[0, 0, 0, 0, 0, 0, 0, 7, 2, 2]]

    The layout with one marker is that of the denoising task of Jing et al. (2019), gated orthogonal recurrent units,
    whose positions were drawn with replacement; a marker for each symbol is the layout of Gu and Dao (2023). The row
    has T + 2S columns in both layouts. Its knobs are those of :class:`~hf_memory.tasks._recall.RecallTask` and another.

    Expected to be solved by mixers that can let the input choose what they hold, Mamba and gated recurrences, and by
    attention; mixers whose steps are the same for all inputs (S4D, Hyena) fail on blanks that they cannot foresee.

    Attributes:
        places: ``"subset"``: symbols stand at a uniform subset of the slots; ``"published"``: each blank stands before
            a uniform symbol, as in the code of Poli et al. (2024), so that gaps are nearly regular and no blank follows
            the last symbol.
    """

    places: str = "subset"

    key: ClassVar[str] = "selective_copying"
    presets: ClassVar[Mapping[str, Preset]] = {
        **SHARED_PRESETS,
        "noise_4096": Preset(
            4096,
            (4096, 8192),
            {"pattern_length": 16, "alphabet_size": 14, "markers": "many", "loss_region": "pattern"},
            source=_MAMBA,
        ),
        **_mad_presets(),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("places", self.places, PLACES)

    def place(self, rng: np.random.Generator, slots: np.ndarray, pattern: np.ndarray) -> None:
        """Write the pattern, in order, at a uniform subset of the slots, or after blanks dealt out to its symbols."""
        (num_rows, num_slots), size = slots.shape, pattern.shape[1]
        if self.places == "published":
            dealt = rng.integers(0, size, size=(num_rows, num_slots - size), dtype=np.int32)
            dealt += np.arange(num_rows, dtype=np.int32)[:, None] * size
            blanks = np.bincount(dealt.ravel(), minlength=num_rows * size).reshape(num_rows, size)
            np.put_along_axis(slots, np.cumsum(blanks + 1, axis=1) - 1, pattern, axis=1)
            return
        chosen = np.empty((num_slots, num_rows), dtype=bool)
        left = np.full(num_rows, pattern.shape[1], dtype=np.uint32)
        for slot in range(num_slots):
            # Of the slots that remain, `left` will be taken, each of them with the same probability.
            np.less(rng.integers(0, num_slots - slot, size=num_rows, dtype=np.uint32), left, out=chosen[slot])
            left -= chosen[slot]
        slots[np.ascontiguousarray(chosen.T)] = pattern.reshape(-1)

    def num_distinct(self, length: int) -> int:
        """Number of patterns times number of subsets of the slots."""
        size, is_last = self.sizes(length)[0], self.places == "published"
        return self.alphabet_size**size * math.comb(self.num_slots(length) - is_last, size - is_last)

    def enumerate(self, length: int) -> np.ndarray:
        """One row for each pattern and subset of the slots."""
        self.validate_length(length)
        # First, because it refuses a space that is too large to list.
        patterns = self.all_patterns(length)
        size = self.sizes(length)[0]
        slots, is_last = self.num_slots(length), self.places == "published"
        inner = itertools.combinations(range(slots - is_last), size - is_last)
        subsets = np.array([[*places, slots - 1][: size or None] for places in inner], dtype=np.intp)
        return self.rows_of(length, np.tile(patterns, (len(subsets), 1)), np.repeat(subsets, len(patterns), axis=0))
