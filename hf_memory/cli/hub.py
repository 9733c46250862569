"""The commands that push: ``hf-memory push`` and ``hf-memory data push``."""

from pathlib import Path
from typing import Annotated

import typer

from hf_memory.cli.options import Configs, Every, Keywords, Processes, TaskName, chosen_configs

RepoId = Annotated[str, typer.Option(help="Repository on the Hub, <namespace>/<name>; made where it does not exist.")]
Revision = Annotated[str | None, typer.Option(help="Branch to push to; the main branch by default.")]
Private = Annotated[bool, typer.Option(help="Make a new repository private.")]


def push(
    source: Annotated[Path, typer.Argument(help="Folder of a checkpoint, or of result rows.")],
    repo_id: RepoId,
    results: Annotated[Path | None, typer.Option(help="Result rows of the checkpoint, for its card.")] = None,
    task: Annotated[str | None, typer.Option(help="Task whose tokenizer goes with it; that of the rows else.")] = None,
    revision: Revision = None,
    private: Private = False,
    message: Annotated[str | None, typer.Option(help="Title of the commit.")] = None,
    allow_pickle: Annotated[bool, typer.Option(help="Read pickled weights; safetensors are pushed.")] = False,
) -> None:
    """Push a checkpoint with its code and card, or result rows as a dataset.

    Examples: `hf-memory push runs/lstm --repo-id me/lstm --results results` and
    `hf-memory push results --repo-id me/memory-results`
    """
    if (source / "config.json").is_file() or not _holds_rows(source):
        from hf_memory.hub.checkpoints import push as push_model

        commit = push_model(
            source,
            repo_id,
            results=results,
            task=task,
            revision=revision,
            private=private or None,
            commit_message=message,
            allow_pickle=allow_pickle,
        )
    else:
        from hf_memory.hub.datasets import push_results

        if results is not None or task is not None or allow_pickle:
            raise ValueError(f"{source} holds result rows; --results, --task and --allow-pickle are for checkpoints")
        commit = push_results(source, repo_id, revision=revision, private=private or None, commit_message=message)
    typer.echo(commit.commit_url)


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
    return source.suffix == ".jsonl" or (source.is_dir() and any(source.glob("*.jsonl")))
