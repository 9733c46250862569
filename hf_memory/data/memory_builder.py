"""The ``datasets`` builder of every task.

``datasets`` replaces names such as ``np`` and ``Path`` in the module of a builder by variants that read remote files,
so this module holds the builder alone and imports none of them.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from typing import Any

import datasets
import pyarrow as pa

from hf_memory.data import folders
from hf_memory.data.rows import RowSource
from hf_memory.data.specification import Specification, specify

STREAM_SHARDS = 10_080
"""Shards of an unbounded stream, one block each: a number that 1 to 10, 12, 14, 15, 16 and 32 readers share evenly."""

ENDLESS_SHARDS = 1_440
"""The last shards of a stream go on for ever, each with blocks of its own, and every reader owns some of them."""


@dataclasses.dataclass
class MemoryBuilderConfig(datasets.BuilderConfig):
    """A configuration of ``datasets`` together with the specification it stands for."""

    specification: Specification | None = None

    def create_config_id(self, config_kwargs: dict[str, Any], custom_features: datasets.Features | None = None) -> str:
        """Name of the configuration's folder: it depends on the overrides and on nothing else."""
        if self.specification is None:
            raise ValueError("specification must be given")
        return folders.configuration_id(self.specification)


class MemoryBuilder(datasets.ArrowBasedBuilder):
    """Writes or streams a configuration of a task.

    Args:
        task: Key of the task.
        config_name: Name of a preset; the task's first one by default.
        cache_dir: Root of the cache; that of ``datasets`` by default.
        replace_damaged: Remove the folder of an earlier build that cannot be read, instead of reporting it.
        **overrides: Keywords of every dataset and knobs of the task.

    Raises:
        ValueError: For unknown names, impossible values, where a split would be empty, and where the cache folder of
            the configuration is damaged.
    """

    BUILDER_CONFIG_CLASS = MemoryBuilderConfig

    def __init__(
        self,
        task: str,
        config_name: str | None = None,
        *,
        cache_dir: str | None = None,
        replace_damaged: bool = False,
        **overrides: Any,
    ) -> None:
        self.specification = specify(task, config_name, **overrides)
        self.source = RowSource(self.specification)
        self.source.warn_of_shortfalls()
        key = self.source.digest()
        self.folder = folders.cache_folder(self.specification, key, cache_dir)
        try:
            self._read_folder(key, cache_dir)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # All that is read here is the description that an earlier build left.
            if not self.folder.exists():
                raise
            if not replace_damaged:
                raise folders.DamagedCacheError(self.folder, self.specification, error) from error
            shutil.rmtree(self.folder)
            self._read_folder(key, cache_dir)

    def _read_folder(self, key: str, cache_dir: str | None) -> None:
        super().__init__(
            cache_dir=None if cache_dir is None else str(cache_dir),
            dataset_name=self.specification.task.key,
            config_name=self.specification.preset,
            hash=key,
            repo_id=f"{folders.NAMESPACE}/{self.specification.task.key}",
            version=self.specification.task.version,
            specification=self.specification,
        )

    def _info(self) -> datasets.DatasetInfo:
        task = self.specification.task
        label = "float32" if task.problem_type == "regression" else "int32"
        return datasets.DatasetInfo(
            description=(type(task).__doc__ or "").strip().split("\n")[0],
            features=datasets.Features(
                {"input_ids": datasets.List(datasets.Value("int32")), "labels": datasets.List(datasets.Value(label))}
            ),
            license="apache-2.0",
        )

    def _split_generators(
        self, dl_manager: datasets.DownloadManager | datasets.StreamingDownloadManager
    ) -> list[datasets.SplitGenerator]:
        generators = []
        for name, split in self.specification.splits.items():
            endless = dl_manager.is_streaming and split.role == "train"
            blocks = list(range(STREAM_SHARDS if endless else self.source.num_blocks(name)))
            kwargs = {"split": name, "blocks": blocks, "endless": endless}
            generators.append(datasets.SplitGenerator(name=name, gen_kwargs=kwargs))
        return generators

    def _generate_tables(self, split: str, blocks: list[int], endless: bool) -> Iterator[tuple[int, pa.Table]]:
        for first in blocks:
            yield first, folders.table_of_rows(self.source.block(split, first, endless=endless))
            block = first
            while endless and first >= STREAM_SHARDS - ENDLESS_SHARDS:
                block += ENDLESS_SHARDS
                yield block, folders.table_of_rows(self.source.block(split, block, endless=True))

    def download_and_prepare(self, output_dir: str | None = None, **kwargs: Any) -> None:
        """Generate the configuration, in the cache unless ``output_dir`` is given.

        A cache folder only comes to be when it is complete. Takes the arguments of the method of ``datasets``.

        Raises:
            DamagedCacheError: Where the folder of an earlier build is to be kept but lacks its description.
        """
        if output_dir is not None:
            super().download_and_prepare(output_dir, **kwargs)
            return
        mode = datasets.DownloadMode(kwargs.get("download_mode") or "reuse_dataset_if_exists")
        keep = mode == datasets.DownloadMode.REUSE_DATASET_IF_EXISTS
        with folders.build_lock(self.folder):
            if keep and self.folder.exists():
                if not (self.folder / datasets.config.DATASET_INFO_FILENAME).exists():
                    raise folders.DamagedCacheError(self.folder, self.specification, "its description is missing")
                super().download_and_prepare(str(self.folder), **kwargs)
                return
            with folders.replacing(self.folder) as written:
                super().download_and_prepare(str(written), **kwargs)
            self._output_dir = str(self.folder)

    def stored(self) -> datasets.DatasetDict:
        """All splits of a configuration that lies in the cache.

        Raises:
            DamagedCacheError: Where files are missing, unreadable or not those of this configuration.
        """
        try:
            stored = self.as_dataset()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise folders.DamagedCacheError(self.folder, self.specification, error) from error
        folders.check_stored(self.folder, self.specification, stored, self.hash)
        return stored
