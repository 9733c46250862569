"""Names that come from outside: held against those that are known, and made safe for files and tables."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable

LONGEST_NAME = 120
"""Letters of a file name without its ending; file systems take 255 bytes."""

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?<!\.)")
_MARKED = re.compile(r"-[0-9a-f]{12}")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def check_names(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise a ``ValueError`` for the first name in ``given`` that is not in ``known``, suggesting the nearest."""
    known = tuple(known)
    for name in given:
        if name not in known:
            near = nearest(str(name), map(str, known))
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"unknown {kind}: {name!r}{hint} (known: {', '.join(map(repr, known))})")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like another one, in whatever case it is written; None where none is near.

    Of numbers it is the closest one.

    >>> nearest("Width", ["width", "depth"]), nearest("65", ["8", "16", "64"])
    ('width', '64')
    """
    lower = {one.lower(): one for one in known}
    numbers = [one for one in lower if _NUMBER.fullmatch(one)] if _NUMBER.fullmatch(name.lower()) else []
    found = sorted(numbers, key=lambda one: abs(float(one) - float(name))) or difflib.get_close_matches(
        name.lower(), lower, n=1
    )
    return lower[found[0]] if found else None


def file_name(*parts: object) -> str:
    """The name of a file, without its ending, from names that came from outside: records, knobs, arms, repositories.

    It is a word of letters, digits, ``_``, ``-`` and ``.`` that begins with none of the last two, so that it stays in
    its folder whatever the parts hold. What is such a word already stays as it is; any other ends in a digest of the
    parts, so that unlike parts never share a file.

    >>> file_name("r1_bit_parity", "cpu"), file_name("../p")
    ('r1_bit_parity-cpu', '_p-ebeba4b8768f')
    """
    words = [str(part) for part in parts]
    name = "-".join(words)
    is_clear = len(words) == 1 or not any("-" in word or not word for word in words)
    if is_clear and len(name) <= LONGEST_NAME and _WORD.fullmatch(name) and not _MARKED.fullmatch(name[-13:]):
        return name
    mark = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]
    clean = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[: LONGEST_NAME - 13].strip("-") or "_"
    return f"{clean}-{mark}"


def table_text(text: str) -> str:
    """A text as a cell of a CSV file, in which no program reads a formula: such a text gets a leading ``'``.

    It is for columns of text; numbers may begin with a minus.

    >>> table_text("=1+1"), table_text("lstm")
    ("'=1+1", 'lstm')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def by_number(name: str) -> list[tuple[int, str]]:
    """Key by which names stand in the order of the numbers in them.

    >>> sorted(["r10_copying", "r2_parity", "r1_parity"], key=by_number)
    ['r1_parity', 'r2_parity', 'r10_copying']
    """
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]
