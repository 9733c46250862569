"""Reverse: worked examples, strings turned by Python, levels over all rows."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import reverse
from hf_memory.tasks.reverse import Reverse


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(reverse).attempted == 3
    assert doctest.testmod(reverse).failed == 0


@pytest.mark.parametrize("answer", ["shown", "hidden"])
@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_strings_are_turned(answer, length):
    task = Reverse(alphabet_size=5, answer=answer)
    ids, labels = task.sample(np.random.default_rng(0), length, 200)
    for row, label in zip(ids, labels, strict=True):
        words = [task.symbols[token] for token in row]
        text = "".join(words[:length])
        assert words[length] == "|"
        assert "".join(words[length + 1 :]) == (text[::-1] if answer == "shown" else "_" * length)
        assert "".join(task.symbols[token] for token in label[length + 1 :]) == text[::-1]
        assert (label[: length + 1] == -100).all()
    notes = task.annotate(ids, labels)
    assert notes["answer_index"][0, length + 1 :].tolist() == list(range(length))
    assert notes["distance"][0, length + 1 :].tolist() == [2 * step + 2 for step in range(length)]


def test_levels():
    task = Reverse(alphabet_size=2)
    assert task.chance_level("token_accuracy", 9) == 0.5
    assert task.chance_level("sequence_accuracy", 9) == 0.5**9
    assert task.chance_level("loss", 9) == pytest.approx(math.log(2))
    # The commoner of three bits stands there three times in two of eight strings, twice in the others.
    assert task.baselines(3)["most_frequent_letter"] == pytest.approx((2 * 3 + 6 * 2) / 8 / 3)
    assert task.baselines(4)["last_1_letters"] == pytest.approx((1 + 3 * 0.5) / 4)
    assert task.baselines(2)["last_3_letters"] == 1.0
    assert Reverse().baselines(1023)["most_frequent_letter"] == Reverse().baselines(128)["most_frequent_letter"]


def test_all_rows_of_a_short_length_are_listed():
    task = Reverse(alphabet_size=3, answer="hidden")
    rows = task.enumerate(2)
    assert rows.tolist() == [[a, b, 3, 4, 4] for a in range(3) for b in range(3)]
    with pytest.raises(ValueError, match="length 20 has .* distinct rows"):
        Reverse().enumerate(20)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"alphabet_size": 27}, "alphabet_size must be an integer between 2 and 26"),
        ({"answer": "no"}, "answer must be one"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        Reverse(**knobs)
