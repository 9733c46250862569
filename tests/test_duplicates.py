"""Nothing is written twice: no two places share more than ten lines of the same logic."""

import re

import pytest

from tests.architecture.duplicates import MIN_LINES, find_duplicates
from tests.architecture.rules import ROOT, SOURCE_FOLDERS

ALLOWED: dict[frozenset[str], str] = {}
"""Pairs of files, or single files, that may share a longer run, each with the reason."""

ORIGINAL = '''
"""Words of one module."""
import torch


def moments(rows, weights, floor=1e-6):
    """Mean and deviation."""
    total = weights.sum()
    if total <= 0:
        raise ValueError("nothing weighs anything")
    mean = (rows * weights).sum() / total
    centred = rows - mean
    square = (centred * centred * weights).sum() / total
    deviation = square.clamp_min(floor).sqrt()
    for row in rows:
        if row > mean + 3 * deviation:
            raise ValueError(f"an outlier: {row}")
    return mean, deviation
'''
BODY = ORIGINAL[ORIGINAL.index("    total") :]
RENAMED = [("rows", "data"), ("weights", "shares"), ("mean", "centre"), ("square", "second"), ("total", "mass")]


def _renamed(text):
    for old, new in RENAMED:
        text = re.sub(rf"(?<![.\w]){old}\b", new, text)
    return text


def _method(body):
    lines = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
    return (
        "class Statistics:\n    unit = 1\n\n    def of(self, rows, weights, floor):\n        count = len(rows)\n"
        + lines
    )


COPIES = {
    "to the letter": ORIGINAL,
    "another name of the function": ORIGINAL.replace("moments", "statistics"),
    "renamed locals": _renamed(ORIGINAL),
    "comments, blank lines and a docstring between": ORIGINAL.replace(
        "    mean =", "    # The first moment.\n\n    mean ="
    ).replace("Mean and deviation.", "Two\n    moments."),
    "other layout": ORIGINAL.replace("(rows * weights).sum()", "(\n        rows\n        * weights\n    ).sum()"),
    "an import between": ORIGINAL.replace("    for row", "    import math\n\n    for row"),
    "part of a longer method": _method(BODY.replace("    return mean, deviation", "    return deviation")),
    "renamed in a method": _method(_renamed(BODY).replace("    for row", "    print(floor)\n    for row")),
}
OTHERS = {
    "another operator": ORIGINAL.replace("centred * centred", "centred + centred"),
    "another constant": ORIGINAL.replace("total <= 0", "total <= 1").replace("3 *", "4 *"),
    "another attribute": ORIGINAL.replace("clamp_min", "clamp_max"),
    "another variable in one place": ORIGINAL.replace("rows - mean", "rows - total"),
    "two variables that become one": _renamed(ORIGINAL).replace("second", "centre"),
    "another order": ORIGINAL.replace("    for row in rows:", "    centred = -centred\n    for row in rows:"),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_planted_copy_is_found(name):
    # A method shares ten lines of the body at the most, so a limit of seven asks for a part of it.
    limit = 7 if "method" in name else MIN_LINES
    found = find_duplicates({"one.py": ORIGINAL, "two.py": COPIES[name]}, limit)
    assert [duplicate.files for duplicate in found] == [{"one.py", "two.py"}]
    assert found[0].lines >= limit


@pytest.mark.parametrize("name", OTHERS)
def test_logic_that_differs_in_one_place_is_not_a_copy(name):
    assert find_duplicates({"one.py": ORIGINAL, "two.py": OTHERS[name]}) == []


def test_a_place_is_told_with_its_lines_and_once():
    found = find_duplicates({"one.py": ORIGINAL, "two.py": f"x = 1\n{ORIGINAL}"})
    assert [str(duplicate) for duplicate in found] == ["one.py:6-18 ~ two.py:7-19 (12 lines)"]
    found = find_duplicates({"one.py": ORIGINAL + _renamed(ORIGINAL)})
    assert [str(duplicate) for duplicate in found] == ["one.py:6-18 ~ one.py:24-36 (12 lines)"]


def test_ten_lines_are_no_duplicate_and_eleven_are():
    ten = "def f(x):\n" + "".join(f"    x += {step}\n" for step in range(9))
    assert find_duplicates({"one.py": ten, "two.py": ten}) == []
    eleven = ten + "    return x\n"
    assert [one.lines for one in find_duplicates({"one.py": eleven, "two.py": eleven})] == [11]


def test_the_project_says_everything_once():
    paths = [path for folder in (*SOURCE_FOLDERS, "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = find_duplicates({str(path.relative_to(ROOT)): path.read_text() for path in paths})
    assert [str(duplicate) for duplicate in found if duplicate.files not in ALLOWED] == []
    assert ALLOWED.keys() <= {duplicate.files for duplicate in found}
