"""Types and ranges of values that were read from a file, declared once and checked in one place.

A kind says what it accepts, and :meth:`Kind.check` names the place of the first value that it does not. Values are
those of JSON and YAML after reading: mappings, lists, texts, numbers, truth values and None.
"""

import abc
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.names import check_names

LONGEST_TEXT = 20_000
"""Letters of a text."""


class Kind(abc.ABC):
    """What a value must be."""

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """The kind in words, which follow "must be"."""

    @abc.abstractmethod
    def accepts(self, value: Any) -> bool:
        """Whether a value is of this kind, without what lies within it."""

    def check(self, value: Any, where: str) -> None:
        """Raise a ``ValueError`` that names ``where`` unless the value is of this kind, also within."""
        if not self.accepts(value):
            raise ValueError(f"{where} must be {self.text}, got {_shown(value)}")


@dataclasses.dataclass(frozen=True)
class Number(Kind):
    """A finite number from ``low`` to ``high``, without ``low`` where it is ``above``.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        whole: Whether only integers are accepted.
        above: Whether ``low`` itself is not accepted.
        finite: Whether NaN and the infinities are refused.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    above: bool = False
    finite: bool = True

    @property
    def text(self) -> str:
        """The kind in words."""
        noun = "a whole number" if self.whole else "a finite number" if self.finite else "a number"
        bounds = [f"{'above' if self.above else 'of at least'} {self.low:.12g}"] if math.isfinite(self.low) else []
        bounds += [f"at most {self.high:.12g}"] if math.isfinite(self.high) else []
        return f"{noun} {' and '.join(bounds)}".rstrip()

    def accepts(self, value: Any) -> bool:
        """Whether it is a number in the range; truth values are none."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return not self.finite and (math.isnan(value) or self.low <= value <= self.high)
        return self.low <= value <= self.high and not (self.above and value == self.low)


@dataclasses.dataclass(frozen=True)
class Text(Kind):
    """A text, one of ``choices`` where there are some, and of the form ``pattern`` where there is one."""

    choices: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""

    @property
    def text(self) -> str:
        """The kind in words."""
        return f"one of {', '.join(self.choices)}" if self.choices else self.form or "a text"

    def accepts(self, value: Any) -> bool:
        """Whether it is such a text."""
        if not isinstance(value, str) or len(value) > LONGEST_TEXT or (self.choices and value not in self.choices):
            return False
        return not self.pattern or re.fullmatch(self.pattern, value) is not None

    def check(self, value: Any, where: str) -> None:
        """Suggest the nearest choice where there are some."""
        if self.choices and isinstance(value, str):
            check_names([value], self.choices, where)
        super().check(value, where)


@dataclasses.dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    text = "true or false"

    def accepts(self, value: Any) -> bool:
        """Whether it is a truth value."""
        return isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class Maybe(Kind):
    """Another kind, or None."""

    kind: Kind

    @property
    def text(self) -> str:
        """The kind in words."""
        return f"{self.kind.text}, or null"

    def accepts(self, value: Any) -> bool:
        """Whether it is None or accepted by the other kind."""
        return value is None or self.kind.accepts(value)

    def check(self, value: Any, where: str) -> None:
        """Check what is not None."""
        super().check(value, where)
        if value is not None:
            self.kind.check(value, where)


@dataclasses.dataclass(frozen=True)
class Either(Kind):
    """The first of several kinds that accepts a value, which then is checked within."""

    kinds: tuple[Kind, ...]

    @property
    def text(self) -> str:
        """The kinds in words."""
        return " or ".join(kind.text for kind in self.kinds)

    def accepts(self, value: Any) -> bool:
        """Whether one kind accepts it."""
        return any(kind.accepts(value) for kind in self.kinds)

    def check(self, value: Any, where: str) -> None:
        """Check by the kind that accepts the value."""
        super().check(value, where)
        next(kind for kind in self.kinds if kind.accepts(value)).check(value, where)


