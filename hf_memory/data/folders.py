"""Cache folders: how a configuration is called there, how a folder comes to be, and whether a stored one is whole."""

import contextlib
import glob
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from filelock import FileLock, Timeout

from hf_memory.data.drawing import Rows, digest_heads
from hf_memory.data.rows import HEAD_ROWS
from hf_memory.data.specification import Specification
from hf_memory.storage import HOST

NAMESPACE = "hf_memory"

_LOCK = ".lock"
_ABANDONED = 3600.0
"""Age in seconds at which a folder without a lock counts as left."""


class DamagedCacheError(ValueError):
    """A stored configuration is incomplete or altered."""

    def __init__(self, folder: Path, specification: Specification, reason: object) -> None:
        task, preset = specification.task.key, specification.preset
        command = "" if specification.overrides else f"`hf-memory data build {task} --config {preset}` or "
        super().__init__(
            f"the cache folder {folder} of {NAMESPACE}/{task} is damaged ({reason}); rebuild it with {command}"
            f"hf_memory.load_dataset(..., download_mode='force_redownload')"
        )
        self.folder = folder


def configuration_id(specification: Specification) -> str:
    """Name of the configuration in the cache, by the rule of ``datasets``, so that ``datasets`` finds it as well."""
    return datasets.BuilderConfig(specification.preset).create_config_id(dict(specification.overrides))


def loading_calls(specification: Specification) -> tuple[str, str]:
    """The calls that load a configuration: of this package, which generates it where it has to, and of ``datasets``.

    ``datasets`` finds a stored one by what differs from its preset, as JSON values: other spellings of the same, such
    as a tuple or a default, have other digests there.
    """
    given = "".join(f", {name}={value!r}" for name, value in specification.overrides.items())
    call = f'load_dataset("{NAMESPACE}/{specification.task.key}", "{specification.preset}"{given})'
    return f"{NAMESPACE}.{call}", f"datasets.{call}"


def cache_folder(specification: Specification, key: str, cache_dir: str | Path | None) -> Path:
    """Where ``datasets`` looks for a configuration."""
    root = Path(cache_dir or datasets.config.HF_DATASETS_CACHE).expanduser()
    dataset = root / f"{NAMESPACE}___{specification.task.key}"
    return dataset / configuration_id(specification) / specification.task.version / key


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give a path to write to, and rename it to ``folder`` when the block ends without an error.

    Nobody sees half a folder. It is written beside the configurations, under a name with a leading dot, because
    ``datasets`` takes every visible folder on its level for a dataset.
    """
    staging = _staging(folder)
    # Whoever builds holds the lock, so whatever lies here was left by a process that was killed.
    shutil.rmtree(staging, ignore_errors=True)
    for other in staging.parent.iterdir():
        if other.is_dir() and other != staging:
            _remove_left(other, Path(f"{other}.lock"))
    written = staging / uuid.uuid4().hex
    try:
        yield written
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        written.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def working_folder(parent: str | Path, name: str) -> Iterator[Path]:
    """Give a folder to work in, ``.<name>-<digits>``, which is removed at the end.

    Those that processes of this host left which were killed are removed first: each holds a lock in its own while it
    works. Those of other hosts stay.
    """
    parent = Path(parent)
    parent.mkdir(parents=True, exist_ok=True)
    for other in parent.glob(f".{glob.escape(name)}-{HOST}{'[0-9a-f]' * 24}"):
        # A folder without a lock may have been made just now.
        if (other / _LOCK).exists() or _age(other) > _ABANDONED:
            _remove_left(other, other / _LOCK)
    folder, lock = _locked_folder(parent, name)
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder(parent: Path, name: str) -> tuple[Path, FileLock]:
    """A new folder and the lock in it that is held."""
    while True:
        folder = parent / f".{name}-{HOST}{uuid.uuid4().hex[:24]}"
        folder.mkdir()
        lock = FileLock(folder / _LOCK)
        with contextlib.suppress(Timeout, FileNotFoundError):
            lock.acquire(blocking=False)
            if (folder / _LOCK).exists():
                return folder, lock
            lock.release()
        # Another process saw the lock before it was held, and has removed the folder.


def _remove_left(folder: Path, lock: Path) -> None:
    """Remove a folder whose lock nobody holds. That of another user stays."""
    with contextlib.suppress(OSError, Timeout), FileLock(lock, blocking=False):
        shutil.rmtree(folder, ignore_errors=True)


def _age(folder: Path) -> float:
    """Seconds since a folder was changed; none where it has gone."""
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0


def build_lock(folder: Path) -> FileLock:
    """The lock under which a configuration is built."""
    staging = _staging(folder)
    staging.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{staging}.lock")


def remove_others(folder: Path) -> None:
    """Remove the other versions and keys of a configuration, of which ``datasets`` would take the youngest."""
    for version in folder.parents[1].iterdir():
        for other in version.iterdir() if version.is_dir() else ():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)


def check_stored(folder: Path, specification: Specification, stored: datasets.DatasetDict, key: str) -> None:
    """Raise a :class:`DamagedCacheError` unless the first rows of a stored configuration are those of its key."""
    heads = {}
    for name in specification.splits:
        if name not in stored:
            raise DamagedCacheError(folder, specification, f"split {name!r} is missing")
        table = stored[name].with_format("arrow")[:HEAD_ROWS]
        heads[name] = rows_of_table(table)
    if digest_heads(specification.task.version, heads) != key:
        raise DamagedCacheError(folder, specification, "its first rows are not those that its name stands for")


def table_of_rows(rows: Rows) -> pa.Table:
    """Rows as an Arrow table that shares their memory."""
    offsets = pa.array(rows.offsets, type=pa.int32())
    columns = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (rows.input_ids, rows.labels)]
    return pa.Table.from_arrays(columns, names=["input_ids", "labels"])


def rows_of_table(table: pa.Table) -> Rows:
    """The rows of an Arrow table."""
    ids, labels = (table[column].combine_chunks() for column in ("input_ids", "labels"))
    lengths = np.asarray(ids.value_lengths(), dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32)])
    return Rows(ids.flatten().to_numpy(), labels.flatten().to_numpy(), offsets)


def _staging(folder: Path) -> Path:
    return folder.parents[2] / ".building" / folder.parents[1].name
