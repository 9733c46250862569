"""The source code behind a number: which modules take part in it, and a digest that changes where they do."""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_memory.models.modeling import Mixer
from hf_memory.ops.backends.dispatch import KERNELS
from hf_memory.tasks.base import Task

PACKAGE = "hf_memory"
_SCIENCE = (f"{PACKAGE}.mixers.", f"{PACKAGE}.ops.", f"{PACKAGE}.tasks.")
_CHOICE = f"{PACKAGE}.ops.backends.dispatch"


def collect(roots: Iterable[str]) -> dict[str, str]:
    """Source text of the modules of the package that the given ones import, themselves included, by module name.

    Raises:
        ValueError: A module has no source file.
    """
    sources: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in sources:
            sources[module] = _source(module)
            waiting.extend(_own_imports(ast.parse(sources[module])))
    return sources


def code_digest(model: Any, task: Task) -> str:
    """Digest of the code that makes a model's numbers on a task, 16 hexadecimal digits.

    It covers the model's mixers, their operations with the compiled loops of the CPU, and the task. Docstrings,
    comments, imports and the places of files do not count; the spine, which all models share, is held by tests.
    """
    mixers = {type(module).__module__ for module in model.modules() if isinstance(module, Mixer)}
    return _digest(frozenset({*mixers, type(task).__module__}))


@functools.cache
def _digest(roots: frozenset[str]) -> str:
    modules = {module for module in collect(roots) if module in roots or module.startswith(_SCIENCE)} - {_CHOICE}
    operations = {module.rpartition(".")[2] for module in modules if module.startswith(f"{PACKAGE}.ops.")}
    kernels = [module for (op, backend), module in KERNELS.items() if op in operations and backend == "numba"]
    modules |= {module for module in collect(kernels) if module.startswith(_SCIENCE)} - {_CHOICE}
    parts = sorted(hashlib.sha256(meaning(_source(module)).encode()).hexdigest() for module in modules)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def meaning(text: str) -> str:
    """A source without what does not change its numbers: docstrings, comments, layout, imports."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [part for part in body if not _is_silent(part)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_silent(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))


def _source(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} has no source file")
    return Path(spec.origin).read_text(encoding="utf-8")


def _own_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{PACKAGE}."):
            yield node.module
