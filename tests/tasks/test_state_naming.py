"""State naming: rows followed state by state, the automaton's law, what windows of symbols tell."""

import doctest

import numpy as np
import pytest

from hf_memory.tasks import state_naming
from hf_memory.tasks._automata import make_automaton, walk, window_level
from hf_memory.tasks.state_naming import StateNaming

GAPS = {"min_gap": 1, "max_gap": 4, "noise_share": 0.3}


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(state_naming).attempted == 4
    assert doctest.testmod(state_naming).failed == 0


def leads_of(task):
    """The state that each word leads to from each state."""
    words, rows = task.symbols, task.automaton.following.tolist()
    return {(state, words[s]): to for state, row in enumerate(rows) for s, to in enumerate(row) if to >= 0}


def follow(leads, words):
    """The states at each symbol, by the set of states that may be meant, in plain Python."""
    possible, found = {0}, {}
    for place, word in enumerate(words):
        reached = {leads[state, word] for state in possible if (state, word) in leads}
        if reached:
            (state,) = possible = reached
            found[place] = state
    return found


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        GAPS,
        {"min_gap": 1, "max_gap": 1},
        {"distractor_share": 0.3},
        {**GAPS, "distractor_share": 0.2},
        {"num_symbols": 2, "copies": 3, "allowed_share": 0.1},
    ],
)
def test_rows_are_followed_state_by_state(knobs):
    task = StateNaming(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), 150, 40)
    np.testing.assert_array_equal(task.solve(ids), labels)
    leads, names, states = leads_of(task), task.symbols, task.label_symbols
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        words = [names[token] for token in row]
        expected = {place: state for place, state in enumerate(label) if state >= 0}
        assert follow(leads, words) == expected
        # A state is a copy of the symbol above it.
        assert all(states[state].split(".")[0] == words[place] for place, state in expected.items())


def test_the_automaton_follows_its_law():
    automaton = make_automaton(40, 40, 0.4, 3)
    allowed = automaton.following[1:] >= 0
    assert allowed[:, 1:].mean() == pytest.approx(0.4, abs=4 * (0.24 / 64_000) ** 0.5)
    assert allowed[:, 0].mean() == pytest.approx(0.01, abs=0.01)
    targets = automaton.following[1:, 1:]
    assert (automaton.symbol(targets)[targets > 0] == np.nonzero(targets > 0)[1] + 1).all()
    copies = np.bincount((targets[targets > 0] - 1) % 40, minlength=40)
    assert ((copies - copies.mean()) ** 2 / copies.mean()).sum() < 73  # chi-square, 39 degrees: once in a thousand
    assert len(set(automaton.symbol(automaton.starts))) == 4


def test_strings_that_end_in_time_are_those_that_are_drawn_until_they_do():
    task = StateNaming(num_symbols=3, copies=3, longest_string=20)
    automaton, rng = task.automaton, np.random.default_rng(0)
    follows = [row[row >= 0] for row in automaton.following]
    drawn = []
    while len(drawn) < 400:
        string = [int(rng.choice(automaton.starts))]
        while string[-1] != 0 and len(string) < 20:
            string.append(int(rng.choice(follows[string[-1]])))
        drawn += [string] * (string[-1] == 0)
    states = walk(np.random.default_rng(1), automaton, 4_000, 21, 20)
    first = [row[: row.index(0) + 1] for row in states.tolist()]
    assert max(map(len, first)) <= 20
    for measure in (len, lambda string: string[0], lambda string: string[1], lambda string: string[-2]):
        ours, theirs = (np.array([measure(string) for string in strings]) for strings in (first, drawn))
        values = np.unique(np.concatenate([ours, theirs]))
        a, b = (np.array([(found == value).sum() for value in values]) for found in (ours, theirs))
        kept = a + b > 20
        expected = (a + b)[kept] * len(theirs) / (len(ours) + len(theirs))
        statistic = ((b[kept] - expected) ** 2 / expected).sum() * (len(ours) + len(theirs)) / len(ours)
        # Four standard deviations above its mean.
        assert statistic < kept.sum() + 4 * (2 * kept.sum()) ** 0.5


def test_gaps_noise_and_distractors_take_their_shares():
    ids, _ = StateNaming(**GAPS).sample(np.random.default_rng(0), 400, 200)
    is_symbol = ids <= 20
    gaps = np.diff(np.nonzero(is_symbol[0])[0]) - 1
    assert set(gaps) == {1, 2, 3, 4}
    assert (ids[~is_symbol] > 21).mean() == pytest.approx(0.3, abs=0.01)
    task = StateNaming(distractor_share=0.1)
    ids, labels = task.sample(np.random.default_rng(0), 200, 500)
    assert (labels[:, :50] >= 0).all()
    assert (labels[:, 50:] < 0).mean() == pytest.approx(0.1 / 1.1, abs=0.01)
    assert (ids[labels < 0] > 0).all()


@pytest.mark.parametrize(("copies", "levels"), [(40, {2: 0.16, 4: 0.62, 5: 0.80, 8: 0.984}), (20, {5: 0.93})])
def test_windows_of_symbols_reach_what_was_computed_for_the_published_law(copies, levels):
    automaton = make_automaton(copies, copies, 0.4, 0)
    states = walk(np.random.default_rng(0), automaton, 150, 200, 200)
    for width, level in levels.items():
        assert window_level(automaton, states, width) == pytest.approx(level, abs=0.04)


def test_a_window_of_eight_symbols_passes_the_published_law_and_not_the_repaired_one():
    assert StateNaming().baselines(200)["last_8_symbols"] > 0.98
    repaired = StateNaming(**StateNaming.presets["carried_copies20"].knobs)
    assert max(repaired.baselines(200).values()) < 0.55
    assert 0.05 < StateNaming().chance_level("token_accuracy", 200) < 0.13


@pytest.mark.parametrize("length", [1, 2, 3])
def test_all_rows_of_a_short_length_are_counted(length):
    task = StateNaming(num_symbols=4, copies=3)
    assert len(task.enumerate(length)) == task.num_distinct(length)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_symbols": 1}, "num_symbols must be an integer between 2 and 64"),
        ({"copies": 0}, "copies must be an integer between 1 and 64"),
        ({"allowed_share": 0.0}, "allowed_share must be a finite number"),
        ({"min_gap": 2}, "min_gap with max_gap 0 must be an integer between 0 and 0"),
        ({"noise_share": -0.1}, "noise_share must be a finite number"),
        ({"distractor_share": 1.1}, "distractor_share must be a finite number"),
        ({"longest_string": 5}, "longest_string must be an integer between 20"),
        ({"automaton_seed": -1}, "automaton_seed must be an integer at least 0"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        StateNaming(**knobs)
