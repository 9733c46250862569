"""The subcommands ``hf-memory data``: datasets of the tasks, into the cache, as text, as Parquet, and on the Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hf_memory.cli.hub import push_data
from hf_memory.cli.options import Config, Configs, Every, Keywords, Processes, TaskName, chosen_configs

data_app = typer.Typer(help="Datasets of the tasks: into the cache, as text, as Parquet.", no_args_is_help=True)
data_app.command("push")(push_data)


@data_app.command()
def build(
    task: TaskName,
    config: Config = None,
    every: Every = False,
    data: Keywords = None,
    num_proc: Processes = None,
    force: Annotated[bool, typer.Option(help="Generate anew in any case.")] = False,
) -> None:
    """Put a configuration into the standard cache, where `datasets.load_dataset("hf_memory/<task>")` finds it.

    Prints the calls that load what was built, of hf_memory and of plain `datasets`, and the folder.

    Example: `hf-memory data build mqar --config kv4_len64 --data num_train=2000`
    """
    from hf_memory.data.builder import build as build_dataset
    from hf_memory.data.folders import loading_calls
    from hf_memory.data.specification import specify
    from hf_memory.experiments.arguments import parse_fields

    keywords = parse_fields(data or [], "data")
    chosen: Sequence[str | None] = chosen_configs(task, [config] if config else None, every) or [None]
    for name in chosen:
        folder = build_dataset(task, name, num_proc=num_proc, force=force, **keywords)
        typer.echo("\n".join([*loading_calls(specify(task, name, **keywords)), str(folder)]))


@data_app.command()
def show(
    task: TaskName,
    config: Config = None,
    split: Annotated[str, typer.Option(help="Name of the split.")] = "train",
    num_rows: Annotated[int, typer.Option(help="Number of rows.")] = 3,
    data: Keywords = None,
) -> None:
    """Print rows as text, with their labels and the positions that are scored.

    Example: `hf-memory data show bit_parity --num-rows 1 --data length=12`
    """
    from hf_memory.data.preview import show as show_rows
    from hf_memory.experiments.arguments import parse_fields

    typer.echo(show_rows(task, config, split, num_rows, **parse_fields(data or [], "data")))


@data_app.command()
def export(
    task: TaskName,
    out: Annotated[Path, typer.Argument(help="Folder in which the folder of the task is made.")],
    config: Configs = None,
    every: Every = False,
    data: Keywords = None,
    num_proc: Processes = None,
) -> None:
    """Write configurations as Parquet files with a card.

    Example: `hf-memory data export bit_parity exported --data length=12 num_train=2000 num_test=200`
    """
    from hf_memory.data.parquet import export as export_dataset
    from hf_memory.experiments.arguments import parse_fields

    configs = chosen_configs(task, config, every)
    typer.echo(export_dataset(task, out, configs, num_proc=num_proc, **parse_fields(data or [], "data")))
