"""Even pairs: worked examples, changes counted by hand, levels over all rows."""

import doctest
import itertools

import numpy as np
import pytest

from hf_memory.tasks import even_pairs
from hf_memory.tasks.even_pairs import EvenPairs


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(even_pairs).attempted == 2
    assert doctest.testmod(even_pairs).failed == 0


@pytest.mark.parametrize(
    ("bits", "answer"),
    [("0", 0), ("01", 1), ("00", 0), ("aba", 0), ("abba", 0), ("aab", 1), ("ababab", 1), ("aabbaabb", 1)],
)
def test_pairs_that_were_counted_by_hand(bits, answer):
    # "aabbaabb" has ab, ba and ab: three unequal pairs.
    row = np.array([[int(bit in "1b") for bit in bits]])
    assert EvenPairs().solve(row)[0, -1] == answer
    assert sum(left != right for left, right in itertools.pairwise(row[0])) % 2 == answer


@pytest.mark.parametrize("separator", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_levels_are_those_of_the_best_tables_over_all_rows(separator, length):
    task = EvenPairs(separator=separator)
    ids = task.enumerate(length)
    answers = task.solve(ids)[:, -1]
    values = task.baselines(length)
    for name, width in {"constant": 0, "last_token": 1, "last_3_tokens": 3}.items():
        seen = [tuple(row[max(ids.shape[1] - width, 0) :]) for row in ids.tolist()]
        right = sum(
            np.bincount([a for s, a in zip(seen, answers, strict=True) if s == code]).max() for code in set(seen)
        )
        assert values[name] == pytest.approx(right / len(ids)), name
    assert task.chance_level("token_accuracy", length) == values["last_token"]


def test_a_separator_ends_the_row_and_changes_are_annotated():
    task = EvenPairs(separator=True)
    row = np.array([[0, 1, 1, 0, 1, 2]])
    labels = task.solve(row)
    assert labels.tolist() == [[-100] * 5 + [1]]
    assert task.annotate(row, labels)["changes"].tolist() == [[0, 1, 1, 2, 3, 3]]
    assert task.symbols == ("0", "1", "=")
    with pytest.raises(ValueError, match="separator must be one of False, True"):
        EvenPairs(separator=2)
    with pytest.raises(ValueError, match="length must be at most 24"):
        task.enumerate(25)
