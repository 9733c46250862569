"""Which words of a model's own vocabulary stand for the symbols of a task.

The rule: of the tokenizer's ids in their order, which is that of frequency for the usual ways of training one, the
first 1,024 whose text is a word of three or more lower-case letters and one token at every place of the format. Only
where there are too few of these, words of letters and digits of any length. Words are dealt by first letter, round and
round, so that no letter comes again before each had its turn, to keys and values in turn. Half of the rows of a
vocabulary exchange keys and values, so that no word has a role of its own.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from hf_memory.experiments.probing.formats import Layout

POOL = 1_024
"""Words from which vocabularies are drawn."""

RULES = {"letters": re.compile(r"[a-z]{3,}"), "alphanumeric": re.compile(r"[A-Za-z0-9]+")}
"""What a word is, by the name of the rule; a later one is used where an earlier one gives too few."""

FILLERS = 64
"""Words of filler, at most."""

_LEAST_FILLERS = 4
_BLOCK = 4_096


@dataclasses.dataclass(frozen=True)
class Pool:
    """Words that are one token in a format, frequent ones first, with their ids and the rule that found them."""

    words: tuple[str, ...]
    ids: tuple[int, ...]
    rule: str


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The words of one draw: keys and values in turn, then filler.

    Attributes:
        seed: Seed of the draw.
        words: Words by number.
        ids: Their ids.
        size: Number of keys, and of values.
    """

    seed: int
    words: tuple[str, ...]
    ids: tuple[int, ...]
    size: int

    def role(self, which: int) -> np.ndarray:
        """Numbers of the keys (0) or of the values (1)."""
        return np.arange(which, 2 * self.size, 2)

    @property
    def fillers(self) -> np.ndarray:
        """Numbers of the words of filler."""
        return np.arange(2 * self.size, len(self.words))

    def describe(self) -> dict[str, Any]:
        """What a row records: the seed and all words by role."""
        keys, values = ([self.words[n] for n in self.role(which)] for which in (0, 1))
        return {"seed": self.seed, "keys": keys, "values": values, "fillers": [self.words[n] for n in self.fillers]}


def find_pool(layout: Layout, needed: int) -> Pool:
    """Words of the tokenizer that are one token at every place of a format, which is learnt on the way.

    Args:
        layout: The format; its pieces are learnt.
        needed: Least number of words.

    Raises:
        ValueError: There are fewer.
    """
    found: dict[str, int] = {}
    for rule, pattern in RULES.items():
        found = {}
        is_learnt = False
        for words in _word_blocks(layout.tokenizer, pattern):
            if not is_learnt:
                layout.learn(words)
                is_learnt = True
            for word, token in layout.token_of([word for word in words if word not in found]).items():
                if token not in found.values():
                    found[word] = token
                if len(found) >= max(POOL, needed):
                    break
            if len(found) >= max(POOL, needed):
                break
        if len(found) >= needed:
            return Pool(tuple(found), tuple(found.values()), rule)
    raise ValueError(
        f"tokenizer: it has {len(found)} words that are one token each in the format {layout.format.name!r}, and "
        f"{needed} are needed; take fewer --pairs or another --format"
    )


def _word_blocks(tokenizer: Any, pattern: re.Pattern[str]) -> Iterator[list[str]]:
    """Words of a tokenizer in the order of its ids, each once, in blocks."""
    special, met = set(tokenizer.all_special_ids), set[str]()
    for first in range(0, len(tokenizer), _BLOCK):
        ids = [token for token in range(first, min(first + _BLOCK, len(tokenizer))) if token not in special]
        texts = (text.strip() for text in tokenizer.batch_decode([[token] for token in ids]))
        words = [text for text in dict.fromkeys(texts) if pattern.fullmatch(text) and text not in met]
        met.update(words)
        if words:
            yield words


def draw_vocabulary(pool: Pool, size: int, seed: int) -> Vocabulary:
    """Draw ``size`` keys, as many values, and filler.

    Raises:
        ValueError: The pool has too few words.
    """
    fillers = min(FILLERS, len(pool.words) - 2 * size)
    if fillers < _LEAST_FILLERS:
        raise ValueError(f"pairs: {size} keys and values need {2 * size + _LEAST_FILLERS} words, got {len(pool.words)}")
    rng = np.random.default_rng([seed, size])
    numbers = [int(number) for number in rng.permutation(len(pool.words))]
    letters: dict[str, list[int]] = {}
    for number in numbers:
        letters.setdefault(pool.words[number][0].lower(), []).append(number)
    dealt: list[int] = []
    while len(dealt) < 2 * size + fillers:
        dealt += [own.pop() for own in letters.values() if own]
    chosen = dealt[: 2 * size + fillers]
    return Vocabulary(seed, tuple(pool.words[n] for n in chosen), tuple(pool.ids[n] for n in chosen), size)


def needed_words(size: int) -> int:
    """Words that a draw of ``size`` keys and values needs at least."""
    return 2 * size + _LEAST_FILLERS
