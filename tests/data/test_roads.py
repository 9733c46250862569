"""The three roads to a dataset give the same rows, for every task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from hf_memory.data.builder import build, load_dataset
from hf_memory.data.parquet import config_names, export
from hf_memory.data.specification import specify
from hf_memory.tasks import TASKS, task_class

PLAIN = """
import json, sys
import datasets
for task, preset, keywords in json.loads(sys.argv[1]):
    loaded = datasets.load_dataset(f"hf_memory/{task}", preset, **keywords)
    print(json.dumps({name: split[:] for name, split in loaded.items()}))
"""


def _small(task: str) -> dict[str, object]:
    """Keywords of a small configuration with one test split."""
    preset = next(iter(task_class(task).presets.values()))
    return {"num_train": 70, "num_validation": 12, "num_test": 12, "test_lengths": [preset.test_lengths[-1]]}


def _columns(loaded: datasets.DatasetDict) -> dict[str, dict[str, list[list[float]]]]:
    return {name: split[:] for name, split in loaded.items()}


@pytest.mark.parametrize("task", TASKS)
def test_exported_and_streamed_rows_are_those_that_are_generated(tmp_path: Path, task: str) -> None:
    keywords = _small(task)
    generated = load_dataset(f"hf_memory/{task}", cache_dir=tmp_path / "cache", **keywords)
    folder = export(task, tmp_path, cache_dir=tmp_path / "cache", **keywords)
    exported = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "other"))
    assert exported["train"].features == generated["train"].features
    assert _columns(exported) == _columns(generated)
    streamed = load_dataset(f"hf_memory/{task}", streaming=True, cache_dir=tmp_path / "cache", **keywords)
    for name, rows in streamed.items():
        assert list(rows.take(len(generated[name]))) == generated[name].to_list()


def test_built_rows_are_found_by_plain_datasets(tmp_path: Path) -> None:
    expected = []
    for task in TASKS:
        build(task, cache_dir=tmp_path, **_small(task))
        expected.append(_columns(load_dataset(f"hf_memory/{task}", cache_dir=tmp_path, **_small(task))))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)}
    wanted = [(task, config_names(task)[0], specify(task, **_small(task)).overrides) for task in TASKS]
    command = [sys.executable, "-c", PLAIN, json.dumps(wanted)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
