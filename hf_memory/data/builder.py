"""``load_dataset`` with the names ``hf_memory/<task>``, and ``build``, which fills the cache of ``datasets``.

Data flow: ``specify`` (a value) -> ``RowSource`` (numpy) -> ``MemoryBuilder`` (Arrow tables) -> ``datasets``.
A stored dataset lies in the standard cache of ``datasets``, ``hf_memory___<task>/<configuration>/<version>/<key>``, and
the key is a digest of freshly drawn rows: a changed law, numpy or split code leads to another folder.
"""

from pathlib import Path
from typing import Any

import datasets

from hf_memory.data.folders import NAMESPACE, DamagedCacheError, remove_others
from hf_memory.data.memory_builder import MemoryBuilder
from hf_memory.names import check_names
from hf_memory.tasks import TASKS, task_class
from hf_memory.tasks.base import Task


def load_dataset(
    path: str | Task,
    name: str | None = None,
    split: str | datasets.Split | None = None,
    *,
    streaming: bool = False,
    num_proc: int | None = None,
    cache_dir: str | Path | None = None,
    revision: str | None = None,
    download_mode: str | datasets.DownloadMode | None = None,
    **knobs: Any,
) -> Any:
    """Load a dataset; names under ``hf_memory/`` are generated here, anything else is handed to ``datasets``.

    Args:
        path: ``"hf_memory/<task>"``, a task with its knobs, or whatever ``datasets.load_dataset`` takes.
        name: Configuration: a preset of the task; its first one by default.
        split: Split or expression such as ``"train[:1000]"``; all splits by default.
        streaming: Generate rows while they are read. The training split then never ends and begins with the stored
            one; all others are finite. Positions can be saved and restored with ``state_dict``.
        num_proc: Number of processes that generate. Rows do not depend on it.
        cache_dir: Root of the cache.
        revision: Version of the task. Any other than the installed one raises.
        download_mode: ``"force_redownload"`` generates anew.
        **knobs: ``length``, ``test_lengths``, ``num_train``, ``num_validation``, ``num_test``, ``seed`` and the knobs
            of the task.

    Returns:
        What ``datasets.load_dataset`` returns: a dataset, or a dictionary of the splits.

    Raises:
        ValueError: For unknown names (the nearest is suggested), impossible values and damaged cache folders.
    """
    if isinstance(path, Task):
        knobs = {**path.knobs(), **knobs}
        path = f"{NAMESPACE}/{path.key}"
    if not isinstance(path, str):
        raise ValueError(f"path must be a name such as '{NAMESPACE}/mqar', or a task, got {type(path).__name__}")
    if not path.startswith(f"{NAMESPACE}/"):
        handed_on = {"streaming": streaming, "num_proc": num_proc, "cache_dir": cache_dir, "revision": revision}
        return _load_other(path, name, split=split, download_mode=download_mode, **handed_on, **knobs)
    task = path.removeprefix(f"{NAMESPACE}/")
    check_names([task], TASKS, f"dataset of {NAMESPACE}")
    version = task_class(task).version
    if revision not in (None, version):
        raise ValueError(f"revision must be None or {version!r}, the installed version of {path}, got {revision!r}")
    mode = datasets.DownloadMode(download_mode or "reuse_dataset_if_exists")
    fresh = mode != datasets.DownloadMode.REUSE_DATASET_IF_EXISTS
    builder = MemoryBuilder(task, name, cache_dir=_text(cache_dir), replace_damaged=fresh, **knobs)
    if streaming:
        return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare(num_proc=num_proc, download_mode=mode)
    stored = builder.stored()
    return stored if split is None else builder.as_dataset(split=split)


def _load_other(path: str, *args: Any, **kwargs: Any) -> Any:
    """A dataset that is not of this package. Raises a ``ValueError`` where only the namespace of a task is missing."""
    try:
        return datasets.load_dataset(path, *args, **kwargs)
    except (OSError, ValueError) as error:
        key = path.rpartition("/")[2]
        if key not in TASKS:
            raise
        name = f"{NAMESPACE}/{key}"
        raise ValueError(f"path: {path!r} is no dataset that can be reached; did you mean {name!r}?") from error


def build(
    task: str,
    config: str | None = None,
    *,
    cache_dir: str | Path | None = None,
    num_proc: int | None = None,
    force: bool = False,
    **overrides: Any,
) -> Path:
    """Put a configuration into the standard cache, where ``datasets.load_dataset("hf_memory/<task>")`` finds it.

    A folder that is there and whole is kept, a damaged one is replaced, and older ones of the configuration are
    removed, because ``datasets`` returns what was built last.

    Args:
        task: Key of the task.
        config: Name of a preset; the task's first one by default.
        cache_dir: Root of the cache.
        num_proc: Number of processes that generate.
        force: Generate anew in any case.
        **overrides: Keywords of every dataset and knobs of the task.

    Returns:
        The cache folder.
    """
    builder = MemoryBuilder(task, config, cache_dir=_text(cache_dir), replace_damaged=True, **overrides)
    if not force and builder.folder.exists():
        try:
            builder.stored()
        except DamagedCacheError:
            force = True
    mode = datasets.DownloadMode.FORCE_REDOWNLOAD if force else datasets.DownloadMode.REUSE_DATASET_IF_EXISTS
    builder.download_and_prepare(num_proc=num_proc, download_mode=mode)
    remove_others(builder.folder)
    return builder.folder


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
