"""The reference: public names of the package, its operations, and its commands."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import typer

import hf_memory
from docs.extensions.docstrings import escape, heading, list_table
from hf_memory import data, ops, testing
from hf_memory.cli.app import PROGRAM, app
from hf_memory.mixers.auto import BASES, model_keys

_ROOM_TITLES = {
    "hf_memory.models": "Models",
    "hf_memory.mixers": "Mixers by key",
    "hf_memory.tasks": "Tasks",
    "hf_memory.extensions": "Extensions",
    "hf_memory.data": "Data",
    "hf_memory.experiments": "Training and evaluation",
    "hf_memory.ops": "Backends",
    "hf_memory.testing": "Contracts",
}


def public_names() -> dict[str, list[str]]:
    """Where each public name is defined, by room: those of the package, of ``data`` and of ``testing``.

    The classes of single mixers stand on the pages of these.
    """
    of_mixers = {name for name in dir(hf_memory) if name.startswith("Memory") and _is_of_mixer(name)}
    found: dict[str, list[str]] = {room: [] for room in _ROOM_TITLES}
    places = [(hf_memory, name) for name in dir(hf_memory) if name not in of_mixers]
    places += [(data, name) for name in data.__all__]
    places += [(testing, name) for name in dir(testing)]
    bases = [(importlib.import_module(base.__module__), base.__name__) for base in BASES]
    for owner, name in [*places, *bases]:
        thing = getattr(owner, name)
        if name.startswith("_") or not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        room = ".".join(thing.__module__.split(".")[:2])
        full = f"{thing.__module__}.{thing.__qualname__}"
        if room in found and full not in found[room]:
            found[room].append(full)
    return {room: names for room, names in found.items() if names}


def _is_of_mixer(name: str) -> bool:
    return any(getattr(hf_memory, name).__module__.endswith(f".mixers.{key}") for key in model_keys())


def api_page() -> str:
    """The public names, room by room."""
    parts = [heading("Public names", "=")]
    parts.append(
        "What ``hf_memory`` names can be imported from it; other names come from the module that is shown. Config and "
        "model classes of a mixer stand on its own page."
    )
    for room, names in public_names().items():
        parts.append(heading(_ROOM_TITLES[room], "-"))
        parts += [_directive(name) for name in names]
    return "\n\n".join(parts) + "\n"


def _directive(full: str) -> str:
    module, _, name = full.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    if inspect.isclass(thing):
        return f".. autoclass:: {full}\n   :members:"
    return f".. autofunction:: {full}"


def operations() -> Iterator[tuple[ModuleType, list[str]]]:
    """Files of operations, and the public functions that each defines."""
    for info in pkgutil.iter_modules(ops.__path__):
        if info.name.startswith("_") or info.ispkg:
            continue
        module = importlib.import_module(f"{ops.__name__}.{info.name}")
        names = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
        ]
        yield module, names


def operations_page() -> str:
    """The recurrences as functions."""
    parts = [heading("Operations", "="), f".. automodule:: {ops.__name__}"]
    for module, names in operations():
        short = module.__name__.rpartition(".")[2]
        parts += [heading(short, "-"), f".. automodule:: {module.__name__}"]
        parts += [f".. autofunction:: {module.__name__}.{name}" for name in names]
    return "\n\n".join(parts) + "\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Each command with its full name, those of groups too."""
    yield from _commands(typer.main.get_command(app), PROGRAM)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children:
        yield name, command
    for child, below in children.items():
        yield from _commands(below, f"{name} {child}")


def commands_page() -> str:
    """The commands with their arguments and options."""
    parts = [heading("Commands", "=")]
    parts.append(escape(str(app.info.epilog)) + " ``hf-memory train --help`` lists the arguments of training.")
    for name, command in sorted(commands()):
        text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
        parts += [heading(name, "-"), escape(text.strip())]
        rows = [
            (_spelled(given), escape(_help(given)), _default(given))
            for given in command.params
            if given.name not in ("help", "include")
        ]
        if rows:
            parts.append(list_table(("argument", "meaning", "default"), rows))
        shown = example.strip().split("`")[1::2]
        if shown:
            parts.append(".. code-block:: bash\n\n" + "\n".join(f"   {line}" for line in shown))
    return "\n\n".join(parts) + "\n"


def _spelled(given: Any) -> str:
    return ", ".join(f"``{name}``" for name in given.opts) if given.opts[0].startswith("-") else f"``{given.name}``"


def _help(given: Any) -> str:
    return " ".join((getattr(given, "help", None) or "").split())


def _default(given: Any) -> str:
    default = given.default
    return "" if default in (None, False, "", (), []) or callable(default) else f"``{default}``"


def reference_page() -> str:
    """The entry of the reference."""
    toctree = ".. toctree::\n\n   api\n   operations\n   commands"
    return "\n\n".join([heading("Reference", "="), toctree]) + "\n"
