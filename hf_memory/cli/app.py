"""The ``hf-memory`` command. Each subcommand imports what it needs when it runs.

Flags are understood with ``-`` and with ``_``, and ``--data`` and ``--model`` take several ``name=value``.
"""

import functools
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hf_memory.cli.convert import convert
from hf_memory.cli.data import data_app
from hf_memory.cli.doctor import doctor
from hf_memory.cli.hub import push
from hf_memory.cli.list import show_mixers_and_tasks, wide_console
from hf_memory.cli.new import new_app
from hf_memory.cli.options import (
    TASK_HELP,
    Config,
    Keywords,
    Lengths,
    RemoteCode,
    dataset_keywords,
    launched_processes,
)
from hf_memory.cli.probe import export_harness, probe
from hf_memory.cli.suite import suite
from hf_memory.cli.sweep import sweep
from hf_memory.experiments.grammar import repeat_flags, take_includes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hf_memory.data.specification import Specification
    from hf_memory.experiments.results import Row

PROGRAM = "hf-memory"


class _Commands(TyperGroup):
    """The commands; they read their words once ``--data`` and ``--model`` are given for each ``name=value``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line, and include files before anything looks for what they define."""
        files, words = take_includes(args)
        if files:
            from hf_memory.extensions import include_everywhere

            include_everywhere(files)
        return super().parse_args(ctx, repeat_flags(words))


app = typer.Typer(
    cls=_Commands,
    help="Sequence mixers on synthetic memory tasks.",
    epilog="Flags may be written with - or _, --data takes one or more name=value, and every command takes --include "
    "FILE: a Python file with mixers or tasks of your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
)
app.add_typer(data_app, name="data")
app.add_typer(new_app, name="new")
app.command("doctor")(doctor)
app.command("list")(show_mixers_and_tasks)
app.command("push")(push)
app.command("convert")(convert)
app.command("probe")(probe)
app.command("export-harness")(export_harness)
app.command("sweep")(sweep)
app.command("suite")(suite)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def main() -> None:
    """Run the command; errors that a user can mend are one line without a traceback."""
    try:
        sys.exit(app(prog_name=PROGRAM, standalone_mode=False) or 0)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:  # what no user can mend is raised again
        from hf_memory.cli.errors import explain

        text = explain(error)
        if text is None:
            raise
        if text:  # without a word after the command's name, its help is shown and nothing else
            typer.secho(f"Error: {text}", fg="red", err=True)
        sys.exit(2)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"{PROGRAM} {importlib.metadata.version('hf_memory')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sequence mixers on synthetic memory tasks."""


@app.command(context_settings=_PASS_ON, add_help_option=False)
def train(context: typer.Context) -> None:
    """Train a mixer on a task and evaluate it at every test length; `hf-memory train --help` lists the arguments.

    Example: `hf-memory train --mixer lstm --task bit_parity --smoke --model hidden_size=32 --output_dir runs/lstm`
    """
    from hf_memory.experiments.arguments import main as train_main

    rows = train_main(context.args, prog="hf-memory train")
    if _is_main_process():
        print_rows(rows)


