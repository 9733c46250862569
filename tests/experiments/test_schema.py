"""Kinds of values: what they accept, and where they say that something is wrong."""

import math

import pytest

from hf_memory.experiments.schema import Kind, ListOf, Number


def test_a_kind_that_does_not_say_what_it_accepts_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        type("Anything", (Kind,), {"text": "anything"})()


@pytest.mark.parametrize(
    ("kind", "value", "accepted"),
    [
        (Number(0, 1), 0.5, True), (Number(0, 1), 1, True), (Number(0, 1), 1.5, False), (Number(0, 1), True, False),
        (Number(0, above=True), 0, False), (Number(1, whole=True), 1.5, False), (Number(1, whole=True), 2, True),
        (Number(), math.nan, False), (Number(), math.inf, False), (Number(), "1", False),
    ],
)  # fmt: skip
def test_numbers_have_ranges(kind, value, accepted):
    assert kind.accepts(value) == accepted


def test_the_place_within_a_list_is_named():
    with pytest.raises(ValueError, match=r"rates\[1\] must be a finite number above 0"):
        ListOf(Number(0, above=True)).check([0.1, -1], "rates")
