"""The ``hf-memory`` command. Each subcommand imports what it needs when it runs."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_memory.cli.hub import register as register_hub
from hf_memory.cli.list import register as register_list
from hf_memory.cli.list import wide_console
from hf_memory.cli.sweep import sweep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hf_memory.data.specification import Specification
    from hf_memory.experiments.results import Row

app = typer.Typer(
    help="Sequence mixers on synthetic memory tasks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Datasets of the tasks: into the cache, as text, as Parquet.", no_args_is_help=True)
app.add_typer(data_app, name="data")
register_list(app)
register_hub(app, data_app)
app.command()(sweep)

TaskName = Annotated[str, typer.Argument(help="Key of the task, as `hf-memory list` shows it.")]
Config = Annotated[str | None, typer.Option(help="Configuration of the task's dataset; its first one by default.")]
Keywords = Annotated[list[str] | None, typer.Option("--data", help="Dataset keyword or task knob, name=value.")]
Processes = Annotated[int | None, typer.Option(help="Processes that generate.")]

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def main() -> None:
    """Run the command; errors that a user can mend are one line without a traceback."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        app()
    except (ValueError, OSError, StrictDataclassError) as error:
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(2)


@app.command(context_settings=_PASS_ON, add_help_option=False)
def train(context: typer.Context) -> None:
    """Train a mixer on a task and evaluate it at every test length; `hf-memory train --help` lists the arguments."""
    from hf_memory.experiments.arguments import main as train_main

    rows = train_main(context.args, prog="hf-memory train")
    if _is_main_process():
        print_rows(rows)


