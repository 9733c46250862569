"""Mixers and tasks of other packages and of single files.

An installed package names them as entry points::

    [project.entry-points."hf_memory.mixers"]
    leaky = "my_package.leaky:MemoryLeakyConfig"
    [project.entry-points."hf_memory.tasks"]
    cycles = "my_package.cycles:Cycles"

and a file is named by ``--include`` on the command line, or by the variable ``HF_MEMORY_INCLUDE`` (several with the
separator of paths), which the processes of a sweep inherit. What a file defines is registered: each subclass of
``MemoryConfig`` with the mixer of its name, and each task.
"""

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hf_memory.tasks import register_task
from hf_memory.tasks.base import Task

logger = logging.getLogger(__name__)

VARIABLE = "HF_MEMORY_INCLUDE"
MIXER_GROUP, TASK_GROUP = "hf_memory.mixers", "hf_memory.tasks"

REFUSED: dict[str, str] = {}
"""Entry points that could not be registered, by what they name, and why."""


def load_extensions(groups: Sequence[str] = (MIXER_GROUP, TASK_GROUP)) -> None:
    """Register what installed packages and the variable name. An entry that fails is logged, and the others stand.

    Args:
        groups: Groups of entry points; without torch tasks alone can be registered.
    """
    for group in groups:
        for entry in importlib.metadata.entry_points(group=group):
            try:
                _register(entry.load())
            except Exception as error:  # noqa: BLE001 (another package's code, whatever is wrong with it)
                REFUSED[entry.value] = f"{type(error).__name__}: {error}"
                logger.warning("%s of %s was not registered: %s", entry.value, group, REFUSED[entry.value])
    for path in _named():
        include(path)


def include(path: str | os.PathLike[str]) -> list[str]:
    """Run a Python file and register the mixers and tasks that it defines.

    Returns:
        The keys.

    Raises:
        ValueError: There is no such file, it fails, or it defines nothing to register.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file() or file.suffix != ".py":
        raise ValueError(f"include: {str(path)!r} is no Python file")
    keys = [_register(value) for value in _leaves(_load(file))]
    if not keys:
        raise ValueError(
            f"include: {file} defines no mixer and no task; a mixer is a MemoryConfig and a Mixer of one name, and a "
            "task a subclass of Task"
        )
    return keys


def include_everywhere(paths: Sequence[str]) -> None:
    """Include files here, and in all processes that this one starts."""
    for path in paths:
        include(path)
    full = [str(Path(path).expanduser().resolve()) for path in paths]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*_named(), *full]))


def _named() -> list[str]:
    """The files of the variable."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def _load(file: Path) -> ModuleType:
    """The module of a file, under a name that no other file has, by which its classes can be pickled."""
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"include: {file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code, whatever is wrong with it
        del sys.modules[name]
        raise ValueError(f"include: {file} failed: {type(error).__name__}: {error}") from error
    return module


def _leaves(module: ModuleType) -> Iterator[type]:
    """The configs and tasks that a module defines itself, in their order."""
    for value in list(vars(module).values()):
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        is_task = issubclass(value, Task) and not getattr(value, "__abstractmethods__", ())
        # A file that defines a config has imported the spine; without torch there is none.
        if is_task or any(base.__module__ == "hf_memory.models.configuration" for base in value.__mro__):
            yield value


def _register(value: Any) -> str:
    """Register a config class with the mixer of its name, or a task."""
    if isinstance(value, type) and issubclass(value, Task):
        return register_task(value)
    from hf_memory.mixers.auto import register_mixer

    name = getattr(value, "__name__", str(value)).removeprefix("Memory").removesuffix("Config") + "Mixer"
    mixer: Any = getattr(sys.modules.get(getattr(value, "__module__", "")), name, None)
    return register_mixer(value, mixer)
