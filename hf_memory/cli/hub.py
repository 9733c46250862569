"""The commands that push: ``hf-memory push`` and ``hf-memory data push``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_memory.cli.options import Configs, Every, Keywords, Processes, TaskName, chosen_configs

REPO_HELP = "Repository on the Hub, <namespace>/<name>; made where it does not exist."
RepoId = Annotated[str, typer.Option(help=REPO_HELP)]
Revision = Annotated[str | None, typer.Option(help="Branch to push to; the main branch by default.")]
Private = Annotated[bool, typer.Option(help="Make a new repository private.")]


def push(
    source: Annotated[Path, typer.Argument(help="Folder of a checkpoint, or of result rows.")],
    repo_id: Annotated[str | None, typer.Option(help=REPO_HELP)] = None,
    space: Annotated[
        str | None, typer.Option(help="Space that shows result rows as a page, <namespace>/<name>.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="Result rows of the checkpoint, for its card.")] = None,
    task: Annotated[str | None, typer.Option(help="Task whose tokenizer goes with it; that of the rows else.")] = None,
    revision: Revision = None,
    private: Private = False,
    message: Annotated[str | None, typer.Option(help="Title of the commit.")] = None,
    license: Annotated[str | None, typer.Option(help="License of a checkpoint's weights, as the Hub names it.")] = None,
    allow_pickle: Annotated[bool, typer.Option(help="Read pickled weights; safetensors are pushed.")] = False,
) -> None:
    """Push a checkpoint with its code and card, a study with all it has, or result rows as a dataset or a page.

    The folder of a sweep becomes one repository, with recipe, rows, figures, cards and checkpoints. Datasets and pages
    hold the rows of all folders below the one that is given too: those of a suite, or of all that was run.

    Examples: `hf-memory push runs/lstm --repo-id me/lstm --results results`,
    `hf-memory push results/r14_copying_blanks/cpu --repo-id me/copying`,
    `hf-memory push results --repo-id me/memory-results` and `hf-memory push results --space me/leaderboard`
    """
    if repo_id is None and space is None:
        raise ValueError("give --repo-id, or --space for a page of result rows")
    options: dict[str, Any] = {"revision": revision, "private": private or None, "commit_message": message}
    if (source / "config.json").is_file() or not _holds_rows(source):
        from hf_memory.hub.checkpoints import push as push_model

        if repo_id is None or space is not None:
            raise ValueError(f"{source} is a checkpoint; --space is for result rows, and --repo-id says where it goes")
        own: dict[str, Any] = {"results": results, "task": task, "license": license, "allow_pickle": allow_pickle}
        typer.echo(push_model(source, repo_id, **own, **options).commit_url)
        return
    if results is not None or task is not None or license is not None or allow_pickle:
        raise ValueError(
            f"{source} holds result rows; --results, --task, --license and --allow-pickle are for checkpoints"
        )
    if repo_id is not None:
        from hf_memory.hub.datasets import push_results
        from hf_memory.hub.studies import push_study, study_records

        push_rows = push_study if study_records(source) else push_results
        typer.echo(push_rows(source, repo_id, **options).commit_url)
    if space is not None:
        from hf_memory.hub.spaces import push_space

        typer.echo(push_space(source, space, **options).commit_url)


def push_data(
    task: TaskName,
    repo_id: RepoId,
    config: Configs = None,
    every: Every = False,
    data: Keywords = None,
    revision: Revision = None,
    private: Private = False,
    num_proc: Processes = None,
) -> None:
    """Push configurations of a task as a dataset: Parquet, card and benchmark file.

    Example: `hf-memory data push mqar --repo-id me/mqar --config kv4_len64 --data num_train=2000`
    """
    from hf_memory.experiments.arguments import parse_fields
    from hf_memory.hub.datasets import push_dataset

    configs = chosen_configs(task, config, every)
    options = parse_fields(data or [], "data")
    commit = push_dataset(
        task, repo_id, configs, revision=revision, private=private or None, num_proc=num_proc, **options
    )
    typer.echo(commit.commit_url)


def _holds_rows(source: Path) -> bool:
    return source.suffix == ".jsonl" or (source.is_dir() and any(source.rglob("*.jsonl")))
