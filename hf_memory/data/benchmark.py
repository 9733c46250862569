"""The file by which the Hub takes a dataset for a benchmark, and lists on it what models report."""

from collections.abc import Mapping

import yaml

from hf_memory.data.specification import Specification

BENCHMARK = "eval.yaml"
"""Name of the file."""

FRAMEWORK = "hf_memory"
"""Name of the evaluation framework, here and where models report."""


def benchmark_yaml(published: Mapping[str, Specification]) -> str:
    """The text of the file: one entry for each test split of each published configuration."""
    task = next(iter(published.values())).task
    tasks = [
        {"id": task_id(name, split), "config": name, "split": split}
        for name, specification in published.items()
        for split in specification.splits
        if split.startswith("test")
    ]
    content = {
        "name": f"hf_memory: {task.key.replace('_', ' ')}",
        "description": f"Memory of sequence models ({task.category}), by length; metric: {task.headline_metric}",
        "evaluation_framework": FRAMEWORK,
        "tasks": tasks,
    }
    return yaml.safe_dump(content, sort_keys=False)


def task_id(config: str, split: str) -> str:
    """Name of a split within the benchmark."""
    return f"{config}_{split}"
