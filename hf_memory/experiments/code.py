"""The source code behind a number: which modules take part in it, and a digest that changes where they do."""

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from hf_memory.models.modeling import Mixer
from hf_memory.ops.backends.dispatch import KERNELS
from hf_memory.tasks.base import Task

PACKAGE = "hf_memory"
_SCIENCE = (f"{PACKAGE}.mixers.", f"{PACKAGE}.ops.", f"{PACKAGE}.tasks.")
_CHOICE = f"{PACKAGE}.ops.backends.dispatch"


def collect(roots: Iterable[str]) -> dict[str, str]:
    """Source text of the modules that the given ones import, themselves included, by module name.

    Followed are imports of this package, and in a module of another one those of its own package.

    Raises:
        ValueError: A module has no source file.
    """
    sources: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in sources:
            sources[module] = _source(module)
            waiting.extend(_own_imports(module, ast.parse(sources[module])))
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
    modules = {module for module in collect(roots) if module in roots or _is_science(module)} - {_CHOICE}
    operations = {module.rpartition(".")[2] for module in modules if module.startswith(f"{PACKAGE}.ops.")}
    kernels = [module for (op, backend), module in KERNELS.items() if op in operations and backend == "numba"]
    modules |= {module for module in collect(kernels) if _is_science(module)} - {_CHOICE}
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


def homes(module: str, node: ast.ImportFrom) -> dict[str, list[ast.alias]]:
    """The modules from which a statement imports, by full name; public names of the package count for their home."""
    package = module if _is_package(module) else module.rpartition(".")[0]
    source = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
    if source != PACKAGE:
        return {source: node.names}
    found: dict[str, list[ast.alias]] = {}
    for alias in node.names:
        value = getattr(sys.modules[PACKAGE], alias.name)
        found.setdefault(getattr(value, "__module__", PACKAGE), []).append(alias)
    return found


def _is_science(module: str) -> bool:
    """Whether a module makes numbers: mixers, operations and tasks, and all of another package."""
    return module.startswith(_SCIENCE) or module.partition(".")[0] != PACKAGE


def _is_package(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def _source(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} has no source file")
    return Path(spec.origin).read_text(encoding="utf-8")


def _own_imports(module: str, tree: ast.Module) -> Iterator[str]:
    roots = {PACKAGE, module.partition(".")[0]}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (home for home in homes(module, node) if home.partition(".")[0] in roots and home != PACKAGE)
