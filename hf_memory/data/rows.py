"""The rows of a dataset: a function of (configuration, data seed, split, block) and of nothing else.

A split is a sequence of blocks, and each block has a random generator of its own, so rows do not depend on who draws
which block, in which order or in how many processes. Block 0 has :data:`HEAD_ROWS` rows; they are what the key of a
cache folder is computed from. Training blocks go on without end: a stored split is the beginning of the stream.
"""

import functools
import logging
import math

import numpy as np

from hf_memory.data.drawing import Rows, digest_heads, draw_rows
from hf_memory.data.spaces import Spaces, enumerate_spaces
from hf_memory.data.specification import Specification, Split
from hf_memory.data.splits import Role
from hf_memory.data.values import stable_digest
from hf_memory.tasks.base import Task

logger = logging.getLogger(__name__)

HEAD_ROWS = 64
BLOCK_ROWS: dict[str, int] = {"train": 4096, "validation": 1024, "test": 1024}
"""Rows of a block after the first. Held-out blocks are smaller: 16 rows are drawn for each that is kept."""

_BLOCK_STREAM, _ORDER_STREAM = 0, 1


def block_range(role: Role, index: int) -> tuple[int, int]:
    """The rows [start, stop) of a split that a block holds."""
    size = BLOCK_ROWS[role]
    return (0, HEAD_ROWS) if index == 0 else (HEAD_ROWS + (index - 1) * size, HEAD_ROWS + index * size)


@functools.lru_cache(maxsize=1024)
def _warn_once(sentence: str) -> None:
    logger.warning("%s", sentence)


class RowSource:
    """Draws the blocks of a specification."""

    def __init__(self, specification: Specification) -> None:
        self.specification = specification

    @functools.cached_property
    def spaces(self) -> Spaces:
        """The rows that are enumerated instead of drawn."""
        return enumerate_spaces(self.specification)

    def num_rows(self, name: str) -> int:
        """Rows of a split: those asked for, or as many as a small space holds for it."""
        wanted = self.specification.splits[name].num_examples
        return min(wanted, len(self.spaces.pools[name])) if name in self.spaces.pools else wanted

    def shortfalls(self) -> list[str]:
        """A sentence for each split that holds fewer rows than its keyword asks for: small spaces have no more."""
        said = []
        for name, split in self.specification.splits.items():
            keyword, held = f"num_{split.role}", self.num_rows(name)
            asked = self.specification.overrides.get(keyword, 0)
            if held < min(asked, split.num_examples):
                part = split.parts[0]
                said.append(
                    f"{keyword}={asked} is more than there are: of the {part.num_distinct} distinct rows of "
                    f"hf_memory/{part.task.key} at length {part.length}, split {name!r} holds {held}"
                )
        return said

    def warn_of_shortfalls(self) -> None:
        """Log the shortfalls, each once in a process."""
        for sentence in self.shortfalls():
            _warn_once(sentence)

    def num_blocks(self, name: str) -> int:
        """Blocks of a stored split."""
        rest = self.num_rows(name) - HEAD_ROWS
        return 1 + max(0, math.ceil(rest / BLOCK_ROWS[self.specification.splits[name].role]))

    def block(self, name: str, index: int, *, endless: bool = False) -> Rows:
        """Draw a block. An endless training split has whole blocks at every index."""
        split = self.specification.splits[name]
        start, stop = block_range(split.role, index)
        kept = stop if endless else min(stop, self.num_rows(name))
        if name in self.spaces.pools:
            return self._dealt_rows(split, start, kept)
        # A training block is drawn whole even where the split ends inside it, so that the stream begins with the split.
        parts, given = self._parts(split, start, stop if split.role == "train" else kept)
        rng = self._generator(split, _BLOCK_STREAM, index)
        avoided = functools.partial(self.spaces.avoided, split.role)
        return draw_rows(split, parts, given, rng, avoided).head(kept - start)

    def laws(self, name: str, index: int) -> list[Task]:
        """The law of each row of a block."""
        split = self.specification.splits[name]
        start, stop = block_range(split.role, index)
        parts, _ = self._parts(split, start, min(stop, self.num_rows(name)))
        return [split.parts[number].task for number in parts]

    def digest(self) -> str:
        """Digest of the task's version and of the first rows of each split, freshly drawn."""
        heads = {name: self.block(name, 0) for name in self.specification.splits}
        return digest_heads(self.specification.task.version, heads)

    def _generator(self, split: Split, stream: int, index: int) -> np.random.Generator:
        """A generator for one block or one order, from the laws of the split and the data seed."""
        key = {
            "task": self.specification.task.key,
            "seed": self.specification.seed,
            "split": split.name,
            "laws": [part.law for part in split.parts],
            "mixture": [part.num_examples for part in split.parts] if len(split.parts) > 1 else None,
        }
        words = np.frombuffer(stable_digest(key), dtype="<u4").tolist()
        return np.random.default_rng(np.random.SeedSequence(words, spawn_key=(stream, index)))

    def _parts(self, split: Split, start: int, stop: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """The part that each row of a range belongs to, and the ids (n, L) of the rows of covered parts.

        Every round through a mixture holds exactly the counts of its parts.
        """
        if len(split.parts) == 1:
            return np.zeros(stop - start, dtype=np.int64), {}
        numbers = np.repeat(np.arange(len(split.parts)), [part.num_examples for part in split.parts])
        size = len(numbers)
        laid = numbers[self._order(split, size, start - start % size, stop)]
        parts = laid[start % size :]
        given = {}
        for number, part in enumerate(split.parts):
            if part.covered:
                before = start // size * part.num_examples + int((laid[: start % size] == number).sum())
                count = int((parts == number).sum())
                pool = self.spaces.covered[number]
                given[number] = pool[self._order(split, len(pool), before, before + count, number + 1)]
        return parts, given

    def _dealt_rows(self, split: Split, start: int, stop: int) -> Rows:
        """Rows of a pool. Beyond its end they come again, in another order each time."""
        pool = self.spaces.pools[split.name]
        ids = pool[self._order(split, len(pool), start, stop)].astype(np.int32)
        labels = split.parts[0].task.solve(ids)
        return Rows(ids.ravel(), labels.ravel(), np.arange(len(ids) + 1, dtype=np.int32) * ids.shape[1])

    def _order(self, split: Split, size: int, start: int, stop: int, stream: int = 0) -> np.ndarray:
        """Entries [start, stop) of an endless sequence of shuffles of ``range(size)``."""
        first, last = start // size, max(start, stop - 1) // size
        generators = (self._generator(split, _ORDER_STREAM + stream, number) for number in range(first, last + 1))
        shuffles = np.concatenate([generator.permutation(size) for generator in generators])
        return shuffles[start - first * size : stop - first * size]
