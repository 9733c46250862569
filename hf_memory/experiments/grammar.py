"""What the command line's parsers lack: a flag that takes several ``name=value``, and one that all commands take."""

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


def take_includes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take ``--include FILE`` out of the words of any command, wherever it stands before a ``--``.

    Returns:
        The files, and the other words.

    Raises:
        ValueError: The flag stands without a file.

    >>> take_includes(["train", "--include", "leaky.py", "--mixer", "leaky"])
    (['leaky.py'], ['train', '--mixer', 'leaky'])
    """
    files: list[str] = []
    words: list[str] = []
    waiting = list(argv)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return files, [*words, word, *waiting]
        if name != "--include":
            words.append(word)
        elif equals or waiting:
            files.append(value if equals else waiting.pop(0))
        else:
            raise ValueError("include: give a Python file, as in --include my_mixer.py")
    return files, words
