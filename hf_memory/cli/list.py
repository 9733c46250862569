"""The subcommand ``hf-memory list``: what there is, and one mixer or task in full."""

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hf_memory.cli.facts import MIXER_COLUMNS, STATE_LENGTHS, TASK_COLUMNS, default_device, mixer_facts, task_facts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_RIGHT = {*MIXER_COLUMNS[1:3], "chance"}


def show_mixers_and_tasks(
    name: Annotated[
        str | None, typer.Argument(help='Mixer or task to show in full, or a pattern such as "*net*"; all by default.')
    ] = None,
) -> None:
    """Show mixers and tasks: sources, state sizes, eigenvalues, backends, chance levels; and one of them in full.

    Example: `hf-memory list` or `hf-memory list mqar`
    """
    from hf_memory.cli.describe import mixer_lines, task_lines

    mixers, tasks = chosen(name)
    console = wide_console()
    if name is None or _is_pattern(name):
        for table in overview(mixers, tasks):
            console.print(table)
        return
    for keys, lines in ((mixers, mixer_lines), (tasks, task_lines)):
        for key in keys:
            for line in lines(key):
                console.print(line)


def chosen(name: str | None) -> tuple[list[str], list[str]]:
    """Keys of the mixers and of the tasks that have a name or fit a pattern; all where there is none.

    Raises:
        ValueError: There is none; the nearest is suggested.
    """
    from hf_memory.mixers.auto import model_keys
    from hf_memory.names import check_names
    from hf_memory.tasks import TASKS

    mixers, tasks = list(model_keys()), list(TASKS)
    if name is None:
        return mixers, tasks
    if not _is_pattern(name):
        check_names([name], [*mixers, *tasks], "mixer or task")
    found = tuple([key for key in keys if fnmatch.fnmatchcase(key, name)] for keys in (mixers, tasks))
    if not any(found):
        raise ValueError(f"no mixer and no task fits {name!r} (known: {', '.join([*mixers, *tasks])})")
    return found[0], found[1]


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def overview(mixer_keys: Sequence[str], task_keys: Sequence[str]) -> list["Table"]:
    """One line for each mixer, and one for each task."""
    from rich.table import Table

    lengths = " and ".join(map(str, STATE_LENGTHS))
    mixers = Table(
        title=f"Mixers (width 64, 2 layers; numbers held per sequence after {lengths} tokens; "
        f"backend in use on this machine's {default_device().type})"
    )
    tasks = Table(title="Tasks (chance of the headline metric at the training length)")
    for table, columns, keys, facts in (
        (mixers, MIXER_COLUMNS, mixer_keys, mixer_facts),
        (tasks, TASK_COLUMNS, task_keys, task_facts),
    ):
        for name in columns:
            table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
        for key in keys:
            table.add_row(*facts(key))
    return [table for table in (mixers, tasks) if table.row_count]


def wide_console() -> "Console":
    """A console that does not fold tables where the output is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)
