"""Finds logic that was written twice: runs of statements that are the same but for names.

A run is some consecutive statements of one body, at any depth; its length is the number of its source lines that hold
code. Docstrings, comments, blank lines and imports do not count, and do not part a run. Two runs are the same when one
becomes the other by renaming, one name for one: locals, arguments, and also the functions and classes that are used,
since what another function is called with could have been an argument. All else must be equal: constants, operators,
attributes and keywords. So tables are the same only if their entries are, and steps of one shape are not if one of them
reads another variable.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, combinations

MIN_LINES = 11
NAMED = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.ExceptHandler: "name",
}
"""Where a node holds a name that a copy may change."""

Known = dict[ast.AST, tuple[int, list[str]]]


@dataclass(frozen=True)
class Statement:
    """A statement: its shape without names, and the names in the order of its tree."""

    start: int
    end: int
    shape: int
    names: tuple[str, ...]


@dataclass
class Body:
    """Statements that follow each other, in a file whose lines of code are summed up to each line."""

    file: str
    statements: list[Statement]
    sums: list[int] = field(repr=False)

    def lines(self, start: int, count: int) -> int:
        """Lines of code of a run."""
        _, first, last = self.span(start, count)
        return self.sums[last] - self.sums[first - 1]

    def span(self, start: int, count: int) -> tuple[str, int, int]:
        """File, first and last line of a run."""
        return self.file, self.statements[start].start, self.statements[start + count - 1].end


@dataclass(frozen=True)
class Duplicate:
    """Two places, each a file with its first and last line, and the lines of code of the longer one."""

    lines: int
    first: tuple[str, int, int]
    second: tuple[str, int, int]

    def __str__(self) -> str:
        places = [f"{file}:{start}-{end}" for file, start, end in (self.first, self.second)]
        return f"{places[0]} ~ {places[1]} ({self.lines} lines)"

    @property
    def files(self) -> frozenset[str]:
        """The files of the two places, or the one."""
        return frozenset({self.first[0], self.second[0]})

    def holds(self, other: "Duplicate") -> bool:
        """Whether the places of the other lie within those of this one."""
        ours = self.first, self.second
        return any(
            all(a[0] == b[0] and a[1] <= b[1] and b[2] <= a[2] for a, b in zip(ours, places, strict=True))
            for places in ((other.first, other.second), (other.second, other.first))
        )


def find_duplicates(files: Mapping[str, str], min_lines: int = MIN_LINES) -> list[Duplicate]:
    """All pairs of places with the same run of at least ``min_lines`` lines of code in one of them, longest first.

    Args:
        files: Name of a file to its text.
        min_lines: Shortest run that counts.
    """
    bodies = [body for name, text in files.items() for body in bodies_of(name, text)]
    found = {
        Duplicate(max(first.lines(i, count), second.lines(j, count)), first.span(i, count), second.span(j, count))
        for (first, i), (second, j), least in candidates(bodies, min_lines)
        if (count := common_run(first, i, second, j)) >= least
    }
    outermost: list[Duplicate] = []
    for duplicate in sorted(found, key=lambda one: (-one.lines, one.first, one.second)):
        if not any(longer.holds(duplicate) for longer in outermost):
            outermost.append(duplicate)
    return outermost


def candidates(bodies: list[Body], min_lines: int) -> Iterator[tuple[tuple[Body, int], tuple[Body, int], int]]:
    """Pairs of starts whose next statements have the same shapes, with how many make up ``min_lines`` in one place."""
    starts = defaultdict(list)
    for body in bodies:
        for start in range(len(body.statements)):
            shapes: tuple[int, ...] = ()
            for count, statement in enumerate(body.statements[start:], 1):
                shapes = (*shapes, statement.shape)
                enough = body.lines(start, count) >= min_lines
                starts[shapes].append((body, start, enough))
                if enough:
                    break
    for shapes, places in starts.items():
        for (first, i, long), (second, j, also_long) in combinations(places, 2):
            if (long or also_long) and (first is not second or abs(i - j) >= len(shapes)):
                yield (first, i), (second, j), len(shapes)


def common_run(first: Body, i: int, second: Body, j: int) -> int:
    """How many statements from these two starts on are the same but for a renaming; the two do not overlap."""
    apart = abs(i - j) if first is second else len(first.statements)
    there: dict[str, str] = {}
    back: dict[str, str] = {}
    count = 0
    for left, right in zip(first.statements[i : i + apart], second.statements[j : j + apart], strict=False):
        pairs = list(zip(left.names, right.names, strict=True)) if left.shape == right.shape else None
        if pairs is None or any(there.setdefault(a, b) != b or back.setdefault(b, a) != a for a, b in pairs):
            break
        count += 1
    return count


def bodies_of(name: str, text: str) -> Iterator[Body]:
    """The bodies of a file: its own, and those of all compound statements."""
    bodies = list(statement_lists(ast.parse(text)))
    sums = sum_code_lines(text, [child for body in bodies for child in body if is_silent(child)])
    known: Known = {}
    for body in bodies:
        yield Body(name, [statement_of(child, known) for child in body if not is_silent(child)], sums)


def statement_lists(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements below a node, at any depth, outer ones first."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, name, None) or []
        if children and isinstance(children[0], ast.stmt):
            yield children
        for child in children:
            yield from statement_lists(child)


def statement_of(node: ast.stmt, known: Known) -> Statement:
    """The statement of a tree; what was read of it before is ``known``."""
    names: list[str] = []
    shape = shape_of(node, names, known)
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
    return Statement(first, node.end_lineno or first, shape, tuple(names))


def shape_of(value: object, names: list[str], known: Known) -> int:
    """A number that is the same for trees that differ in names at most; the names are appended to the list."""
    if isinstance(value, list):
        return hash(tuple([shape_of(item, names, known) for item in value if not is_silent(item)]))
    if not isinstance(value, ast.AST):
        return hash((type(value), value))
    if value in known:
        shape, inner = known[value]
        names.extend(inner)
        return shape
    start, own = len(names), NAMED.get(type(value))
    parts = [hash(type(value))]
    for name in value._fields:
        child = getattr(value, name, None)
        if name == own and isinstance(child, str):
            names.append(child)
        elif name not in ("ctx", "type_comment"):
            parts.append(shape_of(child, names, known))
    shape = hash(tuple(parts))
    if isinstance(value, ast.stmt):
        known[value] = shape, names[start:]
    return shape


def is_silent(node: object) -> bool:
    """Whether a statement does not count: an import, or a text such as a docstring."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Import | ast.ImportFrom)


def sum_code_lines(text: str, silent: list[ast.stmt]) -> list[int]:
    """Lines of code up to each line, which count from 1: not blank, not a comment, in no silent statement."""
    lines = ["", *(line.strip() for line in text.split("\n"))]
    for node in silent:
        end = (node.end_lineno or node.lineno) + 1
        lines[node.lineno : end] = [""] * (end - node.lineno)
    return list(accumulate(line != "" and not line.startswith("#") for line in lines))
