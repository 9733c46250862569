"""The table of tasks. Importing it needs numpy alone.

A task is one file here and one line in :data:`TASKS`; datasets, cards, metrics and tests run over the table.
"""

import importlib

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


def task_class(key: str) -> type[Task]:
    """The class of a task. Raises a ``ValueError`` that suggests the nearest key where there is none."""
    check_names([key], TASKS, "task")
    return getattr(importlib.import_module(f"hf_memory.tasks.{key}"), TASKS[key])


def make_task(key: str, **knobs: object) -> Task:
    """Construct a task by key, with knobs checked by name."""
    cls = task_class(key)
    check_names(knobs, cls.knob_names(), f"knob of task {key!r}")
    return cls(**knobs)


__all__ = ["IGNORE_INDEX", "TASKS", "Preset", "Segment", "Task", "make_task", "task_class"]
