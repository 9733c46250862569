"""The command line of a training run: what it accepts, and which of it makes another cell."""

import os
import re
from types import SimpleNamespace

import pytest

from hf_memory.experiments.arguments import make_parser, parse_arguments, parse_fields
from hf_memory.experiments.results import read_definition
from hf_memory.experiments.run import Experiment

SMALL = ["--model", "hidden_size=8", "num_hidden_layers=1", "--data", "length=8", "test_lengths=[8,16]"]
QUIET = ["--disable_tqdm", "True", "--use_cpu", "True"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_pairs_follow_a_flag_or_each_has_its_own():
    ways = [
        ["--data", "length=6", "num_test=9", "--model", "hidden_size=8", "norm=layer"],
        ["--data", "length=6", "--model", "hidden_size=8", "--data", "num_test=9", "--model", "norm=layer"],
        ["--data=length=6", "num_test=9", "--model=hidden_size=8", "--model=norm=layer"],
    ]
    for way in ways:
        experiment, _, _ = parse_arguments(way)
        assert experiment.specification.overrides == {"length": 6, "num_test": 9}
        assert experiment.fields == {"hidden_size": 8, "norm": "layer"}
    assert parse_arguments(["--data", "length=[3, 40]"])[0].specification.overrides == {"length": [3, 40]}


@pytest.mark.parametrize("flag", ["--max_steps", "--max-steps"])
def test_both_spellings_of_a_flag_are_read(flag):
    assert parse_arguments([flag, "7"])[0].training == parse_arguments([f"{flag}=7"])[0].training == {"max_steps": 7}


@pytest.mark.parametrize("flag", ["--lr", "--learning_rate", "--learning-rate"])
def test_lr_is_the_learning_rate(flag):
    assert parse_arguments([flag, "3e-3"])[0].training == {"learning_rate": 3e-3}
    assert parse_arguments([flag, "-1"])[0].training == {"learning_rate": -1.0}
    assert "learning_rate" not in parse_arguments([])[0].training


def test_unknown_arguments_and_damaged_values_are_errors_of_one_line():
    for argv, message in (
        (["--max_stepz", "3"], "unrecognized arguments: --max_stepz 3; --help lists the arguments"),
        (["--max_steps", "many"], "argument --max_steps/--max-steps: invalid int value: 'many'"),
        (["--data"], "argument --data: expected at least one argument"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            parse_arguments(argv)
        assert "\n" not in str(error.value)


def test_help_lists_the_arguments_in_both_spellings():
    lines = make_parser("hf-memory train").format_help().splitlines()
    assert lines[0].startswith("usage: hf-memory train --mixer MIXER --task TASK")
    text = " ".join(" ".join(lines).split())
    for words in (
        "--max_steps MAX_STEPS, --max-steps MAX_STEPS",
        "--lr LEARNING_RATE",
        "--data NAME=VALUE [NAME=VALUE",
    ):
        assert words in text


def test_fields_are_json_or_text():
    text = ["a=1", "b=1e-3", "c=[1,2]", "d=rope", "e=True", "f=None", "g=null", "h="]
    values = {"a": 1, "b": 1e-3, "c": [1, 2], "d": "rope", "e": True, "f": None, "g": None, "h": ""}
    assert parse_fields(text, "model") == values
    with pytest.raises(ValueError, match="'a' is given twice"):
        parse_fields(["a=1", "a=2"], "model")


def test_data_seed_is_that_of_rows_and_of_their_order():
    experiment, _, _ = parse_arguments(["--data_seed", "5"])
    assert experiment.specification.seed == experiment.make_arguments("run").data_seed == 5
    with pytest.raises(ValueError, match="data_seed: 5 differs from data seed=4"):
        parse_arguments(["--data_seed", "5", "--data", "seed=4"])


def test_cell_depends_on_what_changes_the_outcome_and_on_nothing_else():
    base = ["--mixer", "lru", "--output_dir", "run", "--max_steps", "5"]
    cell = parse_arguments(base)[0].cell("run")
    for change in (
        ["--learning_rate", "0.01"],
        ["--model", "hidden_size=16"],
        ["--data", "length=16"],
        ["--data_seed", "1"],
        ["--optim_groups", "uniform"],
        ["--per_device_train_batch_size", "32"],
        ["--gradient_accumulation_steps", "2"],
        ["--warmup_steps", "3"],
    ):
        assert parse_arguments([*base, *change])[0].cell("run") != cell, change
    for same in (["--logging_steps", "1"], ["--disable_tqdm", "True"], ["--results", "elsewhere"]):
        assert parse_arguments([*base, *same])[0].cell("run") == cell, same
    halves = ["--per_device_train_batch_size", "32", "--gradient_accumulation_steps", "2"]
    assert parse_arguments([*base, *halves])[0].cell("run") == cell


def test_finished_run_is_read_and_not_repeated():
    arguments = ["--mixer", "lru", "--smoke", "--max_steps", "2", "--output_dir", "run", *SMALL, *QUIET]
    experiment, results, output_dir = parse_arguments(arguments)
    first = experiment.run(results, output_dir)
    os.remove(os.path.join("run", "model.safetensors"))
    assert experiment.run(results, output_dir) == first
    assert not os.path.exists(os.path.join("run", "model.safetensors"))
    other, _, _ = parse_arguments([*arguments, "--seed", "1"])
    assert other.cell("run") != experiment.cell("run") == first[0].cell
    (path,) = os.listdir("results")
    assert read_definition(os.path.join("results", path))["training"]["max_steps"] == 2


def test_experiment_refuses_unknown_arguments_of_trainer():
    with pytest.raises(ValueError, match="did you mean 'max_steps'"):
        Experiment(SimpleNamespace(), "lstm", training={"max_step": 3})
