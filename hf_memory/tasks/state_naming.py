"""State naming: follow a random automaton, and name its state at every symbol."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._automata import END, SHORTEST_LIMIT, Automaton, make_automaton, walk, window_level
from hf_memory.tasks._checks import check_int, check_real
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

WINDOWS = (2, 4, 8)
_EXACT_COUNTS = 6
_FIRST_DISTRACTOR = 50
_SELECTIV = (
    "SelectivBench (2026), {}; its inputs are real vectors with noise on all coordinates, which are ids here: blanks "
    "for gaps, some of them noise ids"
)
_CARRIED = "repaired by this package: every symbol may follow, so that a window of symbols tells less of the state"


def _presets() -> dict[str, Preset]:
    gaps = {"min_gap": 1, "max_gap": 10, "noise_share": 0.2}
    tests = {
        f"test_gap_{gap}": (Segment(1_000, 200 * (gap + 1), {"min_gap": gap, "max_gap": gap}),)
        for gap in (10, 20, 50, 100)
    }
    presets = {
        f"gap1_copies{count}": Preset(
            400,
            (400, 800),
            {"min_gap": 1, "max_gap": 1, "num_symbols": count, "copies": count},
            source=_SELECTIV.format(f"memorisation, {count} copies of {count} symbols"),
        )
        for count in (20, 40)
    }
    presets["gaps_copies20"] = Preset(1_300, (1_300,), gaps, tests, source=_SELECTIV.format("gaps, and generalisation"))
    presets["distractors_copies20"] = Preset(
        200, (200,), {"distractor_share": 0.1}, source=_SELECTIV.format("context distractors after symbol 50")
    )
    presets["carried_copies20"] = Preset(200, (200, 400), {"allowed_share": 1.0}, source=_CARRIED)
    return presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateNaming(Task):
    """Name the state of a random automaton, a symbol and which copy of it, at every symbol of its strings.

    One automaton, the same for all rows, has ``copies`` states of each symbol. From every state each symbol is allowed
    with probability ``allowed_share``, towards one copy of it, and the end of the string with that probability over
    ``copies``. Strings begin at one of four states, go on uniformly among what is allowed, are drawn again where they
    do not end in time, and fill a row one after the other. Blanks stand after symbols, and symbols that may not follow
    may stand between, which move nothing.

    >>> task = StateNaming(num_symbols=2, copies=2, allowed_share=1.0)
    >>> ids, labels = task.sample(np.random.default_rng(0), 6, 1)
    >>> states = [task.label_symbols[label] for label in labels[0]]
    >>> [state.split(".")[0] for state in states] == [task.symbols[token] for token in ids[0]]
    True

    The automaton is learned by the weights. Where few symbols may follow, a window of eight symbols names the state:
    the law then tests skipping blanks, not long memory, unless ``allowed_share`` is raised.

    Expected: attention leads, and gates help to skip what stands between; mixing of channels in the state helps at
    longer gaps than trained ones (SelectivBench, 2026).

    Attributes:
        num_symbols: Number of symbols, besides the end.
        copies: Number of states of each symbol.
        allowed_share: Probability that a symbol may follow a state.
        min_gap: Smallest number of blanks after each symbol.
        max_gap: Largest number of them, each number between as likely.
        noise_share: Probability that a blank is one of as many noise ids as there are symbols.
        distractor_share: Probability that a symbol which may not follow stands after a symbol, from the 50th on.
        longest_string: Largest number of symbols of a string, its end among them.
        automaton_seed: Seed of the automaton.
    """

    key: ClassVar[str] = "state_naming"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stateful"
    presets: ClassVar[Mapping[str, Preset]] = _presets()

    num_symbols: int = 20
    copies: int = 20
    allowed_share: float = 0.4
    min_gap: int = 0
    max_gap: int = 0
    noise_share: float = 0.0
    distractor_share: float = 0.0
    longest_string: int = 200
    automaton_seed: int = 0

    def __post_init__(self) -> None:
        check_int("num_symbols", self.num_symbols, 2, 64)
        check_int("copies", self.copies, 1, 64)
        check_real("allowed_share", self.allowed_share, 0.0, 1.0, open_low=True)
        check_int("max_gap", self.max_gap, 0)
        check_int(f"min_gap with max_gap {self.max_gap}", self.min_gap, 0, self.max_gap)
        check_real("noise_share", self.noise_share, 0.0, 1.0)
        check_real("distractor_share", self.distractor_share, 0.0, 1.0)
        check_int("longest_string", self.longest_string, SHORTEST_LIMIT, 1_000)
        check_int("automaton_seed", self.automaton_seed, 0)

    @property
    def vocab_size(self) -> int:
        """The end, the symbols, a blank where there are any, and noise ids where there is noise."""
        return 1 + self.num_symbols + (self.max_gap > 0) * (1 + self.num_symbols * (self.noise_share > 0))

    @property
    def num_labels(self) -> int:
        """The end, and the copies of all symbols."""
        return 1 + self.num_symbols * self.copies

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id: ``#`` ends a string, ``_`` is the blank, ``~`` begins a noise id."""
        names = [f"s{number}" for number in range(self.num_symbols)]
        noise = [f"~{number}" for number in range(self.num_symbols)]
        return tuple(["#", *names, "_", *noise][: self.vocab_size])

    @property
    def label_symbols(self) -> tuple[str, ...]:
        """A readable name of each state."""
        return ("#", *(f"s{symbol}.{copy}" for symbol in range(self.num_symbols) for copy in range(self.copies)))

    @property
    def automaton(self) -> Automaton:
        """The automaton of all rows."""
        return make_automaton(self.num_symbols, self.copies, float(self.allowed_share), self.automaton_seed)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, symbols that move the state supervised."""
        self.validate_length(length)
        n, most = num_examples, -(-length // (1 + self.min_gap))
        states = walk(rng, self.automaton, n, most, self.longest_string)
        ids, labels = self.automaton.symbol(states).astype(np.int32), states
        if self.distractor_share:
            ids, labels = self._distract(rng, ids, states)
        if not self.max_gap:
            return np.ascontiguousarray(ids[:, :length]), np.ascontiguousarray(labels[:, :length])
        gaps = rng.integers(self.min_gap, self.max_gap + 1, size=ids.shape)
        column = np.cumsum(gaps + 1, axis=1) - gaps - 1
        row, place = np.nonzero(column < length)
        spread = np.full((n, length), 1 + self.num_symbols, dtype=np.int32)
        if self.noise_share:
            noise = rng.integers(2 + self.num_symbols, self.vocab_size, size=(n, length), dtype=np.int32)
            spread = np.where(rng.random((n, length), dtype=np.float32) < self.noise_share, noise, spread)
        due = np.full((n, length), IGNORE_INDEX, dtype=np.int32)
        spread[row, column[row, place]], due[row, column[row, place]] = ids[row, place], labels[row, place]
        return spread, due

    def _distract(self, rng: np.random.Generator, ids: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Symbols and labels (n, T) with symbols that may not follow put between."""
        n, count = ids.shape
        forbidden = self.automaton.following[:, 1:] < 0
        listed, size = np.argsort(~forbidden, axis=1, kind="stable") + 1, forbidden.sum(axis=1)
        size[END] = 0
        between = rng.random((n, count), dtype=np.float32) < self.distractor_share
        between[:, : _FIRST_DISTRACTOR - 1] = False
        between &= size[states] > 0
        at = np.nonzero(between)
        other = listed[states[at], rng.integers(0, size[states[at]])]
        column = np.arange(count) + np.cumsum(between, axis=1) - between
        wide, due = np.zeros((n, 2 * count), dtype=np.int32), np.full((n, 2 * count), IGNORE_INDEX, dtype=np.int32)
        row = np.arange(n)[:, None]
        wide[row, column], due[row, column] = ids, states
        wide[at[0], column[at] + 1] = other
        return wide[:, :count], due[:, :count]

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Follow the symbols through the automaton; what may not follow is passed."""
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        is_symbol = input_ids <= self.num_symbols
        order = np.argsort(~is_symbol, axis=1, kind="stable")
        rows, following = np.arange(len(input_ids)), self.automaton.following
        # Starts have different symbols, so that the state is known from the first symbol on.
        state = np.zeros(len(input_ids), dtype=np.int64)
        for place in range(int(is_symbol.sum(axis=1).max(initial=0))):
            column = order[:, place]
            reached = following[state, np.where(is_symbol[rows, column], input_ids[rows, column], END)]
            moved = is_symbol[rows, column] & (reached >= 0)
            state = np.where(moved, reached, state)
            labels[rows[moved], column[moved]] = state[moved]
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, and ``symbol_index``, the number of the symbol in its row from 0, -1 where none is due."""
        score = labels != IGNORE_INDEX
        return {"score": score, "symbol_index": np.where(score, np.cumsum(score, axis=1) - 1, -1).astype(np.int32)}

    def chance_level(self, metric: str, length: int) -> float:
        """The best guess from the symbol and, of the first symbols of a row, their number: measured on fixed rows.

        ``token_accuracy``; NaN for other metrics.
        """
        return _levels(self, length)[0] if metric == "token_accuracy" else math.nan

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy of the best guess from the last 2, 4 and 8 symbols, with nothing between them; on fixed rows."""
        return {"last_symbol": _levels(self, length)[0], **_levels(self, length)[1]}

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows: exact up to 2^50 without anything between, else a lower bound."""
        self.validate_length(length)
        automaton = self.automaton
        row, column = np.nonzero(automaton.following >= 0)
        paths = (np.arange(len(automaton.following)) == END).astype(np.int64)
        for _ in range(-(-length // (1 + self.max_gap))):
            if paths.sum() > 1 << 50:
                break
            reached = automaton.following[row, column]
            paths = np.bincount(reached, paths[row], minlength=len(paths)).astype(np.int64)
        return int(paths.sum())


@functools.lru_cache(maxsize=64)
def _levels(task: StateNaming, length: int) -> tuple[float, dict[str, float]]:
    """Accuracy of the best tables of the last symbol, by its number among the first, and of windows of symbols."""
    count = max(2, min(400, -(-2 * length // (2 + task.min_gap + task.max_gap))))
    rows = max(200, 100_000 // count)
    states = walk(np.random.default_rng(0), task.automaton, rows, count, task.longest_string)
    shares = np.bincount(states[:, _EXACT_COUNTS:].ravel(), minlength=task.num_labels)
    right = float(_largest(task, shares))
    for place in range(min(_EXACT_COUNTS, count)):
        right += float(_largest(task, np.bincount(states[:, place], minlength=task.num_labels)))
    some = states[: max(20, 20_000 // count)]
    windows = {
        f"last_{width}_symbols": window_level(task.automaton, some, width) if count >= width else 1.0
        for width in WINDOWS
    }
    return right / states.size, windows


def _largest(task: StateNaming, counts: np.ndarray) -> int:
    """Sum over symbols of the count of their commonest state."""
    return int(counts[END] + counts[1:].reshape(task.num_symbols, task.copies).max(axis=1).sum())
