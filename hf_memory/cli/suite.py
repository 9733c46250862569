"""The subcommand ``hf-memory suite``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_memory.cli.sweep import AcceptOtherCode, Overwrite, other_code

if TYPE_CHECKING:
    from hf_memory.studies.suites import Suite


def suite(
    name: Annotated[str, typer.Argument(help="Suite: a YAML file, or the name of one that comes with the package.")],
    mixer: Annotated[str, typer.Option(help="Key of the mixer; one of your own with --include FILE.")],
    model: Annotated[list[str] | None, typer.Option(help="Fields of its config, name=value.")] = None,
    label: Annotated[str | None, typer.Option(help="What it is called on the page; its key by default.")] = None,
    profile: Annotated[str, typer.Option(help="smoke or cpu.")] = "cpu",
    results: Annotated[Path | None, typer.Option(help="Folder; results/<suite>/<profile> by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the page; `page` in that of the results.")] = None,
    backend: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Cells at a time; one per core by default.")] = None,
    stack: Annotated[int, typer.Option(min=1, help="Runs trained as one model, where that pays.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    overwrite: Overwrite = False,
    accept_other_code: AcceptOtherCode = False,
) -> None:
    """Ask one mixer what it learns to remember within a fixed budget: twelve tasks, five kinds of memory.

    It goes on where it was stopped. The page shows all mixers of the folder.

    Example: `hf-memory suite memory-1 --mixer lstm --dry-run`
    """
    from rich.console import Console

    from hf_memory.experiments.arguments import parse_fields
    from hf_memory.reports.suite_page import write_suite_page
    from hf_memory.reports.terminal import suite_table
    from hf_memory.storage import check_writable
    from hf_memory.studies.suites import load_suite, read_scores, run_suite

    loaded = load_suite(name, mixer, label=label, model=parse_fields(model or [], "model"), profile=profile)
    if dry_run:
        show_suite(loaded, workers)
        return
    folder = results or Path("results") / loaded.name / profile
    page = out or folder / "page"
    for place in (folder, page):
        check_writable(place)
    how = {"workers": workers, "backend": backend, "stack": stack}
    own = run_suite(loaded, folder, other_code=other_code(overwrite, accept_other_code), **how)
    Console().print(suite_table(loaded, own))
    typer.echo(f"rows: {folder}; page: {write_suite_page(loaded, read_scores(loaded, folder), page)}")
    failed = [result for one in own for result in one.study.results if result.error is not None]
    for result in failed:
        typer.echo(f"failed: {result.cell.name}: {result.error}", err=True)
    if failed:
        raise typer.Exit(1)


def show_suite(suite: "Suite", workers: int | None) -> None:
    """Print the configurations of a suite with their runs and estimated time."""
    from hf_memory.studies.running import duration
    from hf_memory.studies.sweep import dry_run
    from hf_memory.studies.workers import available_cores

    size, whole = workers or available_cores(), 0.0
    for entry in suite.entries:
        lines = dry_run(entry.recipe)
        seconds = sum(line.seconds for line in lines) / size
        whole += seconds
        typer.echo(f"{entry.name} ({entry.memory}): {len(lines)} runs, about {duration(seconds)}")
    typer.echo(f"about {duration(whole)} with {size} at a time")
