"""Finds functions and modules that are too long to be read at once."""

import ast
from collections.abc import Mapping

MAX_FUNCTION = 60
MAX_MODULE = 420


def size_faults(files: Mapping[str, str]) -> list[str]:
    """Functions and modules above the limits, in the lines that a reader sees: signature, docstring and blanks count.

    Args:
        files: Name of a file to its text.
    """
    faults = []
    for name, text in files.items():
        if (length := len(text.splitlines())) > MAX_MODULE:
            faults.append(f"{name} has {length} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION:
                    faults.append(f"{name}: {node.name} has {length} lines")
    return faults