@app.command()
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint, a folder or a repository on the Hub.")],
    task: Annotated[str, typer.Option(help=TASK_HELP)],
    config: Config = None,
    data: Keywords = None,
    lengths: Lengths = "",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass and process.")] = 256,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder to which the rows are written.")] = None,
    share: Annotated[
        str, typer.Option(help="What several processes share: rows, or time, where each hands its state to the next.")
    ] = "rows",
    generate: Annotated[bool, typer.Option("--generate", help="Also let the model write the answers itself.")] = False,
    mechanisms: Annotated[
        bool, typer.Option("--mechanisms", help="Also change contexts and see what answers follow; look at attention.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="PNG of outputs over time, for interval_counting.")] = None,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Measure recall and extrapolation of a checkpoint on the validation and test splits of a task.

    Very long rows are read in pieces, where states have a fixed size. Processes that `accelerate launch` starts share
    the rows; with `--share time` each runs a segment of every row, and hands the state to the next one.

    Examples: `hf-memory evaluate runs/lstm --task bit_parity --data num_train=2000 num_test=200`
    and `hf-memory evaluate runs/lstm --task bit_parity --lengths 1024..1048576 --data num_test=4`
    """
    from hf_memory.data.builder import load_dataset
    from hf_memory.data.specification import specify
    from hf_memory.experiments.evaluation import evaluate_lengths, load_for_task, write_evaluation
    from hf_memory.experiments.provenance import run_of
    from hf_memory.hub.client import local_checkpoint
    from hf_memory.storage import check_writable

    keywords = dataset_keywords(data, lengths)
    specification = specify(task, config, **keywords)
    accelerator = launched_processes()
    if results is not None and accelerator.is_main_process:
        check_writable(results)
    with accelerator.main_process_first():
        folder = local_checkpoint(checkpoint, revision, code=trust_remote_code)
        model = load_for_task(folder, specification.task, trust_remote_code=trust_remote_code)
        run = run_of(model, str(folder), specification)
        rows = load_dataset(f"hf_memory/{task}", config, **keywords)
    splits = {name: rows[name] for name in rows if name != "train"}
    how: dict[str, Any] = {"accelerator": accelerator, "batch_size": batch_size, "generate": generate, "share": share}
    found = evaluate_lengths(model, specification, splits, run=run, **how)
    if mechanisms:
        from hf_memory.experiments.mechanisms import add_mechanisms

        found = add_mechanisms(found, folder, specification, splits, batch_size, accelerator)
    if accelerator.is_main_process:
        if figure is not None:
            draw_outputs(figure, folder, specification, splits)
        if results is not None:
            write_evaluation(results, found)
        print_evaluation(found, specification.task.headline_metric)


@app.command()
def report(
    results: Annotated[str, typer.Argument(help="Folder of result rows, one file, or a results dataset on the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("report"),
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a dataset on the Hub.")] = None,
) -> None:
    """Write figures, tables and one HTML page from result rows.

    Example: `hf-memory report results/ --out report/`
    """
    from hf_memory.hub.datasets import recover_results
    from hf_memory.reports.report import write_report

    if revision is not None and Path(results).exists():
        raise ValueError(f"revision: {results!r} is a path here, which has none; leave it out, or name a repository")

    typer.echo(write_report(results, out, reader=functools.partial(recover_results, revision=revision)))


@app.command()
def demo(
    output_dir: Annotated[Path, typer.Option(help="Folder of rows, checkpoints, figures and page.")] = Path(
        "results/demo"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Processes with one thread each.")] = 2,
    smoke: Annotated[bool, typer.Option(help="A few steps on a few rows.")] = False,
) -> None:
    """Train four mixers on two tasks and show what they keep beyond the training length; about 2 minutes on 2 cores.

    Example: `hf-memory demo --smoke --output-dir results/smoke`
    """
    from hf_memory.cli.demo import run_demo

    print_rows(run_demo(output_dir, workers, smoke))
    typer.echo(f"page: {output_dir / 'report' / 'index.html'}")


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


def print_evaluation(rows: "Sequence[Row]", headline: str) -> None:
    """Print a table of the headline metric, and one of each that was asked for beside it."""
    print_rows(rows)
    for metric in rows[0].metrics:
        if metric == f"generated_{headline}" or metric.startswith(("counterfactual_", "induction_")):
            print_rows(rows, metric)


def print_rows(rows: "Sequence[Row]", metric: str | None = None) -> None:
    """Print one table per study: values over the test lengths, chance levels, parameters and state bytes.

    Args:
        rows: Result rows.
        metric: What is shown; the headline metric by default.
    """
    from hf_memory.reports.terminal import length_tables

    console = wide_console()
    for table in length_tables(rows, metric):
        console.print(table)


def _is_main_process() -> bool:
    from accelerate import PartialState

    return PartialState().is_main_process
