"""Arguments and options that several commands share."""

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from accelerate import Accelerator

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
Lengths = Annotated[
    str, typer.Option(help="Test lengths in place of the configuration's, 64,100 or 64..1048576, which doubles.")
]
RemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that lies beside the weights, where the mixer needs it.")
]


def chosen_configs(task: str, given: Sequence[str] | None, every: bool) -> list[str] | None:
    """The configurations that were asked for; None for the task's default."""
    from hf_memory.data.parquet import config_names

    if every and given:
        raise typer.BadParameter("give --config or --all, not both")
    return config_names(task) if every else list(given) if given else None


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers of a list: ``64,100``, or ``64..4096``, which doubles.

    >>> numbers("64..300", "lengths"), numbers("2,8", "sizes"), numbers("", "gaps")
    ((64, 128, 256), (2, 8), ())

    Raises:
        ValueError: The text is no such list.
    """
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        span = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if span is None or (span[2] and not 0 < int(span[1]) <= int(span[2])):
            raise ValueError(f"{name} must be numbers such as 64,128 or a range such as 64..4096, got {part!r}")
        value, last = int(span[1]), int(span[2] or span[1])
        found.append(value)
        while span[2] and (value := 2 * value) <= last:
            found.append(value)
    return tuple(dict.fromkeys(found))


def dataset_keywords(data: Sequence[str] | None, lengths: str) -> dict[str, Any]:
    """What ``--data`` and ``--lengths`` say of a dataset. Raises a ``ValueError`` where both name test lengths."""
    from hf_memory.experiments.arguments import parse_fields

    keywords = parse_fields(data or [], "data")
    if not lengths:
        return keywords
    if "test_lengths" in keywords:
        raise ValueError("test_lengths: give --lengths or --data test_lengths=..., not both")
    return {**keywords, "test_lengths": list(numbers(lengths, "lengths"))}


def launched_processes() -> "Accelerator":
    """The processes that torchrun or `accelerate launch` started, or this one alone.

    On a machine with CPUs only accelerate must be told, or it takes each process of torchrun for the only one.
    """
    import torch
    from accelerate import Accelerator

    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return Accelerator(cpu=several and not torch.accelerator.is_available())
