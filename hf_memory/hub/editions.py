"""Published editions: which configurations, lengths, sizes and seeds make the dataset of a task.

An edition is a table in a script of its own; :func:`run_edition` is what all of these scripts do with theirs.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hf_memory.data.parquet import export
from hf_memory.data.specification import SIZES, specify
from hf_memory.hub.datasets import push_dataset
from hf_memory.names import check_names
from hf_memory.tasks import task_class


@dataclasses.dataclass(frozen=True)
class Edition:
    """What is published of a task.

    Attributes:
        task: Key of the task.
        version: Version of the law that the edition was made for.
        configs: Keywords of each configuration by its published name; the preset is that name unless ``preset`` says
            otherwise.
        shared: Keywords of all configurations.
    """

    task: str
    version: str
    configs: Mapping[str, Mapping[str, Any]]
    shared: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {**SIZES, "seed": 0})

    def requests(self, names: Sequence[str] | None = None, limit: int | None = None) -> dict[str, dict[str, Any]]:
        """The keywords of each configuration.

        Args:
            names: Configurations to take; all by default.
            limit: Largest number of rows of a split, for a trial; no limit by default.

        Raises:
            ValueError: Where the installed law has another version, a name is unknown, or the limit is below 1.
        """
        installed = task_class(self.task).version
        if installed != self.version:
            raise ValueError(
                f"version of the edition of hf_memory/{self.task} is {self.version}, installed: {installed}"
            )
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        check_names(names or (), self.configs, f"configuration of the edition of hf_memory/{self.task}")
        requests = {}
        for name in names or self.configs:
            keywords = {"preset": name, **self.shared, **self.configs[name]}
            if limit is not None:
                keywords |= {size: min(limit, keywords.get(size, count)) for size, count in SIZES.items()}
            specify(self.task, **keywords)
            requests[name] = keywords
        return requests


def run_edition(edition: Edition, arguments: Sequence[str] | None = None) -> str:
    """Write an edition to a folder or upload it, as the command line says.

    Args:
        edition: The edition.
        arguments: Arguments of the command line; those of the process by default.

    Returns:
        The folder, or the address of the commit.
    """
    parser = argparse.ArgumentParser(description=f"Write or upload the published edition of hf_memory/{edition.task}.")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--output_dir", help=f"folder in which the folder {edition.task} is made")
    target.add_argument("--push_to_hub", metavar="NAMESPACE/NAME", help="dataset repository on the Hub")
    parser.add_argument("--revision", help="branch to upload to; the main branch by default")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--configs", nargs="+", choices=list(edition.configs), help="take these configurations only")
    parser.add_argument("--num_proc", type=int, help="number of processes that generate")
    parser.add_argument("--limit", type=int, help="at most so many rows in each split, for a trial")
    given = parser.parse_args(arguments)
    requests = edition.requests(given.configs, given.limit)
    if given.output_dir is not None:
        return str(export(edition.task, given.output_dir, requests, num_proc=given.num_proc))
    options = {"revision": given.revision, "private": given.private or None, "num_proc": given.num_proc}
    return str(push_dataset(edition.task, given.push_to_hub, requests, **options))
