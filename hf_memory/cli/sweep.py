"""The subcommand ``hf-memory sweep``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hf_memory.studies.outcomes import Study
    from hf_memory.studies.recipes import Recipe
    from hf_memory.studies.replication import Replication
    from hf_memory.studies.running import ReuseOther

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Run finished cells again that other code made.")]
AcceptOtherCode = Annotated[
    bool,
    typer.Option(
        "--accept-other-code", help="Run a sample of these cells again, and record whether the numbers are equal."
    ),
]

Stack = Annotated[
    int, typer.Option(min=1, help="Runs of other learning rates and seeds trained as one model, where that pays.")
]
Part = Annotated[
    str, typer.Option(help="Run one part of each stage alone, such as 2/8, as the task of an array of jobs.")
]
Replicate = Annotated[
    int, typer.Option(min=0, help="Then run what agreed again with this many seeds that nobody has used.")
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="With --replicate: seeds that no replication of this folder has shown.")
]


def sweep(
    recipe: Annotated[str, typer.Argument(help="Recipe: a YAML file, or the name of one that comes with the package.")],
    profile: Annotated[str, typer.Option(help="smoke, cpu, cpu_long, long or full.")] = "cpu",
    results: Annotated[
        Path | None, typer.Option(help="Folder of the rows; results/<recipe>/<profile> by default.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="local or ray; Ray asks nobody for a password: keep its ports to yourself.")
    ] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Cells at a time; one per core by default.")] = None,
    gpu_share: Annotated[float, typer.Option(min=0.0, help="GPU of each process, with ray.")] = 0.0,
    stack: Stack = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells and run nothing.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    overwrite: Overwrite = False,
    accept_other_code: AcceptOtherCode = False,
    shard: Part = "1/1",
    replicate: Replicate = 0,
    fresh: Fresh = False,
) -> None:
    """Run a recipe: mixers x sizes x learning rates x seeds. A sweep that was stopped goes on where it was.

    Example: `hf-memory sweep r1_bit_parity --dry-run`
    """
    from hf_memory.storage import check_writable
    from hf_memory.studies.recipes_yaml import find_file, load_recipe
    from hf_memory.studies.replication import replicate as run_replication
    from hf_memory.studies.running import Shard, check_backend
    from hf_memory.studies.sweep import run_sweep

    check_backend(backend)
    if fresh and not replicate:
        raise ValueError("fresh: there are no seeds to choose without --replicate")
    loaded = load_recipe(find_file(recipe, "recipes"), profile)
    if dry_run:
        show_cells(loaded, workers)
        return
    reuse, part = other_code(overwrite, accept_other_code), Shard.parse(shard)
    folder = results or Path("results") / loaded.name / profile
    check_writable(folder)
    how: dict[str, Any] = {
        "workers": workers,
        "backend": backend,
        "gpu_share": gpu_share,
        "stack": stack,
        "retry_failed": retry_failed,
        "other_code": reuse,
    }
    study = run_sweep(loaded, folder, **how, shard=part)
    if study.complete:
        show_verdicts(study)
    if replicate and study.complete:
        show_replication(run_replication(study, folder, replicate, **how, fresh=fresh))
    typer.echo(f"rows: {folder}; `hf-memory report {folder} --out report/` writes the page")
    if any(result.error is not None for result in study.results):
        raise typer.Exit(1)


def other_code(overwrite: bool, accept: bool) -> "ReuseOther":
    """What becomes of finished cells that other code made. Raises a ``ValueError`` where both flags are given."""
    if overwrite and accept:
        raise ValueError("overwrite runs all cells of other code again, accept-other-code a sample; give one of them")
    return "overwrite" if overwrite else "accept" if accept else "report"


def show_cells(recipe: "Recipe", workers: int | None) -> None:
    """Print the cells of a recipe with sizes and estimated time."""
    from rich.console import Console

    from hf_memory.reports.terminal import cells_table
    from hf_memory.studies.running import duration
    from hf_memory.studies.sweep import dry_run
    from hf_memory.studies.workers import available_cores

    lines, size = dry_run(recipe), workers or available_cores()
    Console().print(cells_table(f"{recipe.name}, profile {recipe.profile}", lines))
    total = sum(line.seconds for line in lines) / size
    typer.echo(f"{len(lines)} cells, about {duration(total)} with {size} at a time")
    rates, by_rates, by_looks = may_join(recipe)
    if by_rates:
        shown = ", ".join(f"{rate:g}" for rate in rates)
        typer.echo(f"up to {by_rates} more may join the search, where best rates lie on the edge of the grid: {shown}")
    if by_looks:
        looks = ", then ".join(map(str, recipe.seeds["looks"][1:]))
        typer.echo(f"up to {by_looks} more may follow, where claims are left open: looks of {looks} seeds")


def may_join(recipe: "Recipe") -> tuple[list[float], int, int]:
    """What results may add to the cells that are sure to run.

    Returns:
        The rates by which the grid may grow, the cells of the search at these, and the cells of all looks but the
        first.
    """
    from hf_memory.studies.plans import by_depth, final_cells, make_settings, rates_beyond, search_cells

    settings, rates = by_depth(recipe, make_settings(recipe))[-1], list(recipe.learning_rates)
    added: list[float] = []
    while new := [rate for rate, *_ in rates_beyond(recipe, rates)]:
        rates, added = sorted([*rates, *new]), sorted([*added, *new])
    chosen = [recipe.learning_rates[0]] * len(settings)
    last = max(len(recipe.seeds["looks"]) - 1, 0)
    first, whole = (len(final_cells(recipe, settings, rates, chosen, look)) for look in (0, last))
    return added, len(search_cells(recipe, settings, added)) if added else 0, whole - first


def show_verdicts(study: "Study") -> None:
    """Print the verdict on each expectation."""
    from hf_memory.studies.judging import judge_study

    failed = [result for result in study.results if result.error is not None]
    typer.echo(f"{len(study.results)} cells, {len(failed)} failed and not measured")
    for result in failed:
        typer.echo(f"  failed: {result.cell.name}: {result.error}")
    for judgement in judge_study(study):
        typer.echo(f"{judgement.verdict}: {judgement.expectation.claim} ({judgement.reason})")


def show_replication(replication: "Replication") -> None:
    """Print which claims hold again."""
    from rich.console import Console
    from rich.table import Table

    from hf_memory.studies.replication import summary, table

    head, *lines = table(replication)
    shown = Table(*head, title=f"{replication.recipe}, run again")
    for line in lines:
        shown.add_row(*line)
    Console().print(shown)
    typer.echo(summary(replication))
