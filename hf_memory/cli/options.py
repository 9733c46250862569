"""Arguments and options that several commands share."""

from collections.abc import Sequence
from typing import Annotated

import typer

TASK_HELP = "Key of the task, as `hf-memory list` shows it."

TaskName = Annotated[str, typer.Argument(help=TASK_HELP)]
Config = Annotated[str | None, typer.Option(help="Configuration of the task's dataset; its first one by default.")]
Configs = Annotated[list[str] | None, typer.Option("--config", help="Configuration; may be given several times.")]
Every = Annotated[bool, typer.Option("--all", help="All configurations of the task.")]
Keywords = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="NAME=VALUE...", help="Dataset keywords and task knobs, one or more."),
]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes that generate.")]


def chosen_configs(task: str, given: Sequence[str] | None, every: bool) -> list[str] | None:
    """The configurations that were asked for; None for the task's default."""
    from hf_memory.data.parquet import config_names

    if every and given:
        raise typer.BadParameter("give --config or --all, not both")
    return config_names(task) if every else list(given) if given else None
