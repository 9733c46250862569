"""Datasets of the tasks, and datasets of result rows, on the Hub."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import CommitInfo, DatasetCard, DatasetCardData, HfApi

from hf_memory.data.benchmark import BENCHMARK, benchmark_yaml
from hf_memory.data.cards import LICENSE, size_category, task_category
from hf_memory.data.folders import working_folder
from hf_memory.data.parquet import Configurations, config_names, export
from hf_memory.data.specification import Specification, specify
from hf_memory.experiments.results import Row, read_definition, read_rows, recover_rows, result_files
from hf_memory.hub.client import (
    CARD,
    MAIN,
    WORK,
    HubError,
    check_repo_id,
    explained,
    is_path,
    make_repo,
    read_card,
    upload,
)
from hf_memory.hub.merging import merge_card
from hf_memory.hub.results import rows_from_table, rows_table
from hf_memory.hub.sections import FIGURES, results_section
from hf_memory.reports.length_plots import save_figures
from hf_memory.storage import encode, write_text
from hf_memory.tasks import TASKS, make_task, task_class

ROWS, CELLS = "rows.parquet", "cells.parquet"


def push_dataset(
    task: str,
    repo_id: str,
    configs: Configurations | None = None,
    *,
    revision: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    num_proc: int | None = None,
    **overrides: Any,
) -> CommitInfo:
    """Push configurations of a task as Parquet files, with a card and the ``eval.yaml`` of a benchmark.

    The branch then holds these configurations alone. A push to the main branch is tagged with the version of the task,
    unless an earlier one has the tag. Where the rows are there already, nothing is uploaded and nothing is committed.

    Args:
        task: Key of the task.
        repo_id: ``<namespace>/<name>`` of the dataset repository, which is made where it does not exist.
        configs: As for :func:`hf_memory.data.parquet.export`.
        revision: Branch to push to; the main branch by default.
        private: Whether a new repository is private.
        token: Access token; that of the login by default.
        num_proc: Number of processes that generate.
        **overrides: Keywords for all configurations.

    Raises:
        ValueError: For unknown names and impossible values, and for what the Hub refuses.
    """
    check_repo_id(repo_id)
    api, version = HfApi(token=token), task_class(task).version
    with working_folder(tempfile.gettempdir(), WORK) as temporary:
        folder = export(task, temporary, configs, num_proc=num_proc, **overrides)
        write_text(folder / BENCHMARK, benchmark_yaml(_published(task, configs, overrides)))
        repo_id = make_repo(api, repo_id, "dataset", revision=revision, private=private)
        _merge_card(api, repo_id, revision, folder, DatasetCard.load(folder / CARD))
        commit = upload(
            api, folder, repo_id, "dataset", title=f"{task} {version}", revision=revision, outdated=["*.parquet"]
        )
    if revision in (None, MAIN):
        with explained(repo_id, revision):
            api.create_tag(repo_id, repo_type="dataset", tag=version, revision=commit.oid, exist_ok=True)
    return commit


def push_results(
    results: str | os.PathLike[str],
    repo_id: str,
    *,
    revision: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    commit_message: str | None = None,
) -> CommitInfo:
    """Push result rows as a dataset, which :func:`load_results` reads back.

    Args:
        results: Folder with result rows in it or below it, or one file.
        repo_id: ``<namespace>/<name>`` of the dataset repository, which is made where it does not exist.
        revision: Branch to push to; the main branch by default.
        private: Whether a new repository is private.
        token: Access token; that of the login by default.
        commit_message: Title of the commit.

    Raises:
        ValueError: There are no rows, or damaged ones, or the Hub refuses.
    """
    check_repo_id(repo_id)
    rows, files, api = read_rows(results, below=True), result_files(results, below=True), HfApi(token=token)
    with working_folder(tempfile.gettempdir(), WORK) as temporary:
        folder = temporary / "rows"
        folder.mkdir()
        pq.write_table(rows_table(rows), folder / ROWS, write_page_checksum=True)
        cells = [{"cell": file.stem, "definition": json.dumps(encode(read_definition(file)))} for file in files]
        pq.write_table(pa.Table.from_pylist(cells), folder / CELLS, write_page_checksum=True)
        save_figures(rows, folder / FIGURES)
        repo_id = make_repo(api, repo_id, "dataset", revision=revision, private=private)
        _merge_card(api, repo_id, revision, folder, _results_card(repo_id, rows))
        title = commit_message or f"{len(rows)} rows of {len(files)} runs"
        return upload(api, folder, repo_id, "dataset", title=title, revision=revision, outdated=[f"{FIGURES}/*"])


def load_results(repo_id: str, revision: str | None = None, token: bool | str | None = None) -> list[Row]:
    """The rows of a results dataset on the Hub.

    Raises:
        ValueError: There is no such repository or revision, or it holds no rows.
    """
    check_repo_id(repo_id)
    with explained(repo_id, revision):
        path = HfApi(token=token).hf_hub_download(repo_id, ROWS, repo_type="dataset", revision=revision)
    return read_rows_table(path)


def read_rows_table(path: str | os.PathLike[str]) -> list[Row]:
    """The rows in a Parquet file.

    Raises:
        ValueError: It is damaged, or holds no rows; it is named.
    """
    try:
        return rows_from_table(pq.read_table(path, page_checksum_verification=True))
    except (OSError, ValueError, TypeError) as error:  # those of pyarrow are among them
        raise ValueError(f"{path} is damaged or holds no rows ({error}); download it again") from error


def recover_results(results: str, revision: str | None = None) -> tuple[list[Row], list[str]]:
    """Read what can be read of a folder or file, or of the results dataset ``<namespace>/<name>`` on the Hub.

    Args:
        results: The folder or file; where there is none, the repository of that name.
        revision: Branch, tag or commit of the repository.

    Returns:
        The rows, and one sentence for each thing that is wrong; see
        :func:`hf_memory.experiments.results.recover_rows`.

    Raises:
        ValueError: There is neither such a folder or file nor such a repository.
    """
    if is_path(results):
        return recover_rows(results)
    try:
        return load_results(results, revision), []
    except HubError as error:
        raise ValueError(f"results: {results!r} is no folder or file here, and {error}") from error


def _published(task: str, configs: Configurations | None, overrides: Mapping[str, Any]) -> dict[str, Specification]:
    """The specification of each configuration of an export."""
    names = config_names(task)
    given = configs if isinstance(configs, Mapping) else {name: {"preset": name} for name in configs or names[:1]}
    return {name: specify(task, **{"preset": names[0], **keywords, **overrides}) for name, keywords in given.items()}


def _merge_card(api: HfApi, repo_id: str, revision: str | None, folder: Path, own: DatasetCard) -> None:
    """Write a dataset's card, merged with the one that is there."""
    write_text(folder / CARD, merge_card(read_card(api, repo_id, "dataset", revision) or "", own))


def _results_card(repo_id: str, rows: Sequence[Row]) -> DatasetCard:
    """The card of a results dataset."""
    tasks, cells = sorted({row.task for row in rows}), {row.cell for row in rows}
    configs = [{"config_name": "rows", "data_files": ROWS, "default": True}]
    configs += [{"config_name": "cells", "data_files": CELLS}]
    data = DatasetCardData(
        license=LICENSE,
        task_categories=sorted({task_category(make_task(task)) for task in tasks if task in TASKS}),
        size_categories=[size_category(len(rows))],
        tags=["hf_memory", "results", *tasks],
        configs=configs,
    )
    text = (
        f"# {repo_id.split('/')[-1]}\n\n{len(rows)} result rows of {len(cells)} runs on {', '.join(tasks)}. The "
        "configuration `rows` has one line for each evaluation of a model on a split; `cells` holds what defines each "
        "run.\n\n"
        f'```python\nfrom hf_memory.hub.datasets import load_results\n\nrows = load_results("{repo_id}")\n```\n\n'
    )
    return DatasetCard(f"---\n{data.to_yaml()}\n---\n{text}{results_section(rows)}\n")