@dataclasses.dataclass(frozen=True)
class ListOf(Kind):
    """A list of at least ``least`` and at most ``most`` values of a kind."""

    kind: Kind
    least: int = 0
    most: int = 10_000
    distinct: bool = False

    @property
    def text(self) -> str:
        """The kind in words."""
        count = {0: "", 1: " of at least one value"}.get(self.least, f" of {self.least} values")
        return f"a list{count}"

    def accepts(self, value: Any) -> bool:
        """Whether it is a list of such a length."""
        return isinstance(value, (list, tuple)) and self.least <= len(value) <= self.most

    def check(self, value: Any, where: str) -> None:
        """Check each value."""
        super().check(value, where)
        for number, item in enumerate(value):
            self.kind.check(item, f"{where}[{number}]")
            if self.distinct and item in value[:number]:
                raise ValueError(f"{where} must hold distinct values, got {_shown(item)} twice")


@dataclasses.dataclass(frozen=True)
class Pair(Kind):
    """A list of two values, each of its own kind."""

    first: Kind
    second: Kind
    text = "a list of 2 values"

    def accepts(self, value: Any) -> bool:
        """Whether it is a list of two."""
        return isinstance(value, (list, tuple)) and len(value) == 2

    def check(self, value: Any, where: str) -> None:
        """Check both."""
        super().check(value, where)
        for number, kind in enumerate((self.first, self.second)):
            kind.check(value[number], f"{where}[{number}]")


@dataclasses.dataclass(frozen=True)
class MapOf(Kind):
    """A mapping from texts to values of a kind."""

    kind: Kind
    least: int = 0

    @property
    def text(self) -> str:
        """The kind in words."""
        return f"a mapping{' with at least one entry' if self.least else ''}"

    def accepts(self, value: Any) -> bool:
        """Whether it is a mapping with enough entries."""
        return isinstance(value, Mapping) and len(value) >= self.least

    def check(self, value: Any, where: str) -> None:
        """Check each key and value."""
        super().check(value, where)
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: keys must be texts, got {_shown(key)}; write it in quotes")
            self.kind.check(item, f"{where}.{key}" if where else key)


@dataclasses.dataclass(frozen=True)
class Fields(Kind):
    """A mapping with known keys, each of its own kind; those of ``needed`` must be there."""

    kinds: Mapping[str, Kind]
    needed: Sequence[str] = ()
    name: str = ""

    @property
    def text(self) -> str:
        """The kind in words."""
        return f"a mapping with keys of {', '.join(self.kinds)}"

    def accepts(self, value: Any) -> bool:
        """Whether it is a mapping."""
        return isinstance(value, Mapping)

    def check(self, value: Any, where: str) -> None:
        """Check the names of the keys, then each value."""
        super().check(value, where or self.name)
        check_names(value, self.kinds, f"key of {where or self.name}")
        for key in self.needed:
            if key not in value:
                raise ValueError(f"{where or self.name}: the key {key!r} is missing")
        for key, item in value.items():
            self.kinds[key].check(item, f"{where}.{key}" if where else key)


@dataclasses.dataclass(frozen=True)
class Plain(Kind):
    """Any value of JSON whose numbers are finite, of bounded depth."""

    depth: int = 8
    text = "a finite number, a text, true, false, null, or a list or mapping of these"

    def accepts(self, value: Any) -> bool:
        """Whether it is such a value, also within."""
        if isinstance(value, (list, tuple)):
            return self.depth > 0 and all(Plain(self.depth - 1).accepts(item) for item in value)
        if isinstance(value, Mapping):
            within = all(isinstance(key, str) and Plain(self.depth - 1).accepts(item) for key, item in value.items())
            return self.depth > 0 and within
        if isinstance(value, float):
            return math.isfinite(value)
        return value is None or isinstance(value, (str, int))


def _shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
