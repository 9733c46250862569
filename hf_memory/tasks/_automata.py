"""Random automata whose states are copies of symbols: their transitions, their strings, and what windows tell."""

import dataclasses
import functools

import numpy as np

NUM_STARTS = 4
SHORTEST_LIMIT = 20
"""Smallest limit to the symbols of a string."""

END = 0
"""Symbol and state that end a string."""


@dataclasses.dataclass(frozen=True, eq=False)
class Automaton:
    """An automaton with S states, of which state 0 is the end, and M symbols, of which symbol 0 is its sign.

    Attributes:
        following: State (S, M) that each symbol leads to, -1 where it may not follow.
        choices: States (S, K) that may follow each state, filled up with its last one.
        num_choices: How many of them (S,) there are.
        starts: The start states, of different symbols.
        copies: Number of states of each symbol.
    """

    following: np.ndarray
    choices: np.ndarray
    num_choices: np.ndarray
    starts: np.ndarray
    copies: int

    def symbol(self, states: np.ndarray) -> np.ndarray:
        """Symbol of each state."""
        return np.where(states == END, END, 1 + (states - 1) // self.copies)


@functools.lru_cache(maxsize=16)
def make_automaton(num_symbols: int, copies: int, allowed_share: float, seed: int) -> Automaton:
    """From each state each symbol is allowed with probability ``allowed_share``, towards one uniform copy of it.

    The end is allowed with that probability over ``copies``. A state that nothing could follow gets one symbol.
    """
    rng, states = np.random.default_rng(seed), 1 + num_symbols * copies
    allowed = rng.random((states, num_symbols + 1)) < allowed_share
    allowed[:, END] = rng.random(states) < allowed_share / copies
    stuck = np.flatnonzero(~allowed[:, 1:].any(axis=1))
    allowed[stuck, rng.integers(1, num_symbols + 1, size=len(stuck))] = True
    target = 1 + np.arange(num_symbols) * copies + rng.integers(0, copies, size=(states, num_symbols))
    following = np.where(allowed, np.concatenate([np.zeros((states, 1), dtype=np.int64), target], axis=1), -1)
    symbols = rng.permutation(num_symbols)[: min(NUM_STARTS, num_symbols)]
    starts = 1 + symbols * copies + rng.integers(0, copies, size=len(symbols))
    following[END] = -1
    following[END, 1 + symbols] = starts
    # A string ends in time from every start.
    reaches = np.arange(states) == END
    for _ in range(SHORTEST_LIMIT - 2):
        reaches[1:] |= (reaches[following[1:]] & (following[1:] >= 0)).any(axis=1)
    following[starts[~reaches[starts]], END] = END
    count = (following >= 0).sum(axis=1)
    order = np.argsort(following < 0, axis=1, kind="stable")[:, : count.max()]
    choices = np.take_along_axis(following, np.where(np.arange(count.max()) < count[:, None], order, order[:, :1]), 1)
    return Automaton(following.astype(np.int32), choices.astype(np.int32), count, starts, copies)


@functools.lru_cache(maxsize=8)
def choice_bounds(automaton: Automaton, longest: int) -> np.ndarray:
    """Bounds (longest, S, K) of a uniform number that choose what follows, by how many symbols a string still has.

    Strings that do not end in time are drawn again, which makes what leads to an end in time more likely: each choice
    in proportion to the probability that the string ends from there with what is left.
    """
    states, width = automaton.choices.shape
    inside = np.arange(width) < automaton.num_choices[:, None]
    bounds = np.zeros((longest, states, width), dtype=np.float32)
    ends = (np.arange(states) == END).astype(np.float64)
    for left in range(longest):
        # ``ends``: the probability that a string ends with the symbols that are left after the next one.
        weights = np.where(inside, ends[automaton.choices], 0.0)
        total = weights.sum(axis=1)
        bounds[left] = np.cumsum(weights, axis=1) / np.maximum(total, 1e-300)[:, None]
        ends = total / automaton.num_choices
        ends[END] = 1.0
    # A new string may begin at any start; it has all its symbols but the first before it.
    weights = np.where(inside[END], ends[automaton.choices[END]], 0.0)
    bounds[:, END] = np.cumsum(weights) / weights.sum()
    bounds[:, :, -1] = 1.0
    return bounds


def walk(rng: np.random.Generator, automaton: Automaton, num_rows: int, count: int, longest: int) -> np.ndarray:
    """States (n, count) of strings laid end to end, the first of which begins with the row."""
    bounds, width = choice_bounds(automaton, longest), automaton.choices.shape[1]
    flat, choices = bounds.reshape(-1, width), automaton.choices.reshape(-1)
    states = np.empty((count, num_rows), dtype=np.int32)
    state, left = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
    draws = rng.random((count, num_rows), dtype=np.float32)
    for step in range(count):
        bound = flat[left * len(automaton.choices) + state]
        chosen = np.minimum((bound <= draws[step][:, None]).sum(axis=1), width - 1)
        left = np.where(state == END, longest - 2, left - 1)
        state = choices[state * width + chosen].astype(np.int64)
        left[state == END] = 0
        states[step] = state
    return np.ascontiguousarray(states.T)


def window_level(automaton: Automaton, states: np.ndarray, width: int) -> float:
    """Accuracy of the best guess of a state from the last ``width`` symbols, over rows of states (n, T).

    The copy of the first symbol in the window is as likely as it is in these rows, and the others follow from it.
    """
    symbols, copies = automaton.symbol(states), automaton.copies
    share = np.bincount(states.ravel(), minlength=len(automaton.following)).astype(np.float64)
    first = np.lib.stride_tricks.sliding_window_view(symbols, width, axis=1).reshape(-1, width)
    last = states[:, width - 1 :].ravel()
    guess = np.where(first[:, :1] == END, END, 1 + (first[:, :1] - 1) * copies + np.arange(copies))
    weight = share[guess] / np.where(first[:, :1] == END, copies, 1)
    for place in range(1, width):
        symbol = first[:, place, None]
        weight = weight / automaton.num_choices[np.maximum(guess, 0)]
        guess = np.where(guess >= 0, automaton.following[np.maximum(guess, 0), symbol], -1)
        weight[guess < 0] = 0.0
    # What several copies lead to adds up.
    order = np.argsort(guess, axis=1, kind="stable")
    guess, weight = np.take_along_axis(guess, order, axis=1), np.take_along_axis(weight, order, axis=1)
    total = np.cumsum(weight, axis=1)
    begin = np.ones(guess.shape, dtype=bool)
    begin[:, 1:] = guess[:, 1:] != guess[:, :-1]
    before = np.maximum.accumulate(np.where(begin, total - weight, 0.0), axis=1)
    best = np.argmax(total - before, axis=1)
    return float((guess[np.arange(len(guess)), best] == last).mean())
