"""Result rows in the forms of the Hub."""

import json
import math
import shlex
from pathlib import Path

import pytest
import yaml

from hf_memory.data.benchmark import benchmark_yaml
from hf_memory.data.specification import specify
from hf_memory.experiments.arguments import parse_arguments
from hf_memory.experiments.run import Experiment
from hf_memory.hub.results import (
    eval_results_yaml,
    preset_of,
    rows_from_table,
    rows_of_weights,
    rows_table,
    training_command,
)
from tests.hub.rows import WEIGHTS, row


def test_only_rows_of_these_weights_count_and_the_larger_evaluation_wins() -> None:
    stranger = row(weights_sha256="cd" * 32)
    small, whole = row(rows=8), row(rows=3_000, cell="c2")
    assert rows_of_weights([small, stranger, whole], WEIGHTS) == [whole]
    assert rows_of_weights([row(weights_sha256="")], "") == []


def test_results_of_whole_published_splits_alone_enter_the_benchmark() -> None:
    assert preset_of(row()) == "iid_32"
    assert preset_of(row(task_knobs={"num_ones": 5})) is None
    entries = yaml.safe_load(eval_results_yaml([row("test_48"), row("test_48", rows=8), row("validation")]))
    assert entries == [
        {
            "dataset": {"id": "hf_memory/bit_parity", "task_id": "iid_32_test_48"},
            "value": 0.75,
            "notes": "token_accuracy, 96000 targets, data version 1.0.0+numpy2.4",
            "evaluation_framework": "hf_memory",
        }
    ]
    assert eval_results_yaml([row(data_seed=7)]) == ""
    listed = yaml.safe_load(benchmark_yaml({"iid_32": specify("bit_parity")}))["tasks"]
    assert {"id": "iid_32_test_48", "config": "iid_32", "split": "test_48"} in listed


def test_the_command_repeats_the_run(tmp_path: Path) -> None:
    experiment = Experiment(
        specify("mqar", "kv4_len64", num_train=100, test_lengths=[64, 128], seed=5),
        "delta_net",
        {"hidden_size": 32, "norm": "layer", "conv_kernel": 4},
        {"learning_rate": 3e-3, "max_steps": 7, "seed": 2, "per_device_train_batch_size": 16, "bf16": False},
        optim_groups="uniform",
        arm="delta net, wide",
    )
    definition = json.loads(json.dumps(experiment.definition(experiment.make_arguments(str(tmp_path)))))
    config = experiment.make_model(0).config
    command = training_command(definition, config)
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["hf-memory", "train"]
    again, _, folder, _ = parse_arguments([*words[2:], "--output_dir", str(tmp_path)])
    assert again.cell(folder) == experiment.cell(tmp_path)
    assert training_command({**definition, "stop_at": None}, config) == command
    assert training_command({**definition, "stop_at": 0.9}, config) is None
    assert training_command({"evaluation_of": "c0"}, config) is None


def test_rows_survive_the_table() -> None:
    rows = [row(), row("test_64", math.nan, seed=None, learning_rate=None)]
    table = rows_table(rows)
    assert table["value"].to_pylist()[0] == 0.75
    assert table["seed"].to_pylist() == [3, None]
    again = rows_from_table(table)
    assert again[0] == rows[0]
    assert math.isnan(again[1].value()) and again[1].seed is None
    with pytest.raises(ValueError, match="the column 'row' is missing"):
        rows_from_table(table.drop_columns(["row"]))


def test_values_that_are_not_numbers_enter_no_benchmark() -> None:
    assert eval_results_yaml([row("test_32", math.nan)]) == ""
