"""Parquet folders with a card, which ``datasets.load_dataset`` reads without this package, and their upload."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from hf_memory.data.cards import dataset_card
from hf_memory.data.folders import working_folder
from hf_memory.data.memory_builder import MemoryBuilder
from hf_memory.data.specification import specify
from hf_memory.names import check_names
from hf_memory.tasks import task_class

Configurations = Sequence[str] | Mapping[str, Mapping[str, Any]]
"""Presets, or published names and the keywords of each; ``preset`` among them is the name of the preset."""

CARD = "README.md"
_ROWS_PER_FILE = 1 << 18


def config_names(task: str) -> list[str]:
    """The presets of a task, the default first."""
    return list(task_class(task).presets)


def export(
    task: str,
    out_dir: str | Path,
    configs: Configurations | None = None,
    *,
    num_proc: int | None = None,
    cache_dir: str | Path | None = None,
    **overrides: Any,
) -> Path:
    """Write configurations as Parquet files with a card, so that ``datasets.load_dataset`` reads the folder.

    Args:
        task: Key of the task.
        out_dir: Where the folder ``<task>`` is made. An earlier export is replaced, anything else is not touched.
        configs: Presets, or published names with keywords; the default preset alone by default.
        num_proc: Number of processes that generate.
        cache_dir: Root of the cache through which the rows go; a temporary one by default.
        **overrides: Keywords for all configurations.

    Returns:
        The folder.

    Raises:
        ValueError: For unknown names, impossible values, and where the folder exists and is no export.
    """
    requests = _requests(task, configs, overrides)
    folder = Path(out_dir) / task
    if folder.exists() and any(folder.iterdir()) and not _is_export(folder):
        raise ValueError(f"out_dir: {folder} exists and is no earlier export; choose another folder or remove it")
    with working_folder(out_dir, task) as work:
        written = work / task
        written.mkdir()
        _write(written, task, requests, os.fspath(cache_dir or work / "cache"), num_proc)
        if folder.exists():
            folder.rename(work / "before")
        written.rename(folder)
    return folder


def _requests(task: str, configs: Configurations | None, overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The keywords of each configuration, checked before anything is written."""
    names = config_names(task)
    if configs is None:
        configs = names[:1]
    if isinstance(configs, str) or not configs:
        raise ValueError(f"configs must be at least one name in a sequence or mapping, got {configs!r}")
    given = configs if isinstance(configs, Mapping) else {name: {"preset": name} for name in configs}
    requests = {name: {"preset": names[0], **keywords, **overrides} for name, keywords in given.items()}
    for keywords in requests.values():
        check_names([keywords["preset"]], names, f"configuration of hf_memory/{task}")
        specify(task, **keywords)
    return requests


def _write(
    folder: Path, task: str, requests: Mapping[str, Mapping[str, Any]], cache_dir: str, num_proc: int | None
) -> None:
    """Write the files of all configurations and the card."""
    published, stored, files, infos = {}, {}, {}, {}
    for name, keywords in requests.items():
        given = {key: value for key, value in keywords.items() if key != "preset"}
        builder = MemoryBuilder(task, keywords["preset"], cache_dir=cache_dir, replace_damaged=True, **given)
        builder.download_and_prepare(num_proc=num_proc)
        published[name], stored[name] = builder.specification, builder.stored()
        files[name] = {split: f"{name}/{split}-*.parquet" for split in stored[name]}
        size = sum(_write_split(folder / name, split, rows) for split, rows in stored[name].items())
        infos[name] = _info(builder.info, name, size)
    dataset_card(published, stored, files, infos).save(folder / CARD)


def _write_split(folder: Path, split: str, rows: datasets.Dataset) -> int:
    """Write the files of a split, named as on the Hub, and return their size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    count = -(-len(rows) // _ROWS_PER_FILE)
    size = 0
    for number in range(count):
        path = folder / f"{split}-{number:05d}-of-{count:05d}.parquet"
        rows.shard(count, number, contiguous=True).to_parquet(path, write_page_checksum=True)
        size += path.stat().st_size
    return size


def _info(info: datasets.DatasetInfo, name: str, download_size: int) -> datasets.DatasetInfo:
    """What the card tells ``datasets``: features and sizes, which it then checks."""
    return datasets.DatasetInfo(
        features=info.features,
        config_name=name,
        splits=info.splits,
        download_size=download_size,
        dataset_size=info.dataset_size,
    )


def _is_export(folder: Path) -> bool:
    card = folder / CARD
    return card.is_file() and "hf_memory" in card.read_text(encoding="utf-8")