@app.command()
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint, a folder or a repository on the Hub.")],
    task: Annotated[str, typer.Option(help="Key of the task, as `hf-memory list` shows it.")],
    config: Config = None,
    data: Keywords = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass and process.")] = 256,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder to which the rows are written.")] = None,
    generate: Annotated[bool, typer.Option("--generate", help="Also let the model write the answers itself.")] = False,
    mechanisms: Annotated[
        bool, typer.Option("--mechanisms", help="Also change contexts and see what answers follow; look at attention.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="PNG of outputs over time, for interval_counting.")] = None,
) -> None:
    """Measure recall and extrapolation of a checkpoint on the validation and test splits of a task."""
    from accelerate import Accelerator

    from hf_memory.data.builder import load_dataset
    from hf_memory.data.specification import specify
    from hf_memory.experiments.arguments import parse_fields
    from hf_memory.experiments.evaluation import evaluate_lengths, write_evaluation
    from hf_memory.hub.client import local_checkpoint

    keywords = parse_fields(data or [], "data")
    specification = specify(task, config, **keywords)
    accelerator = Accelerator()
    with accelerator.main_process_first():
        folder = local_checkpoint(checkpoint, revision)
        rows = load_dataset(f"hf_memory/{task}", config, **keywords)
    splits = {name: rows[name] for name in rows if name != "train"}
    found = evaluate_lengths(
        folder, specification, splits, batch_size=batch_size, accelerator=accelerator, generate=generate
    )
    if mechanisms:
        from hf_memory.experiments.mechanisms import add_mechanisms

        found = add_mechanisms(found, folder, specification, splits, batch_size, accelerator)
    if accelerator.is_main_process:
        if figure is not None:
            draw_outputs(figure, folder, specification, splits)
        if results is not None:
            write_evaluation(results, found)
        print_rows(found)
        further = [f"generated_{specification.task.headline_metric}"] if generate else []
        further += [name for name in found[0].metrics if name.startswith(("counterfactual_", "induction_"))]
        for metric in further:
            print_rows(found, metric)


@app.command()
def report(
    results: Annotated[str, typer.Argument(help="Folder of result rows, one file, or a results dataset on the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("report"),
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a dataset on the Hub.")] = None,
) -> None:
    """Write figures, tables and one HTML page from result rows."""
    from hf_memory.hub.datasets import recover_results
    from hf_memory.reports.report import write_report

    typer.echo(write_report(results, out, reader=functools.partial(recover_results, revision=revision)))


@app.command()
def demo(
    output_dir: Annotated[Path, typer.Option(help="Folder of rows, checkpoints, figures and page.")] = Path(
        "results/demo"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Processes with one thread each.")] = 2,
    smoke: Annotated[bool, typer.Option(help="A few steps on a few rows.")] = False,
) -> None:
    """Train four mixers on two tasks and show what they keep beyond the training length; about 2 minutes on 2 cores."""
    from hf_memory.cli.demo import run_demo

    print_rows(run_demo(output_dir, workers, smoke))
    typer.echo(f"page: {output_dir / 'report' / 'index.html'}")


@data_app.command()
def build(
    task: TaskName,
    config: Config = None,
    every: Annotated[bool, typer.Option("--all", help="All configurations of the task.")] = False,
    data: Keywords = None,
    num_proc: Processes = None,
    force: Annotated[bool, typer.Option(help="Generate anew in any case.")] = False,
) -> None:
    """Put a configuration into the standard cache, where `datasets.load_dataset("hf_memory/<task>")` finds it."""
    from hf_memory.data.builder import build as build_dataset
    from hf_memory.experiments.arguments import parse_fields

    chosen: Sequence[str | None] = _configs(task, [config] if config else None, every) or [None]
    for name in chosen:
        typer.echo(build_dataset(task, name, num_proc=num_proc, force=force, **parse_fields(data or [], "data")))


@data_app.command()
def show(
    task: TaskName,
    config: Config = None,
    split: Annotated[str, typer.Option(help="Name of the split.")] = "train",
    num_rows: Annotated[int, typer.Option(help="Number of rows.")] = 3,
    data: Keywords = None,
) -> None:
    """Print rows as text, with their labels and the positions that are scored."""
    from hf_memory.data.preview import show as show_rows
    from hf_memory.experiments.arguments import parse_fields

    typer.echo(show_rows(task, config, split, num_rows, **parse_fields(data or [], "data")))


@data_app.command()
def export(
    task: TaskName,
    out: Annotated[Path, typer.Argument(help="Folder in which the folder of the task is made.")],
    config: Annotated[list[str] | None, typer.Option(help="Configuration; may be given several times.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All configurations of the task.")] = False,
    data: Keywords = None,
    num_proc: Processes = None,
) -> None:
    """Write configurations as Parquet files with a card."""
    from hf_memory.data.parquet import export as export_dataset
    from hf_memory.experiments.arguments import parse_fields

    configs = _configs(task, config, every)
    typer.echo(export_dataset(task, out, configs, num_proc=num_proc, **parse_fields(data or [], "data")))


def draw_outputs(
    path: Path, checkpoint: "str | Path", specification: "Specification", splits: "Mapping[str, Any]"
) -> None:
    """Write the figure of a model's outputs over time."""
    from hf_memory.experiments.evaluation import load_for_task
    from hf_memory.reports.outputs import plot_outputs
    from hf_memory.reports.plotting import png
    from hf_memory.storage import write_bytes

    drawn = plot_outputs(load_for_task(checkpoint, specification.task), specification, splits)
    typer.echo(f"figure: {write_bytes(path, png(drawn))}")


def _configs(task: str, given: Sequence[str] | None, every: bool) -> list[str] | None:
    """The configurations that were asked for; None for the task's default."""
    from hf_memory.data.parquet import config_names

    if every and given:
        raise typer.BadParameter("give --config or --all, not both")
    return config_names(task) if every else list(given) if given else None


def print_rows(rows: "Sequence[Row]", metric: str | None = None) -> None:
    """Print one table per study: values over the test lengths, chance levels, parameters and state bytes.

    Args:
        rows: Result rows.
        metric: What is shown; the headline metric by default.
    """
    from rich.table import Table

    from hf_memory.experiments.summary import studies, title
    from hf_memory.reports.report import FACTS, length_table, note

    console = wide_console()
    for study in studies(rows):
        lengths, lines = length_table(study, metric)
        table = Table(title=title(study), caption=note(study, metric))
        table.add_column("mixer")
        for name in (*map(str, lengths), *FACTS):
            table.add_column(name, justify="right")
        for line in lines:
            values: dict[int, Any] = dict(line.cells)
            style = "dim" if line.level else None
            table.add_row(line.name, *(values[length] for length in lengths), *line.facts, style=style)
        console.print(table)


def _is_main_process() -> bool:
    from accelerate import PartialState

    return PartialState().is_main_process
