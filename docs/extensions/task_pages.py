"""The page of each task, and the page that compares all of them."""

import dataclasses
import importlib
import inspect
import math
from collections.abc import Sequence

from docs.extensions.docstrings import escape, heading, list_table, rest
from docs.extensions.measured import Outcome
from docs.extensions.mixer_pages import RESULTS_NOTE, labelled, outcome_table
from hf_memory.cli.describe import PRESET_COLUMNS, default_text, meanings_of, preset_row
from hf_memory.cli.facts import chance_of
from hf_memory.data.cards import docstring_of
from hf_memory.data.folders import loading_calls
from hf_memory.data.preview import show
from hf_memory.data.specification import Specification, length_bounds, specify
from hf_memory.reports.formats import share, words
from hf_memory.tasks import TASKS, task_class
from hf_memory.tasks.base import Task

_LONGEST = 1_024
"""Longest test length at which chance and heuristics are shown: beyond it some are estimated from very many tokens."""
_SHOWN = 64
"""Longest row that is shown as an example."""


def task_page(key: str, outcomes: Sequence[Outcome]) -> str:
    """The page of a task: law, example, chance, heuristics, configurations, loading, knobs, what was measured."""
    cls, specification = task_class(key), specify(key)
    module = importlib.import_module(cls.__module__)
    own = [outcome for outcome in outcomes if outcome.row.task == key]
    parts = [
        f".. _task-{key}:",
        heading(key, "="),
        rest(labelled(inspect.getdoc(module) or "")),
        list_table(("fact", "value"), fact_rows(cls, specification)),
        heading("The law", "-"),
        rest(labelled(docstring_of(cls)[0])),
        heading("A row", "-"),
        example(specification),
        heading("Chance and heuristics", "-"),
        levels(specification),
        heading("Configurations", "-"),
        presets(cls),
        heading("Load it", "-"),
        loading(specification),
        heading("Knobs", "-"),
        knobs(cls),
        heading("What was measured here", "-"),
        measured(own),
    ]
    return "\n\n".join(parts) + "\n"


def fact_rows(cls: type[Task], specification: Specification) -> list[tuple[str, str]]:
    """What kind of task it is."""
    where = "one position later" if cls.head == "causal" else "where the token stands"
    return [
        ("memory", cls.category),
        ("an answer is due", where),
        ("answers", cls.problem_type),
        ("symbols", f"{specification.task.vocab_size:,}"),
        ("headline metric", words(cls.headline_metric)),
        ("version of the rows", cls.version),
    ]


def example(specification: Specification) -> str:
    """A row of the task, shortened to the shortest length that its law takes where the default is long."""
    key, task = specification.task.key, specification.task
    low = length_bounds(specification.train_length)[0]
    given = {} if task.row_length(low) <= _SHOWN else {"length": short_length(task, low), "test_lengths": []}
    try:
        text = show(key, num_rows=1, width=76, **given)
    except ValueError:  # a configuration whose own segments allow no other length
        text = "\n".join(show(key, num_rows=1, width=76).splitlines()[:7])
    flags = " ".join(f"{name}={value}".replace(" ", "") for name, value in given.items())
    command = f"hf-memory data show {key} --num-rows 1" + (f" --data {flags}" if flags else "")
    return (
        f".. code-block:: bash\n\n   {command}\n\n.. code-block:: text\n\n{indented(text)}\n\n"
        "Under each token stands its label, or a dot where nothing is due, and a caret where metrics count."
    )


def short_length(task: Task, low: int) -> int:
    """The smallest length of at most that of training whose rows fill half of a screen, or training's own."""
    for length in range(1, low):
        try:
            task.validate_length(length)
        except ValueError:
            continue
        if task.row_length(length) >= _SHOWN // 4:
            return length
    return low


def levels(specification: Specification) -> str:
    """Chance level and heuristics of the headline metric at the trained length and at those of the tests."""
    task, metric = specification.task, specification.task.headline_metric
    trained = length_bounds(specification.train_length)[1]
    tests = [length for length in task.presets[specification.preset].test_lengths if length <= _LONGEST]
    lengths = sorted({trained, *tests[-1:]})
    columns = [task.baselines(length) for length in lengths]
    chance = [task.chance_level(metric, length) for length in lengths]
    rows = [("**chance**", *("unknown" if math.isnan(level) else share(level) for level in chance))]
    names = dict.fromkeys(name for column in columns for name in column)
    rows += [(words(name), *(_level(column.get(name)) for column in columns)) for name in names]
    head = (words(metric), *(f"length {length:,}" for length in lengths))
    return "\n\n".join(
        [
            f"Of the configuration ``{specification.preset}``. Chance is the best of all rules that remember "
            "nothing of a row; the others are rules that remember little, and do not solve the task by right.",
            list_table(head, rows),
        ]
    )


def _level(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else share(value)


def presets(cls: type[Task]) -> str:
    """The named settings; the first is the default."""
    rows = []
    for name in cls.presets:
        first, *cells = preset_row(cls, name)
        rows.append((f"``{first}``", *(escape(cell) for cell in cells)))
    return list_table((*PRESET_COLUMNS[:-2], "chance", "source"), rows, "wide")


def loading(specification: Specification) -> str:
    """The calls that load the default configuration."""
    key, preset = specification.task.key, specification.preset
    ours, plain = loading_calls(specification)
    return (
        f".. code-block:: python\n\n   import hf_memory\n\n   rows = {ours}\n   stream = "
        f'hf_memory.load_dataset("hf_memory/{key}", "{preset}", split="train", streaming=True)  # rows without end\n\n'
        f"After ``hf-memory data build {key} --config {preset}``, ``{plain}`` finds the same rows."
    )


def knobs(cls: type[Task]) -> str:
    """The knobs of the law, which ``load_dataset`` and ``--data`` take by name."""
    meanings = meanings_of(cls, Task)
    rows = [
        (f"``{field.name}``", f"``{default_text(field)}``", escape(meanings.get(field.name, "")))
        for field in dataclasses.fields(cls)
    ]
    return list_table(("knob", "default", "meaning"), rows) if rows else "It has none."


def measured(outcomes: Sequence[Outcome]) -> str:
    """The arms of committed studies on a task."""
    if not outcomes:
        return "No committed study has rows of it yet."
    table = outcome_table(outcomes, "arm", _arm)
    return "\n\n".join([table, RESULTS_NOTE])


def _arm(outcome: Outcome) -> str:
    key = outcome.row.mixer
    link = f":ref:`{key} <mixer-{key}>`"
    return link if outcome.row.arm == key else f"{outcome.row.arm}, {link}"


def tasks_page() -> str:
    """All tasks beside each other."""
    rows = []
    for key in TASKS:
        cls = task_class(key)
        first = (inspect.getdoc(importlib.import_module(cls.__module__)) or "").partition("\n\n")[0]
        metric, chance = words(cls.headline_metric), chance_of(specify(key))
        law = escape(" ".join(first.split()))
        rows.append((f":ref:`{key} <task-{key}>`", law, cls.category, metric, chance, str(len(cls.presets))))
    head = ("task", "what is asked", "memory", "headline metric", "chance", "configurations")
    intro = "Chance is that of the headline metric at the training length of the first configuration."
    toctree = "\n".join([".. toctree::", "   :hidden:", "", *(f"   {key}" for key in TASKS)])
    return "\n\n".join([heading("Tasks", "="), intro, list_table(head, rows, "wide"), toctree]) + "\n"


def indented(text: str) -> str:
    """Lines of a block of code."""
    return "\n".join(f"   {line}".rstrip() for line in text.splitlines())
