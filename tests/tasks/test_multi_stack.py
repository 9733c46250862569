"""Many stacks: rows replayed on lists, the laws of operations, memories without a stack."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import multi_stack
from hf_memory.tasks.multi_stack import MultiStack

LAWS = [
    ({}, 30),
    ({"num_stacks": 4, "alphabet_size": 8}, 20),
    ({"num_stacks": 1, "alphabet_size": 2}, 15),
    ({"push_share": 0.0}, 9),
    ({"push_share": 1.0}, 9),
    ({"num_stacks": 8, "pushes_first": True}, 24),
    ({"num_stacks": 3}, 2),
]


def replay(row):
    """Popped symbols by column, with the operations since their push and whether a pop came before, on plain lists."""
    stacks, before, found = {}, {}, {}
    for step in range(len(row) // 3):
        operation, stack, symbol = row[3 * step : 3 * step + 3]
        if operation == 0:
            stacks.setdefault(stack, []).append((symbol, step))
        else:
            popped, pushed = stacks[stack].pop()
            found[3 * step + 2] = popped, step - pushed, before[stack] == 1
        before[stack] = operation
    return found


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(multi_stack).attempted == 3
    assert doctest.testmod(multi_stack).failed == 0


@pytest.mark.parametrize(("knobs", "length"), LAWS)
def test_rows_are_replayed_on_lists(knobs, length):
    task = MultiStack(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), length, 300)
    notes = task.annotate(ids, labels)
    for row, label, distance, after in zip(
        ids.tolist(), labels.tolist(), notes["distance"].tolist(), notes["after_pop"].tolist(), strict=True
    ):
        found = replay(row)
        assert {column: symbol for column, symbol in enumerate(label) if symbol >= 0} == {
            column: symbol for column, (symbol, _, _) in found.items()
        }
        for column, (symbol, since, follows_pop) in found.items():
            assert (row[column], distance[column], after[column]) == (symbol, since, follows_pop)
        assert row[-3] == 1


def test_operations_follow_their_law():
    task = MultiStack(num_stacks=2, alphabet_size=3, push_share=0.7)
    ids, _ = task.sample(np.random.default_rng(0), 12, 20_000)
    # On the first stack that is not empty a pop comes with probability .3; on an empty one never.
    second = ids[:, 3:6]
    again = second[:, 1] == ids[:, 1]
    assert again.mean() == pytest.approx(0.5, abs=0.015)
    assert (second[~again, 0] == 0).all()
    assert (second[again, 0] == 1).mean() == pytest.approx(0.3, abs=0.02)
    assert (ids[:, -6] == 0).all()


def test_a_memory_of_one_symbol_a_stack_passes_the_published_law_and_not_the_repaired_one():
    published, preset = MultiStack(), MultiStack.presets["stacks8_ops84_pushes_first"]
    repaired = MultiStack(**preset.knobs)
    assert published.baselines(85)["last_pushed_on_stack"] > 0.95
    assert max(repaired.baselines(84).values()) < 0.5
    ids, labels = repaired.sample(np.random.default_rng(1), 84, 500)
    assert repaired.annotate(ids, labels)["after_pop"].sum() / (labels >= 0).sum() > 0.6


def test_pops_after_pops_are_counted_apart():
    task = MultiStack(num_stacks=1, alphabet_size=3)
    row = np.array(
        [[task.symbols.index(sign) for sign in ["+", "0", "a", "+", "0", "b", "-", "0", "b", "-", "0", "a"]]]
    )
    labels = task.solve(row)
    assert task.extra_metrics(row, labels, labels) == {"accuracy_after_pop": (1, 1)}
    assert task.extra_metrics(row, labels, np.zeros_like(row)) == {"accuracy_after_pop": (0, 1)}
    padded, ignored = np.pad(row, ((0, 0), (0, 3))), np.pad(labels, ((0, 0), (0, 3)), constant_values=-100)
    assert task.annotate(padded, ignored)["distance"][0].tolist() == [*[-1] * 8, 1, -1, -1, 3, -1, -1, -1]


def test_levels_and_sizes():
    task = MultiStack()
    assert task.chance_level("token_accuracy", 85) == pytest.approx(1 / 26)
    assert task.chance_level("loss", 85) == pytest.approx(math.log(26))
    assert (task.row_length(85), task.vocab_size) == (255, 92)
    for length, count in ((2, 6), (3, 60)):
        few = MultiStack(num_stacks=3, alphabet_size=2)
        assert few.num_distinct(length) == count == len(few.enumerate(length))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_stacks": 0}, "num_stacks must be an integer between 1"),
        ({"alphabet_size": 1}, "alphabet_size must be an integer between 2"),
        ({"push_share": 1.2}, "push_share must be a finite number"),
        ({"pushes_first": 1}, "pushes_first must be one of False, True"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        MultiStack(**knobs)
    with pytest.raises(ValueError, match="length must be an integer at least 2"):
        MultiStack().validate_length(1)
