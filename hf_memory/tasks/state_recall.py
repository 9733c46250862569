"""State-based recall: pointers are swapped, and what the first of them points to in the end is due."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks._draws import draw_distinct, expected_largest_count
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Task

AXES = ("swaps", "cells")
QUERIES = ("pointer", "place", "address")
_EXACT_COUNTS = 128
_OLMO = (
    "Olmo Hybrid (2026), section 3.5: {}; how its rows are laid out is not stated there, so the layout "
    "is this package's"
)
_REPAIRED = "as in Olmo Hybrid, with 16 symbols: the commonest of five pointed bits is right too often"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateRecall(Task):
    """Cells hold symbols, pointers point to cells, pointers are swapped; what the first pointer points to is due.

    A row is ``address symbol`` for each cell, in uniformly random order; the addresses of the pointers; swaps of two
    pointers; and a question mark, where the symbol of the cell is due to which the first pointer has come to point. So
    it needs recall and the tracking of a permutation at once. Either part can be asked for alone: ``query="place"``
    has swaps only, and asks which of the pointers came to the first place; ``query="address"`` has cells only and
    names an address at the end.

    >>> task = StateRecall(num_cells=3, num_pointers=3)
    >>> row = [task.symbols.index(word) for word in "@1 1 @2 0 @0 1 @2 @0 @1 0~2 1~2 ?".split()]
    >>> int(task.solve(np.array([row]))[0, -1])
    1
    >>> places = task.replace(query="place")
    >>> int(places.solve(np.array([[places.symbols.index(word) for word in "0~1 1~2 0~1 ?".split()]]))[0, -1])
    2

    With bits, the commoner of the five that are pointed to is right in .69 of the rows, whatever the swaps.

    Expected: a hybrid of attention and Gated DeltaNet with eigenvalues in [-1, 1] solves it, neither of them alone
    does: attention does not track the swaps, and the state has no room for all cells (Olmo Hybrid, 2026).

    Attributes:
        axis: What ``length`` measures: the number of swaps, or that of cells, of which there are at most ``num_cells``.
        num_cells: Number of cells where the axis is ``"swaps"``, and of addresses.
        num_swaps: Number of swaps where the axis is ``"cells"``.
        num_pointers: Number of pointers, to distinct cells.
        alphabet_size: Number of symbols; 2 for bits.
        query: ``"pointer"``, ``"place"`` or ``"address"``, as above.
    """

    key: ClassVar[str] = "state_recall"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "associative"
    headline_metric: ClassVar[str] = "token_accuracy"
    presets: ClassVar[Mapping[str, Preset]] = {
        "cells64_swaps64": Preset(64, (64, 128), source=_OLMO.format("bits, five pointers, swaps")),
        "cells128_swaps128": Preset(128, (128, 256), {"num_cells": 128}, source=_OLMO.format("128 bits, 128 swaps")),
        "swaps64_alone": Preset(64, (64, 128, 256), {"query": "place"}, source=_OLMO.format("the swaps alone")),
        "cells64_alone": Preset(
            64, (64,), {"query": "address", "axis": "cells"}, source=_OLMO.format("the recall of 64 bits alone")
        ),
        "cells128_alone": Preset(
            128,
            (128,),
            {"query": "address", "axis": "cells", "num_cells": 128},
            source=_OLMO.format("the recall of 128 bits alone"),
        ),
        "cells64_swaps64_symbols16": Preset(64, (64, 128), {"alphabet_size": 16}, source=_REPAIRED),
        "cells8_swaps16": Preset(16, (16, 32), {"num_cells": 8}, source="the same law at a size that trains on a CPU"),
    }

    axis: str = "swaps"
    num_cells: int = 64
    num_swaps: int = 64
    num_pointers: int = 5
    alphabet_size: int = 2
    query: str = "pointer"

    def __post_init__(self) -> None:
        check_choice("query", self.query, QUERIES)
        # Rows without cells have swaps only, and the other way round.
        axes = {"pointer": AXES, "place": AXES[:1], "address": AXES[1:]}[self.query]
        check_choice(f"axis of query {self.query!r}", self.axis, axes)
        check_int("num_cells", self.num_cells, 2, 1 << 20)
        check_int("num_swaps", self.num_swaps, 0)
        check_int("num_pointers", self.num_pointers, 2, 256)
        check_int("alphabet_size", self.alphabet_size, 2, 1 << 20)

    @property
    def num_pairs(self) -> int:
        """Number of swaps to choose from."""
        return math.comb(self.num_pointers, 2)

    @property
    def vocab_size(self) -> int:
        """Symbols, addresses, swaps and the question mark."""
        return self.alphabet_size + self.num_cells + self.num_pairs + 1

    @property
    def num_labels(self) -> int:
        """One class for each symbol, or for each place of a pointer."""
        return self.num_pointers if self.query == "place" else self.alphabet_size

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        pairs = (f"{first}~{second}" for first, second in itertools.combinations(range(self.num_pointers), 2))
        return (*map(str, range(self.alphabet_size)), *(f"@{cell}" for cell in range(self.num_cells)), *pairs, "?")

    @property
    def label_symbols(self) -> tuple[str, ...]:
        """A readable name of each class."""
        return tuple(map(str, range(self.num_labels)))

    def sizes(self, length: int) -> tuple[int, int, int]:
        """Number of cells, pointers and swaps that rows of ``length`` hold."""
        cells, swaps = (self.num_cells, length) if self.axis == "swaps" else (length, self.num_swaps)
        return {
            "pointer": (cells, self.num_pointers, swaps),
            "place": (0, 0, swaps),
            "address": (cells, 0, 0),
        }[self.query]

    def row_length(self, length: int) -> int:
        """Two tokens for each cell, one for each pointer, swap and the question."""
        cells, pointers, swaps = self.sizes(length)
        return 2 * cells + pointers + swaps + 1

    def validate_length(self, length: int) -> None:
        """Raise unless there are addresses for the cells, and cells for the pointers."""
        if self.axis == "cells":
            least = self.num_pointers if self.query == "pointer" else 1
            check_int(f"length with {self.num_cells} num_cells", length, least, self.num_cells)
        else:
            check_int("length", length, 1)
            if self.query == "pointer":
                check_int(f"num_cells with {self.num_pointers} num_pointers", self.num_cells, self.num_pointers)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, the last position supervised."""
        self.validate_length(length)
        (cells, pointers, swaps), n = self.sizes(length), num_examples
        ids, row = np.full((n, self.row_length(length)), self.vocab_size - 1, dtype=np.int32), np.arange(n)
        labels = np.full_like(ids, IGNORE_INDEX)
        symbols = rng.integers(0, self.alphabet_size, size=(n, cells), dtype=np.int32)
        address = draw_distinct(rng, n, cells, self.num_cells)
        ids[:, 0 : 2 * cells : 2], ids[:, 1 : 2 * cells : 2] = address + self.alphabet_size, symbols
        if self.query == "address":
            asked = rng.integers(0, cells, size=n)
            ids[:, -1], labels[:, -1] = address[row, asked] + self.alphabet_size, symbols[row, asked]
            return ids, labels
        chosen = rng.integers(0, self.num_pairs, size=(swaps, n), dtype=np.int32)
        ids[:, 2 * cells + pointers : -1] = chosen.T + self.alphabet_size + self.num_cells
        # From the last swap back: where what ends in the first place came from.
        place, partner = np.zeros(n, dtype=np.int32), self._partners().reshape(-1)
        for pair in chosen[::-1]:
            np.take(partner, pair * self.num_pointers + place, out=place, mode="clip")
        if self.query == "place":
            labels[:, -1] = place
            return ids, labels
        pointed = draw_distinct(rng, n, pointers, cells)
        ids[:, 2 * cells : 2 * cells + pointers] = np.take_along_axis(address, pointed, axis=1) + self.alphabet_size
        labels[:, -1] = symbols[row, pointed[row, place]]
        return ids, labels

    def _partners(self) -> np.ndarray:
        """Table (P, p) of the place that each swap puts into another."""
        table = np.tile(np.arange(self.num_pointers, dtype=np.int32), (self.num_pairs, 1))
        for number, (first, second) in enumerate(itertools.combinations(range(self.num_pointers), 2)):
            table[number, [first, second]] = second, first
        return table

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Swap the pointers from the first swap on, then look through the cells for the first pointer's address."""
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        first_swap = self.alphabet_size + self.num_cells
        wanted = input_ids[:, -1]
        if self.query != "address":
            held = np.tile(np.arange(self.num_pointers), (len(input_ids), 1))
            swap = (input_ids[0] >= first_swap) & (input_ids[0] < first_swap + self.num_pairs) if len(input_ids) else []
            columns, pairs = np.flatnonzero(swap), list(itertools.combinations(range(self.num_pointers), 2))
            for column in columns:
                first, second = np.array(pairs)[input_ids[:, column] - first_swap].T[:, :, None]
                moved = np.take_along_axis(held, first, axis=1), np.take_along_axis(held, second, axis=1)
                np.put_along_axis(held, first, moved[1], axis=1)
                np.put_along_axis(held, second, moved[0], axis=1)
            if self.query == "place":
                labels[:, -1] = held[:, 0]
                return labels
            pointers = input_ids.shape[1] - 1 - len(columns) - self.num_pointers
            wanted = np.take_along_axis(input_ids[:, pointers:], held[:, :1], axis=1)[:, 0]
        cells = input_ids[:, 0 : 2 * self._cells_of(input_ids) : 2]
        place = np.argmax(cells == wanted[:, None], axis=1)
        labels[:, -1] = np.take_along_axis(input_ids, 2 * place[:, None] + 1, axis=1)[:, 0]
        return labels

    def _cells_of(self, ids: np.ndarray) -> int:
        """Number of cells of rows (n, L)."""
        pointer = self.query == "pointer"
        if self.axis == "swaps":
            return self.num_cells
        return (ids.shape[1] - 1 - pointer * (self.num_pointers + self.num_swaps)) // 2

    def chance_level(self, metric: str, length: int) -> float:
        """Any symbol; of places the first, which is likelier than the others until the swaps have mixed, exact.

        ``token_accuracy``, ``sequence_accuracy`` and ``loss`` (nats); NaN for other metrics.
        """
        stays = self._stays(length) if self.query == "place" else 1 / self.alphabet_size
        if metric in ("token_accuracy", "sequence_accuracy", "recall"):
            return max(stays, (1 - stays) / (self.num_labels - 1))
        if metric != "loss":
            return math.nan
        others = (1 - stays) / (self.num_labels - 1)
        return -sum(p * math.log(p) for p in (stays, *[others] * (self.num_labels - 1)) if p > 0)

    def _stays(self, length: int, known: int = 0) -> float:
        """Probability that all swaps but the last ``known`` leave the first place with its own pointer."""
        swaps, count = max(self.sizes(length)[2] - known, 0), self.num_pointers
        return 1 / count + (1 - 1 / count) * (1 - 2 / (count - 1)) ** swaps

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy of guesses that know the last swaps or the symbols that are pointed to, exact.

        ``last_swaps``: undo the last two swaps and name the place; ``most_frequent_symbol`` of the cells;
        ``most_frequent_pointed`` of the cells that pointers point to; ``first_pointer``: as if nothing were swapped.
        """
        chance = self.chance_level("token_accuracy", length)
        if self.query == "place":
            levels = [self._known(length, known) for known in range(3)]
            return {"first_place": chance, "last_swap": levels[1], "last_2_swaps": levels[2]}
        counted = min(self.sizes(length)[0], _EXACT_COUNTS)
        most = expected_largest_count(counted, self.alphabet_size) / counted
        values = {"any_symbol": chance, "most_frequent_symbol": most}
        if self.query == "pointer":
            stays, count = self._stays(length), self.num_pointers
            values["most_frequent_pointed"] = expected_largest_count(count, self.alphabet_size) / count
            values["first_pointer"] = stays + (1 - stays) / self.alphabet_size
        return values

    def _known(self, length: int, known: int) -> float:
        """Accuracy in naming the place where the last ``known`` swaps are undone: of the place that is left."""
        return max(abs(self._stays(length, known)), (1 - self._stays(length, known)) / (self.num_labels - 1))

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        self.validate_length(length)
        cells, pointers, swaps = self.sizes(length)
        held = math.perm(self.num_cells, cells) * self.alphabet_size**cells * math.perm(cells, pointers)
        return held * self.num_pairs**swaps * (cells if self.query == "address" else 1)
