"""How numbers and names are written for people: on pages, on cards and on the terminal.

Every text of a table comes from here, so that a number looks the same wherever it stands. CSV files hold numbers as
they are.
"""

import math
from collections.abc import Iterable, Sequence

UNKNOWN = "unknown"


def words(name: str) -> str:
    """A name of the code as words.

    >>> words("token_accuracy")
    'token accuracy'
    """
    return name.replace("_", " ")


def share(value: float) -> str:
    """A value of a metric, or a level.

    >>> share(0.98765)
    '0.988'
    """
    return f"{value:.3f}"


def fine_share(value: float) -> str:
    """A value of a single run, which is compared with those beside it.

    >>> fine_share(0.98765)
    '0.9877'
    """
    return f"{value:.4f}"


def percent(value: float) -> str:
    """A share of a whole.

    >>> percent(0.604)
    '60%'
    """
    return f"{value:.0%}"


def spread(values: Sequence[float]) -> str:
    """Mean of the values, with their range where there are several.

    >>> spread([0.5]), spread([0.5, 1.0])
    ('0.500', '0.750 (0.500, 1.000)')
    """
    mean = share(sum(values) / len(values))
    return mean if len(values) == 1 else f"{mean} {brackets(min(values), max(values))}"


def brackets(low: float, high: float, digits: int = 3) -> str:
    """Both ends of a range or an interval, behind the value that lies between them.

    >>> brackets(0.25, 1), brackets(0.25, 1, digits=2)
    ('(0.250, 1.000)', '(0.25, 1.00)')
    """
    return f"({low:.{digits}f}, {high:.{digits}f})"


def rate(value: float | None) -> str:
    """A learning rate, with the digits that tell it from its neighbours on a grid.

    >>> rate(3e-3), rate(4.64e-4), rate(None)
    ('0.003', '0.000464', 'unknown')
    """
    return UNKNOWN if value is None else f"{value:g}"


def count(value: float) -> str:
    """A number of parameters, bytes, steps, tokens, targets or seconds.

    >>> count(409600), count(12.6)
    ('409,600', '13')
    """
    return f"{value:,.0f}"


def span(values: Iterable[int | None]) -> str:
    """Numbers of several runs: their range, or the number that all of them share.

    >>> span([8, 8]), span([8, 4096, None]), span([None])
    ('8', '8 to 4,096', 'unknown')
    """
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = min(known), max(known)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def by_seed(values: Iterable[float]) -> str:
    """A value of each seed; an infinite number of steps is never, and what is not a number is none.

    >>> by_seed([0.95, 32, 1981, math.inf, math.nan])
    '0.95, 32, 1981, never, none'
    """
    return ", ".join(map(_of_seed, values))


def _of_seed(value: float) -> str:
    if not math.isfinite(value):
        return "never" if value > 0 else "none"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def versions(pairs: Iterable[tuple[str, str]]) -> str:
    """Names of packages with their versions, each once.

    >>> versions([("torch", "2.13"), ("numpy", "2.4"), ("torch", "2.13")])
    'numpy 2.4, torch 2.13'
    """
    return ", ".join(sorted({f"{name} {version}" for name, version in pairs}))


def size_in_bytes(size: float) -> str:
    """A size of memory.

    >>> size_in_bytes(256), size_in_bytes(4096), size_in_bytes(1536), size_in_bytes(3 * 2**20)
    ('256 B', '4 KB', '1.5 KB', '3 MB')
    """
    for unit in ("B", "KB", "MB"):
        if size < 1024 or unit == "MB":
            break
        size /= 1024
    return f"{size:.3g} {unit}"
