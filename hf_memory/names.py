"""Names that come from outside, held against those that are known."""

import difflib
from collections.abc import Iterable


def check_names(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise a ``ValueError`` for the first name in ``given`` that is not in ``known``, suggesting the nearest."""
    known = tuple(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown {kind}: {name!r}{hint} (known: {', '.join(map(repr, known))})")
