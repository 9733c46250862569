"""Drawing the rows of one block: lengths, rejection by class, and rows of unlike lengths laid end to end."""

import dataclasses
import hashlib
import math
from collections.abc import Callable

import numpy as np

from hf_memory.data.specification import Part, Split, length_bounds
from hf_memory.data.splits import CLASS_RANGES, NUM_CLASSES, Role, in_class, row_hashes

_TOKENS_PER_CALL = 1 << 20
_HOPELESS, _TRIES_PER_ROW = 8192, 1024
_LENGTH_ROUNDS = 64


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of any lengths, laid end to end.

    Attributes:
        input_ids: All ids (sum of lengths,) int32.
        labels: All labels (sum of lengths,) int32 or float32.
        offsets: Where each row starts and the last one ends (n + 1,) int32.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def head(self, num_rows: int) -> "Rows":
        """The first rows."""
        offsets = self.offsets[: num_rows + 1]
        return Rows(self.input_ids[: offsets[-1]], self.labels[: offsets[-1]], offsets)


def digest_heads(version: str, heads: dict[str, Rows]) -> str:
    """Digest of a task's version and of the first rows of each split, the key of a cache folder."""
    digest = hashlib.blake2b(version.encode(), digest_size=8)
    for name, rows in heads.items():
        digest.update(f"\n{name} {len(rows)} {rows.labels.dtype.kind}\n".encode())
        digest.update(rows.offsets.astype("<i4").tobytes())
        digest.update(rows.input_ids.astype("<i4").tobytes())
        digest.update(rows.labels.astype("<f4" if rows.labels.dtype.kind == "f" else "<i4").tobytes())
    return digest.hexdigest()


def draw_rows(
    split: Split,
    parts: np.ndarray,
    given: dict[int, np.ndarray],
    rng: np.random.Generator,
    avoided: Callable[[int], np.ndarray],
) -> Rows:
    """Draw rows of a split.

    Args:
        split: The split, whose role says which rows it may hold.
        parts: Number of the part (n,) that each row comes from.
        given: The ids (n, L) of all rows of a part, by its number, where they are not to be drawn.
        rng: Source of all randomness.
        avoided: Gives the hashes of the rows of a width that must not be drawn.

    Raises:
        ValueError: Where no row of the split's class is found.
    """
    lengths = np.empty(len(parts), dtype=np.int64)
    found = [
        (np.flatnonzero(parts == number), ids.astype(np.int32), split.parts[number].task.solve(ids))
        for number, ids in given.items()
    ]
    pending = np.flatnonzero(~np.isin(parts, list(given)))
    rounds = 0
    while len(pending) and rounds < _LENGTH_ROUNDS:
        rounds += 1
        # A short length may have no row of the class at all: its rows then draw another length.
        _draw_lengths(split.parts, parts, lengths, pending, rng)
        missing = []
        for number, length, rows in _groups(parts, lengths, pending):
            ids, labels = _draw_class(split.parts[number], length, len(rows), split.role, rng, avoided)
            found.append((rows[: len(ids)], ids, labels))
            missing.append(rows[len(ids) :])
        pending = np.sort(np.concatenate(missing))
    if not len(pending):
        return _lay_out(len(parts), found)
    part = split.parts[parts[pending[0]]]
    raise ValueError(
        f"split {split.name!r} of hf_memory/{part.task.key} cannot be kept apart from the others: no row of its share "
        f"was found at length {part.length} ({part.num_distinct} distinct rows at {length_bounds(part.length)[0]}); "
        "choose longer rows or other knobs"
    )


def _draw_lengths(
    laws: tuple[Part, ...], parts: np.ndarray, lengths: np.ndarray, pending: np.ndarray, rng: np.random.Generator
) -> None:
    """Give each pending row a length, uniform over its part's range."""
    for number, part in enumerate(laws):
        rows = pending[parts[pending] == number]
        low, high = length_bounds(part.length)
        lengths[rows] = low if low == high else rng.integers(low, high + 1, size=len(rows))


def _groups(parts: np.ndarray, lengths: np.ndarray, pending: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
    """Pending rows by part and length, in a fixed order."""
    order = pending[np.lexsort((lengths[pending], parts[pending]))]
    changes = (np.diff(parts[order]) != 0) | (np.diff(lengths[order]) != 0)
    groups = np.split(order, np.flatnonzero(changes) + 1)
    return [(int(parts[rows[0]]), int(lengths[rows[0]]), rows) for rows in groups]


def _draw_class(
    part: Part, length: int, count: int, role: Role, rng: np.random.Generator, avoided: Callable[[int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Up to ``count`` rows (n, L) of one length and of the role's class, drawn until they are found or given up."""
    low, high = CLASS_RANGES[role]
    share = (high - low) / NUM_CLASSES
    width = part.task.row_length(length)
    forbidden = avoided(width)
    batches: list[tuple[np.ndarray, np.ndarray]] = []
    missing, tries = count, 0
    while missing and tries < (_HOPELESS if missing == count else _TRIES_PER_ROW * count):
        wanted = math.ceil(missing / share * 1.1) + 8
        drawn = min(wanted, max(1, _TOKENS_PER_CALL // width))
        ids, labels = part.task.sample(rng, length, drawn)
        hashes = row_hashes(ids)
        keep = in_class(hashes, role)
        if len(forbidden):
            keep &= ~np.isin(hashes, forbidden)
        kept = np.flatnonzero(keep)[:missing]
        batches.append((ids[kept], labels[kept]))
        missing -= len(kept)
        tries += drawn
    return np.concatenate([ids for ids, _ in batches]), np.concatenate([labels for _, labels in batches])


def _lay_out(num_rows: int, found: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Rows:
    """Lay groups of rows (their places, ids, labels) end to end in the order of their places."""
    widths = np.empty(num_rows, dtype=np.int64)
    for places, ids, _ in found:
        widths[places] = ids.shape[1]
    offsets = np.zeros(num_rows + 1, dtype=np.int64)
    np.cumsum(widths, out=offsets[1:])
    input_ids = np.empty(offsets[-1], dtype=np.int32)
    labels = np.empty(offsets[-1], dtype=found[0][2].dtype)
    for places, ids, targets in found:
        if offsets[-1] == num_rows * ids.shape[1] and (widths == ids.shape[1]).all():
            input_ids.reshape(num_rows, -1)[places] = ids
            labels.reshape(num_rows, -1)[places] = targets
        else:
            # A group covers rows of one width, so its places in the flat arrays form a rectangle.
            flat = offsets[places, None] + np.arange(ids.shape[1])
            input_ids[flat] = ids
            labels[flat] = targets
    return Rows(input_ids, labels, offsets.astype(np.int32))
