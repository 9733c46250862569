"""The table of tasks. Importing it needs numpy alone.

A task is one file here and one line in :data:`TASKS`; datasets, cards, metrics and tests run over the table.
"""

import importlib
import re

from hf_memory.names import check_names
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

TASKS: dict[str, str] = {
    "associative_recall": "AssociativeRecall",
    "bit_parity": "BitParity",
    "compositional_mqar": "CompositionalMQAR",
    "context_recall": "ContextRecall",
    "copying": "Copying",
    "cycle_navigation": "CycleNavigation",
    "dyck": "Dyck",
    "even_pairs": "EvenPairs",
    "flip_flop": "FlipFlop",
    "group_word_problem": "GroupWordProblem",
    "induction": "Induction",
    "interval_counting": "IntervalCounting",
    "memorisation": "Memorisation",
    "modular_arithmetic": "ModularArithmetic",
    "mqar": "MQAR",
    "multi_stack": "MultiStack",
    "reverse": "Reverse",
    "selective_copying": "SelectiveCopying",
    "state_naming": "StateNaming",
    "state_recall": "StateRecall",
    "string_copy": "StringCopy",
    "updating_mqar": "UpdatingMQAR",
}
"""Task key (also the module's name) to class name."""

OUTSIDE: dict[str, str] = {}
"""Task key to the module of a task that :func:`register_task` has added."""


def task_class(key: str) -> type[Task]:
    """The class of a task. Raises a ``ValueError`` that suggests the nearest key where there is none."""
    check_names([key], TASKS, "task")
    if key in OUTSIDE:
        return getattr(importlib.import_module(OUTSIDE[key]), TASKS[key])
    return getattr(importlib.import_module(f"hf_memory.tasks.{key}"), TASKS[key])


def register_task(cls: type[Task]) -> str:
    """Make a task of another package one of this: in datasets, studies, reports, cards, on the command line.

    Its dataset is ``hf_memory/<key>``. Registering the same class again changes nothing.

    Args:
        cls: The class, with all that :class:`Task` asks for; it constructs without arguments.

    Returns:
        The key.

    Raises:
        ValueError: A key that is taken or no word in small letters, no presets, or a class of the wrong kind.
    """
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ValueError(f"task must be a subclass of Task, got {cls!r}")
    missing = sorted(name for name in ("key", "head", "category", "presets") if not hasattr(cls, name))
    missing += sorted(getattr(cls, "__abstractmethods__", ()))
    if missing or not cls.presets:
        raise ValueError(f"{cls.__name__} lacks {', '.join(missing) or 'presets'}; see hf_memory.tasks.base.Task")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", cls.key):
        raise ValueError(f"key of {cls.__name__} must be a word in small letters, got {cls.key!r}")
    place = (cls.__module__, cls.__name__)
    if cls.key in TASKS and place != (OUTSIDE.get(cls.key), TASKS[cls.key]):
        raise ValueError(f"task: the key {cls.key!r} is taken by {TASKS[cls.key]}")
    cls()
    TASKS[cls.key], OUTSIDE[cls.key] = cls.__name__, cls.__module__
    return cls.key


def make_task(key: str, **knobs: object) -> Task:
    """Construct a task by key, with knobs checked by name."""
    cls = task_class(key)
    check_names(knobs, cls.knob_names(), f"knob of task {key!r}")
    return cls(**knobs)


__all__ = ["IGNORE_INDEX", "TASKS", "Preset", "Segment", "Task", "make_task", "register_task", "task_class"]
