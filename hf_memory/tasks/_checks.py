"""Checks of knobs, shared by the tasks: each raises a ``ValueError`` that names the field and the accepted range."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

LARGEST = 2**31 - 1
"""Largest number of a column: rows are int32, and larger ids would come out negative."""


def check_int(name: str, value: Any, low: int, high: int | None = None, *, optional: bool = False) -> None:
    """Raise unless ``value`` is an integer in [low, high]; ``None`` passes where ``optional``.

    Where no ``high`` is given it is :data:`LARGEST`.
    """
    if optional and value is None:
        return
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    largest = LARGEST if high is None else high
    if not is_integer or not low <= int(value) <= largest:
        kind = "None or an integer" if optional else "an integer"
        too_large = is_integer and int(value) > largest
        allowed = f"at least {low}" if high is None and not too_large else f"between {low} and {largest}"
        raise ValueError(f"{name} must be {kind} {allowed}, got {value!r}")


def check_real(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """Raise unless ``value`` is a finite number in [low, high], or in (low, high] where ``open_low``."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else float("nan")
    if not low <= number <= high or (open_low and number == low):
        bracket = "(" if open_low else "["
        raise ValueError(f"{name} must be a finite number in {bracket}{low:g}, {high:g}], got {value!r}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if not any(value == choice and isinstance(value, type(choice)) for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
