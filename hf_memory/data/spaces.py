"""Small spaces of rows: enumerated and dealt to the splits instead of drawn.

Drawing from a small space would repeat rows, and a split might find none of its class. Three cases are told apart:

- The training split has one law, one length and a small space: all its rows, in the order of their hashes, are dealt,
  80 % to training, 10 % to validation and 10 % to the test splits of that law and length.
- A part of a training mixture asks for every row of its space: it gets them all, and no other split holds any of them.
- The space of a test split is small: it holds each row of its class once. Where its law is not one of training, as in
  a test of phases, it takes rows from the whole space, and training draws avoid them.
"""

import dataclasses

import numpy as np

from hf_memory.data.specification import Part, Specification, Split, length_bounds
from hf_memory.data.splits import Role, dealt_bounds, in_class, row_hashes

SMALL_FACTOR = 100
"""A space of rows is small where it has fewer than this many times the rows that are wanted of it ..."""

MAX_ENUMERATED = 1 << 21
"""... and no more than this. Of 100,000 rows drawn from more, fewer than 2.5 % are drawn again."""


@dataclasses.dataclass(frozen=True)
class Spaces:
    """Enumerated rows, in the narrowest integers and in the order of their hashes.

    Attributes:
        pools: Rows (n, L) of each split that is not drawn, by the name of the split.
        covered: Rows (n, L) of the training parts that leave none out, by the number of the part.
        reserved: Rows of the test splits that training draws avoid.
    """

    pools: dict[str, np.ndarray]
    covered: dict[int, np.ndarray]
    reserved: list[np.ndarray]

    def avoided(self, role: Role, width: int) -> np.ndarray:
        """Hashes (n,) of the rows with ``width`` columns that draws for a split of ``role`` must avoid."""
        return _hashes(self._learnt() if role == "test" else self.reserved, width)

    def _learnt(self) -> list[np.ndarray]:
        """Rows that are learnt from or selected on."""
        return [*self.covered.values(), *(self.pools[name] for name in ("train", "validation") if name in self.pools)]


def enumerate_spaces(specification: Specification) -> Spaces:
    """Enumerate and deal the small spaces of a specification.

    Raises:
        ValueError: Where a split would be empty.
    """
    splits = specification.splits
    train = splits["train"].parts
    covered = {number: _enumerate(part)[0] for number, part in enumerate(train) if part.covered}
    spaces = Spaces(_deal(specification), covered, [])
    laws = {part.task for part in train}
    for name, split in splits.items():
        part = split.parts[0]
        if name not in spaces.pools and split.role != "train" and len(split.parts) == 1 and _is_small(part):
            ids, hashes = _enumerate(part)
            free = ~np.isin(hashes, spaces.avoided("test", ids.shape[1]))
            if split.role == "test" and part.task not in laws:
                spaces.pools[name] = ids[free][: part.num_examples]
                spaces.reserved.append(spaces.pools[name])
            else:
                spaces.pools[name] = ids[free & in_class(hashes, split.role)]
    for name, pool in spaces.pools.items():
        if not len(pool):
            raise ValueError(_empty(splits[name]))
    return spaces


def _deal(specification: Specification) -> dict[str, np.ndarray]:
    """Deal the space of a training split of one law and length to the splits that share it."""
    splits = specification.splits.values()
    first, *others = specification.splits["train"].parts
    shared = [split for split in splits if len(split.parts) == 1 and split.parts[0].law == first.law]
    if others or not _is_small(dataclasses.replace(first, num_examples=sum(split.num_examples for split in shared))):
        return {}
    ids, _ = _enumerate(first)
    bounds = {split.name: dealt_bounds(len(ids), split.role) for split in shared}
    return {name: ids[low:high] for name, (low, high) in bounds.items()}


def _is_small(part: Part) -> bool:
    """Whether the rows of a part have one length and too few of them exist to be drawn."""
    return isinstance(part.length, int) and part.num_distinct < min(SMALL_FACTOR * part.num_examples, MAX_ENUMERATED)


def _enumerate(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """All rows (n, L) of a part in the order of their hashes, and the hashes (n,)."""
    ids = part.task.enumerate(length_bounds(part.length)[0])
    hashes = row_hashes(ids)
    order = np.argsort(hashes, kind="stable")
    return ids.astype(np.min_scalar_type(part.task.vocab_size - 1))[order], hashes[order]


def _hashes(pools: list[np.ndarray], width: int) -> np.ndarray:
    """Hashes of all rows of a width."""
    hashes = [row_hashes(rows) for rows in pools if rows.shape[1] == width]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *hashes])


def _empty(split: Split) -> str:
    part = split.parts[0]
    return (
        f"split {split.name!r} of hf_memory/{part.task.key} would be empty: length {part.length} has "
        f"{part.num_distinct} distinct rows, {split.num_examples} were asked for, and none is left that no other split "
        "holds; choose another length or other knobs, or leave the split out "
        "(num_validation=0, num_test=0, test_lengths=[])"
    )
