"""One mixer or one task in full, for ``hf-memory list NAME``: what its docstrings, fields and presets say."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from hf_memory.cli.facts import MIXER_COLUMNS, chance_of, mixer_facts
from hf_memory.data.cards import docstring_of
from hf_memory.data.specification import length_bounds, specify
from hf_memory.mixers.auto import config_class
from hf_memory.models.configuration import MemoryConfig
from hf_memory.reports.formats import words
from hf_memory.tasks import task_class
from hf_memory.tasks.base import Length, Preset, Task

PRESET_COLUMNS = ("configuration", "length", "test lengths", "further tests", "knobs", "chance", "source")


def mixer_lines(key: str) -> Iterator[Text | Table]:
    """What a mixer computes, its facts, its own fields, and those that all mixers have."""
    config = config_class(key)
    yield Text(f"{key}: {law_of(importlib.import_module(config.__module__))}\n")
    facts = zip(MIXER_COLUMNS[1:], mixer_facts(key)[1:], strict=True)
    yield _table(f"{key} (width 64, 2 layers; numbers held per sequence)", ("fact", "value"), facts)
    meanings = meanings_of(config, MemoryConfig)
    common = [name for name in docstring_of(MemoryConfig)[1] if name in meanings]
    fields = {field.name: field for field in dataclasses.fields(config)}
    own = [name for name in meanings if name not in common]
    for title, names in ((f"Fields of {config.__name__}", own), ("Fields of every mixer", common)):
        rows = [(name, default_text(fields[name]), meanings[name]) for name in names]
        if rows:
            yield _table(title, ("field", "default", "meaning"), rows)


def task_lines(key: str) -> Iterator[Text | Table]:
    """What a task asks for, its facts, its knobs, and all of its configurations."""
    cls = task_class(key)
    text, meanings = docstring_of(cls)[0], meanings_of(cls, Task)
    yield Text(f"{key}: {law_of(importlib.import_module(cls.__module__))}\n\n{_plain(text)}\n")
    metric = words(cls.headline_metric)
    facts = {"memory": cls.category, "head": words(cls.head), "answers": cls.problem_type, "headline metric": metric}
    yield _table(f"{key}, version {cls.version}", ("fact", "value"), facts.items())
    knobs = [(field.name, default_text(field), meanings.get(field.name, "")) for field in dataclasses.fields(cls)]
    if knobs:
        yield _table("Knobs", ("knob", "default", "meaning"), knobs)
    title = f"Configurations (chance of {metric} at the longest training length)"
    yield _table(title, PRESET_COLUMNS, [preset_row(cls, name) for name in cls.presets])


def law_of(module: Any) -> str:
    """The first paragraph of a module's docstring, with the equations where they come next."""
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")
    return "\n\n".join(paragraphs[: 2 if len(paragraphs) > 1 and paragraphs[1].startswith("  ") else 1])


def preset_row(cls: type[Task], name: str) -> tuple[str, ...]:
    """A configuration of a task, in the order of ``PRESET_COLUMNS``."""
    preset: Preset = cls.presets[name]
    specification = specify(cls.key, name)
    lengths = ", ".join(map(str, preset.test_lengths))
    knobs = ", ".join(f"{knob}={value}" for knob, value in preset.knobs.items())
    tests = ", ".join(preset.tests)
    length = _length(specification.train_length)
    return name, length, lengths, tests, knobs, chance_of(specification), preset.source


def _length(length: Length) -> str:
    low, high = length_bounds(length)
    return str(low) if low == high else f"{low} to {high}"


def meanings_of(cls: type, base: type) -> Mapping[str, str]:
    """The documented fields of a config or a task: those of the base, then those of each class below it."""
    parents = [parent for parent in reversed(cls.__mro__) if issubclass(parent, base)]
    documented = {name: _plain(text) for parent in parents for name, text in docstring_of(parent)[1].items()}
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: text for name, text in documented.items() if name in names}


def _plain(text: str) -> str:
    """A docstring's text without its roles: a name in code stays in backticks."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))


def default_text(field: "dataclasses.Field[Any]") -> str:
    """The default of a field; empty where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "" if field.default is dataclasses.MISSING else repr(field.default)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose cells are texts, in which no bracket is markup."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
