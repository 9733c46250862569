"""The one rule of the command line that its parsers lack: a flag that takes ``name=value`` takes several."""

from collections.abc import Sequence

PAIRS = ("--data", "--model")
"""Flags that take ``name=value``."""


def repeat_flags(argv: Sequence[str]) -> list[str]:
    """Give each ``name=value`` that follows ``--data`` or ``--model`` a flag of its own.

    What follows belongs to the flag as long as it looks like ``name=value``; the rest of the words stay as they are,
    and so does everything after ``--``.

    >>> repeat_flags(["export", "--data", "length=6", "num_test=8", "bit_parity", "--data=seed=1"])
    ['export', '--data', 'length=6', '--data', 'num_test=8', 'bit_parity', '--data', 'seed=1']
    """
    words: list[str] = []
    flag = ""
    for position, word in enumerate(argv):
        name, equals, rest = word.partition("=")
        if word == "--":
            return [*words, *argv[position:]]
        if name in PAIRS:
            flag = name
            words += [flag, rest] if equals else [flag]
        elif flag and equals and name.isidentifier():
            words += [word] if words[-1] == flag else [flag, word]
        else:
            flag = ""
            words.append(word)
    return words
