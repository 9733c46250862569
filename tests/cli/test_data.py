"""``hf-memory data``: rows as text, in the cache and as Parquet."""

import os

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
    assert os.path.isdir(result.stdout.split()[-1])
    result = runner.invoke(app, ["data", "export", "--config", "iid_32", *small, "bit_parity", "out"])
    assert result.exit_code == 0, result.output
    assert datasets.load_dataset("out/bit_parity", "iid_32")["train"].num_rows == 64
