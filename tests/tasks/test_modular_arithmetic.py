"""Modular arithmetic: values by Python's own reading of the expressions, levels over all rows, published levels."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import modular_arithmetic
from hf_memory.tasks._answers import AnswerTask
from hf_memory.tasks.base import Segment
from hf_memory.tasks.modular_arithmetic import ModularArithmetic

LAWS = [
    {},
    {"separator": True},
    {"multiplication": False},
    {"modulus": 3},
    {"brackets": True},
    {"brackets": True, "multiplication": False, "separator": True},
    {"brackets": True, "modulus": 7},
]


def text_of(task, row):
    return "".join(task.symbols[token] for token in row).rstrip("=")


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(modular_arithmetic).attempted == 2
    assert doctest.testmod(modular_arithmetic).failed == 0


@pytest.mark.parametrize("knobs", LAWS)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 11, 24])
def test_values_are_those_that_python_computes(knobs, length):
    task = ModularArithmetic(**knobs)
    ids, labels = task.sample(np.random.default_rng(length), length, 60)
    np.testing.assert_array_equal(task.solve(ids), labels)
    for row, label in zip(ids, labels[:, -1], strict=True):
        assert eval(text_of(task, row)) % task.modulus == label


def test_expressions_with_brackets_follow_the_recursive_law():
    task = ModularArithmetic(brackets=True)
    ids, _ = task.sample(np.random.default_rng(0), 9, 60_000)
    # The left part has 1 to 5 tokens; the operator after it stands at 2 to 6, outside of further brackets.
    depth = task.annotate(ids, ids)["open"]
    operator = (ids >= 5) & (ids < 8) & (depth == 1) & (np.arange(9) >= 2)
    place = np.argmax(operator, axis=1)
    is_sign = np.take_along_axis(ids, place[:, None] - 1, axis=1)[:, 0] == 8
    assert not is_sign.any()
    counts = np.bincount(place, minlength=7)[2:7]
    assert ((counts - 12_000) ** 2 / 12_000).sum() < 18.5  # chi-square, 4 degrees: once in a thousand draws
    assert {text_of(task, row)[0] + text_of(task, row)[-1] for row in ids[:50]} == {"()"}


def test_digits_and_operators_of_plain_expressions_are_uniform():
    ids, _ = ModularArithmetic().sample(np.random.default_rng(0), 10, 20_000)
    for column, size, first in ((0, 5, 0), (18, 5, 0), (7, 3, 5)):
        counts = np.bincount(ids[:, column] - first, minlength=size)
        assert ((counts - 20_000 / size) ** 2 / (20_000 / size)).sum() < 18.5


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("multiplication", [False, True])
def test_every_expression_with_brackets_is_listed_once(length, multiplication):
    task = ModularArithmetic(modulus=2, brackets=True, multiplication=multiplication)
    rows = task.enumerate(length)
    assert len(rows) == len(np.unique(rows, axis=0)) == task.num_distinct(length)
    drawn, _ = task.sample(np.random.default_rng(0), length, 3_000)
    assert set(map(bytes, drawn)) <= set(map(bytes, rows))
    if length == 5:
        assert len(rows) == 4 * task.num_operators  # (d op d)


@pytest.mark.parametrize("separator", [False, True])
@pytest.mark.parametrize("multiplication", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_levels_of_plain_expressions_are_those_of_the_best_tables(length, multiplication, separator):
    task = ModularArithmetic(modulus=3, multiplication=multiplication, separator=separator)
    ids = task.enumerate(length)
    check_levels(task, length, ids, np.full(len(ids), 1 / len(ids)))


def probability(text, task):
    """Probability of an expression with brackets under the recursive law."""
    if len(text) <= 4:
        return 1 / task.modulus
    inner, depth, total = text[1:-1], 0, 0.0
    for place, sign in enumerate(inner):
        depth += (sign == "(") - (sign == ")")
        sides = inner[:place], inner[place + 1 :]
        if depth == 0 and sign in "+-*" and all(sides) and sides[0][-1] not in "+-*(":
            shares = probability(sides[0], task) * probability(sides[1], task)
            total += shares / task.num_operators / (len(text) - 4)
            break
    return total


@pytest.mark.parametrize("separator", [False, True])
@pytest.mark.parametrize("multiplication", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_levels_with_brackets_are_those_of_the_best_tables(length, multiplication, separator):
    task = ModularArithmetic(modulus=2, brackets=True, multiplication=multiplication, separator=separator)
    ids = task.enumerate(length)
    chance = np.array([probability(text_of(task, row), task) for row in ids])
    assert chance.sum() == pytest.approx(1.0)
    check_levels(task, length, ids, chance)


def check_levels(task, length, ids, chance):
    answers, values = task.solve(ids)[:, -1], AnswerTask.baselines(task, length)
    for name, width in {"constant": 0, "last_token": 1, "last_3_tokens": 3}.items():
        table = {}
        for row, answer, share in zip(ids.tolist(), answers, chance, strict=True):
            code = tuple(row[max(len(row) - width, 0) :])
            table.setdefault(code, np.zeros(task.modulus))[answer] += share
        assert values[name] == pytest.approx(sum(shares.max() for shares in table.values())), name
    assert task.chance_level("token_accuracy", length) == values["last_token"]


@pytest.mark.parametrize(("length", "level"), [(5, 0.253), (40, 0.292), (250, 0.311)])
def test_always_zero_scores_what_was_measured_with_brackets_and_products(length, level):
    task = ModularArithmetic(brackets=True)
    assert task.chance_level("token_accuracy", length) == pytest.approx(level, abs=2e-3)
    _, labels = task.sample(np.random.default_rng(0), length, 20_000)
    assert (labels[:, -1] == 0).mean() == pytest.approx(level, abs=0.013)
    even = task.replace(multiplication=False)
    assert even.chance_level("token_accuracy", length) == pytest.approx(0.2, abs=1e-9)
    assert even.chance_level("loss", length) == pytest.approx(math.log(5), abs=1e-9)


@pytest.mark.parametrize(("digits", "level"), [(1, 0.2), (2, 0.253), (5, 0.209), (20, 0.2)])
def test_chance_without_brackets_falls_to_one_in_five(digits, level):
    task = ModularArithmetic(separator=True)
    assert task.chance_level("token_accuracy", digits) == pytest.approx(level, abs=6e-4)


def test_the_preset_with_brackets_weighs_sizes_as_its_source_does():
    preset = ModularArithmetic.presets["brackets_2_37"]
    sizes = [max(size, 5) - 3 for size in range(3, 41)]
    assert (min(sizes), max(sizes)) == (2, 37)
    assert preset.train[0] == Segment(round(100_000 * sizes.count(2) / len(sizes)), 2)
    assert preset.train[1].length == (3, 37)
    assert sum(segment.num_examples for segment in preset.train) == 100_000
    assert (max(40, 5) - 3, 256 - 3) == preset.tests["test_37_to_253"][0].length


def test_annotations_count_operators_and_open_brackets():
    task = ModularArithmetic(brackets=True, separator=True)
    row = np.array([[task.symbols.index(sign) for sign in "((2-4)+(-1))="]])
    notes = task.annotate(row, task.solve(row))
    assert notes["operators"][0, -1] == 3
    assert notes["open"].tolist() == [[1, 2, 2, 2, 2, 1, 1, 2, 2, 2, 1, 0, 0]]
    assert "open" not in ModularArithmetic().annotate(np.array([[1]]), np.array([[1]]))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"modulus": 1}, "modulus must be an integer between 2 and 64"),
        ({"brackets": 1}, "brackets must be one of False, True"),
        ({"multiplication": "yes"}, "multiplication must be one of False, True"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        ModularArithmetic(**knobs)
    with pytest.raises(ValueError, match="length 20 has .* distinct rows"):
        ModularArithmetic().enumerate(20)
