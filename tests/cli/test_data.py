"""``hf-memory data``: rows as text, in the cache and as Parquet."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hf_memory.cli.app import app

runner = CliRunner()


def test_configurations_are_named_or_all():
    result = runner.invoke(app, ["data", "build", "bit_parity", "--config", "iid_32", "--all"])
    assert result.exit_code == 2
    assert "not both" in result.output


@pytest.mark.parametrize("num_rows", ["--num-rows", "--num_rows"])
def test_data_show_prints_tokens_labels_and_scores(num_rows):
    output = runner.invoke(app, ["data", "show", "bit_parity", num_rows, "1", "--data", "length=6"]).output
    header, tokens, labels, scores = output.splitlines()
    assert header == "hf_memory/bit_parity iid_32 train, row 0"
    bits = [int(bit) for bit in tokens.split()[1:]]
    assert [int(label) for label in labels.split()[1:]] == [sum(bits[: t + 1]) % 2 for t in range(6)]
    assert scores.split()[1:] == ["^"] * 6


def test_data_build_and_export_write_what_datasets_reads():
    import datasets

    small = ["--data", "num_train=64", "num_validation=8", "num_test=8"]
    result = runner.invoke(app, ["data", "build", "bit_parity", *small])
    assert result.exit_code == 0, result.output
    assert os.path.isdir(result.stdout.splitlines()[-1])
    result = runner.invoke(app, ["data", "export", "--config", "iid_32", *small, "bit_parity", "out"])
    assert result.exit_code == 0, result.output
    assert datasets.load_dataset("out/bit_parity", "iid_32")["train"].num_rows == 64


BUILDS = [
    ("bit_parity", None, ["length=[4,8]", "test_lengths=[8]"]),
    ("bit_parity", "iid_32", ["length=32", "seed=0"]),  # what holds anyway is no part of the call
    ("mqar", "kv4_len64", ["slot_assignment=shuffled", "length=32"]),
    ("copying", None, ["seed=3"]),
]
LOAD = """
import json, sys
import datasets
for line in json.loads(sys.argv[1]):
    print(json.dumps({name: split[:] for name, split in eval(line).items()}))
"""


def test_data_build_prints_the_calls_that_load_what_it_built(tmp_path, monkeypatch):
    import datasets

    import hf_memory

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    plain, expected = [], []
    for task, config, keywords in BUILDS:
        small = ["--data", "num_train=24", "num_validation=4", "num_test=4", *keywords]
        result = runner.invoke(app, ["data", "build", task, *(["--config", config] if config else []), *small])
        assert result.exit_code == 0, result.output
        own, other, folder = result.stdout.splitlines()
        assert own == f"hf_memory.{other.removeprefix('datasets.')}"
        before = os.stat(folder).st_mtime_ns
        loaded = eval(own, {"hf_memory": hf_memory})
        assert os.stat(folder).st_mtime_ns == before  # found, and not made again
        assert os.path.dirname(loaded["train"].cache_files[0]["filename"]) == folder
        assert len(loaded["train"]) == 24
        plain.append(other)
        expected.append({name: split[:] for name, split in loaded.items()})
    assert plain[0] == (
        'datasets.load_dataset("hf_memory/bit_parity", "iid_32", '
        "length=[4, 8], num_test=4, num_train=24, num_validation=4, test_lengths=[8])"
    )
    assert "length" not in plain[1] and "seed" not in plain[1]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", LOAD, json.dumps(plain)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
