"""String copy: repeat a string, or the part of it that follows an n-gram."""

import dataclasses
import functools
import math
import string
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

VARIANTS = ("copy", "duplicate_ngram", "prefix_ngram", "suffix_ngram")
_COPY = "Jelassi et al. (2024), Repeat after me: copying, strings of 5 to 20 letters"
PLACES = ("all", "published")
_NGRAM = "Jelassi et al. (2024), Repeat after me: n-gram look-up, strings of 20 to 50 letters, 3-grams"
_NGRAM_PUBLISHED = f"{_NGRAM}; the last places are left out, as in the published code"
_SMALL = "the same law at a size that trains on a CPU"


def _duplicates(*lengths: int) -> dict[str, tuple[Segment, ...]]:
    """Test splits whose strings hold a 3-gram twice, which defeats a look-up by 3-grams."""
    knobs = {"variant": "duplicate_ngram"}
    return {f"test_{length}_duplicate_ngram": (Segment(3_000, length, knobs),) for length in lengths}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StringCopy(Task):
    """Repeat a string of uniform letters (Jelassi et al., 2024, "Repeat after me").

    ``length`` is the number of letters of the string. ``$`` begins a row, ``|`` separates, ``.`` ends, and ``*`` fills.
    The answer and its end are supervised, and stand in the input as well, for teacher forcing. By the convention of
    causal heads a label is the id of its own position: the output one position before is due to be that id.

    >>> import numpy as np
    >>> def show(row, **knobs):
    ...     task = StringCopy(**knobs)
    ...     ids = np.array([[task.symbols.index(symbol) for symbol in row]])
    ...     return "".join(" " if label < 0 else task.symbols[label] for label in task.solve(ids)[0])
    >>> show("$aba|aba.")
    '     aba.'
    >>> show("$bc|abcda|da.*", variant="prefix_ngram", ngram=2)
    '          da. '
    >>> show("$abcda|bcda.*", variant="suffix_ngram", ngram=2)
    '         da. '

    Attributes:
        alphabet_size: Number of letters A.
        variant: ``"copy"``: ``$ s | s .``; ``"duplicate_ngram"``: the same with an n-gram that stands twice in the
            string; ``"prefix_ngram"``: ``$ g | s | answer .``, where the answer follows in the string the n-gram g,
            which stands there once; ``"suffix_ngram"``: ``$ s | g answer .``. The published code lets g stand twice,
            and then asks for what follows first.
        places: Where an n-gram that is asked for or duplicated may begin: ``"all"``, anywhere in the string where it is
            followed by an answer; ``"published"``, as in the published code, short of the last two such places, so that
            three letters at least follow an n-gram that is asked for, and one place short of the end for duplicates.
        ngram: Number of letters n of the n-gram.
        answer_length: Number of letters of the answer; ``None`` for all there are, the row filled up with ``*``.
    """

    key: ClassVar[str] = "string_copy"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stable"
    levels_until: ClassVar[int | None] = 4_096
    headline_metric: ClassVar[str] = "sequence_accuracy"
    presets: ClassVar[Mapping[str, Preset]] = {
        "len5_20": Preset((5, 20), (10, 20, 30, 50, 100), tests=_duplicates(20), source=_COPY),
        "len5_15": Preset((5, 15), (10, 15, 20, 30), tests=_duplicates(15), source=_SMALL),
        "prefix3_len20_50": Preset((20, 50), (35, 50, 75, 100), {"variant": "prefix_ngram"}, source=_NGRAM),
        "suffix3_len20_50": Preset((20, 50), (35, 50, 75, 100), {"variant": "suffix_ngram"}, source=_NGRAM),
        "prefix3_len20_50_published": Preset(
            (20, 50), (35, 50, 75, 100), {"variant": "prefix_ngram", "places": "published"}, source=_NGRAM_PUBLISHED
        ),
        "suffix3_len20_50_published": Preset(
            (20, 50), (35, 50, 75, 100), {"variant": "suffix_ngram", "places": "published"}, source=_NGRAM_PUBLISHED
        ),
    }

    alphabet_size: int = 26
    variant: str = "copy"
    ngram: int = 3
    answer_length: int | None = None
    places: str = "all"

    def __post_init__(self) -> None:
        check_int("alphabet_size", self.alphabet_size, 2, 26)
        check_choice("variant", self.variant, VARIANTS)
        # The code of an n-gram is an integer of 64 bits.
        check_int("ngram", self.ngram, 1, 12)
        check_int("answer_length", self.answer_length, 1, optional=True)
        check_choice("places", self.places, PLACES)

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        return (*string.ascii_lowercase[: self.alphabet_size], "$", "|", ".", "*")

    @property
    def vocab_size(self) -> int:
        """Letters and four signs."""
        return self.alphabet_size + 4

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def _looks_up(self) -> bool:
        return self.variant in ("prefix_ngram", "suffix_ngram")

    def prompt_length(self, length: int) -> int:
        """Number of columns before the answer: what a model is given when it generates."""
        extra = {"prefix_ngram": self.ngram + 1, "suffix_ngram": self.ngram}.get(self.variant, 0)
        return length + 2 + extra

    def row_length(self, length: int) -> int:
        """Columns of the prompt, the longest answer and its end."""
        return self.prompt_length(length) + self._longest_answer(length) + 1

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` holds the n-grams and the answer, and most strings hold an n-gram that is unique."""
        name, answer = f"length of variant {self.variant!r} with ngram {self.ngram}", self._shortest_answer
        if self._looks_up:
            # Beyond, hardly any string has a unique n-gram, and rows would be drawn again and again.
            check_int(name, length, self.ngram + answer, max(self.ngram + answer, 4 * self.alphabet_size**self.ngram))
        else:
            duplicates = 2 * self.ngram + 2 * (self.places == "published") if self.variant == "duplicate_ngram" else 1
            check_int(name, length, max(self.answer_length or 1, duplicates))

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, the answer and its end supervised."""
        self.validate_length(length)
        begin, bar, end, fill = range(self.alphabet_size, self.vocab_size)
        text = rng.integers(0, self.alphabet_size, size=(num_examples, length), dtype=np.int32)
        place = np.zeros(num_examples, dtype=np.int64)
        if self.variant == "duplicate_ngram":
            self._duplicate_ngram(rng, text)
        elif self._looks_up:
            place = self._place_unique_ngram(rng, text)
        asked = text[np.arange(num_examples)[:, None], place[:, None] + np.arange(self.ngram * self._looks_up)]
        ids = np.full((num_examples, self.row_length(length)), fill, dtype=np.int32)
        ids[:, 0] = begin
        first = 1
        if self.variant == "prefix_ngram":
            ids[:, 1 : 1 + self.ngram], ids[:, 1 + self.ngram] = asked, bar
            first = self.ngram + 2
        ids[:, first : first + length], ids[:, first + length] = text, bar
        if self.variant == "suffix_ngram":
            ids[:, first + length + 1 : self.prompt_length(length)] = asked

        start = place + asked.shape[1]
        size = np.minimum(length - start, self._longest_answer(length))[:, None]
        step = np.arange(self._longest_answer(length) + 1)
        letters = np.take_along_axis(text, np.minimum(start[:, None] + step, length - 1), axis=1)
        answer = np.select([step < size, step == size], [letters, end], fill)
        ids[:, self.prompt_length(length) :] = answer
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, self.prompt_length(length) :] = np.where(step <= size, answer, IGNORE_INDEX)
        return ids, labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Find the n-gram by sliding it along the string, and write what follows; the answer in the row is not read."""
        length = self._length_of(input_ids.shape[1])
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        first = self.ngram + 2 if self.variant == "prefix_ngram" else 1
        text, prompt, longest = (
            input_ids[:, first : first + length],
            self.prompt_length(length),
            self._longest_answer(length),
        )
        if not self._looks_up:
            labels[:, prompt : prompt + longest] = text[:, :longest]
            labels[:, prompt + longest] = self.alphabet_size + 2
            return labels
        asked = input_ids[:, 1 : 1 + self.ngram] if first > 1 else input_ids[:, prompt - self.ngram : prompt]
        for start in range(self.ngram, length + 1 - self._shortest_answer):
            rows = np.flatnonzero((text[:, start - self.ngram : start] == asked).all(axis=1))
            size = min(longest, length - start)
            labels[rows, prompt : prompt + size] = text[rows, start : start + size]
            labels[rows, prompt + size] = self.alphabet_size + 2
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``; ``answer_index``, the place in the answer from 0, -1 elsewhere; ``is_end``, its last position."""
        score = labels != IGNORE_INDEX
        index = np.where(score, np.cumsum(score, axis=1) - 1, -1).astype(np.int32)
        return {"score": score, "answer_index": index, "is_end": labels == self.alphabet_size + 2}

    def chance_level(self, metric: str, length: int) -> float:
        """Guessing letters, with the number of places of the n-gram known; repeats within a string are left out.

        Where the answer has one length, its end is known. Where it is all that follows the n-gram, a row is guessed
        best as its fewest letters and the end. ``sequence_accuracy`` and ``token_accuracy``; NaN for other metrics.
        """
        longest, letters = self._longest_answer(length), self.alphabet_size
        if not self._looks_up or self.answer_length is not None:
            levels = {
                "sequence_accuracy": float(letters) ** -longest,
                "token_accuracy": (longest / letters + 1) / (longest + 1),
            }
        else:
            # Answers of ``least`` to ``longest`` letters are equally likely; each step guesses a letter or the end.
            least = self._shortest_answer
            sizes = range(least, longest + 1)
            best = sum(
                max(sum(size > step for size in sizes) / letters, float(step in sizes)) for step in range(longest + 1)
            )
            exact = float(letters) ** -least / len(sizes)
            levels = {"sequence_accuracy": exact, "token_accuracy": best / sum(size + 1 for size in sizes)}
        return levels.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Exact strings of guessed letters, and of memories that do not solve the task.

        ``ngram_lookup`` copies the letter that follows the last n letters: right for strings in which no n-gram stands
        twice, estimated on fixed rows. ``last_letters`` answers with the end of the string, as short or as long as any
        answer: right for one place of the n-gram, all of which are equally likely.
        """
        values = {"guessed_letters": self.chance_level("sequence_accuracy", length)}
        if not self._looks_up:
            values["ngram_lookup"] = _share_without_repeats(self, length)
        else:
            values["last_letters"] = 1.0 / (length - self.ngram - self._shortest_answer + 1)
        return values

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows of the copy; otherwise a lower bound, from rows whose n-gram stands first."""
        self.validate_length(length)
        letters = self.alphabet_size
        if self.variant == "copy":
            return letters**length
        if self.variant == "duplicate_ngram":
            return letters ** (length - self.ngram)
        return letters * (letters - 1) ** (length - 1)

    @property
    def _shortest_answer(self) -> int:
        """Number of letters that follow an n-gram at the last place that is asked for."""
        return (self.answer_length or 1) + 2 * (self.places == "published" and self._looks_up)

    def _longest_answer(self, length: int) -> int:
        longest = length - self.ngram if self._looks_up else length
        return longest if self.answer_length is None else min(self.answer_length, longest)

    def _length_of(self, columns: int) -> int:
        """The string length whose rows have ``columns``."""
        for length in range(1, columns):
            if self.row_length(length) == columns:
                return length
        raise ValueError(f"input_ids must have the columns of a string length, got {columns}")

    def _codes(self, text: np.ndarray) -> np.ndarray:
        """An integer for each n-gram (n, L - ngram + 1) of strings (n, L)."""
        windows = text.shape[1] - self.ngram + 1
        codes = np.zeros((len(text), windows), dtype=np.int64)
        for offset in range(self.ngram):
            codes = codes * self.alphabet_size + text[:, offset : offset + windows]
        return codes

    def _place_unique_ngram(self, rng: np.random.Generator, text: np.ndarray) -> np.ndarray:
        """Places (n,) of n-grams that stand once in their string; strings (n, L) without are drawn again in place."""
        places = text.shape[1] - self.ngram - self._shortest_answer + 1
        place = np.zeros(len(text), dtype=np.int64)
        pending = np.arange(len(text))
        while True:
            place[pending] = rng.integers(0, places, size=len(pending))
            codes = self._codes(text[pending])
            asked = np.take_along_axis(codes, place[pending, None], axis=1)
            pending = pending[(codes == asked).sum(axis=1) > 1]
            if not len(pending):
                return place
            text[pending] = rng.integers(0, self.alphabet_size, size=(len(pending), text.shape[1]), dtype=np.int32)

    def _duplicate_ngram(self, rng: np.random.Generator, text: np.ndarray) -> None:
        """Write the n-gram of one place of each string over that of a later place, which it does not overlap."""
        n = self.ngram
        spare = text.shape[1] - 2 * n - 2 * (self.places == "published")
        # Two ordered places among ``spare + 2`` stand for two n-grams and the single letters around them.
        early = rng.integers(0, spare + 2, size=len(text))
        late = rng.integers(0, spare + 1, size=len(text))
        late += late >= early
        source, target = np.minimum(early, late), np.maximum(early, late) + n - 1
        row = np.arange(len(text))[:, None]
        text[row, target[:, None] + np.arange(n)] = text[row, source[:, None] + np.arange(n)]


@functools.lru_cache(maxsize=64)
def _share_without_repeats(task: StringCopy, length: int) -> float:
    """Share of strings in which no n-gram stands twice, of 2,000 fixed rows."""
    ids, _ = task.sample(np.random.default_rng(0), length, 2_000)
    if length <= task.ngram:
        return 1.0
    codes = np.sort(task._codes(ids[:, 1 : 1 + length]), axis=1)
    return float((np.diff(codes, axis=1) > 0).all(axis=1).mean())
