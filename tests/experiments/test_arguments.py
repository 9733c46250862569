"""The command line of a training run: what it accepts, and which of it makes another cell."""

import dataclasses
import functools
import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments

from hf_memory.experiments.arguments import make_parser, parse_arguments, parse_fields
from hf_memory.experiments.results import read_definition
from hf_memory.experiments.run import _HARMLESS, _HARMLESS_GROUPS, _WHEN_KEPT, Experiment

SMALL = ["--model", "hidden_size=8", "num_hidden_layers=1", "--data", "length=8", "test_lengths=[8,16]"]
KEEP = ["--eval_strategy", "steps", "--save_strategy", "steps", "--eval_steps", "5", "--save_steps"]
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
        experiment, _, _, _ = parse_arguments(way)
        assert experiment.specification.overrides == {"length": 6, "num_test": 9}
        assert experiment.fields == {"hidden_size": 8, "norm": "layer"}
    assert parse_arguments(["--data", "length=[3, 40]"])[0].specification.overrides == {"length": [3, 40]}


@pytest.mark.parametrize("flag", ["--max_steps", "--max-steps"])
def test_both_spellings_of_a_flag_are_read(flag):
    assert parse_arguments([flag, "7"])[0].training == parse_arguments([f"{flag}=7"])[0].training == {"max_steps": 7}


@pytest.mark.parametrize("flag", ["--lr", "--learning_rate", "--learning-rate"])
def test_lr_is_the_learning_rate(flag):
    assert parse_arguments([flag, "3e-3"])[0].training == {"learning_rate": 3e-3}
    with pytest.raises(ValueError, match=r"learning_rate must be at least 0, got -1.0"):
        parse_arguments([flag, "-1"])
    assert "learning_rate" not in parse_arguments([])[0].training


def test_unknown_arguments_and_damaged_values_are_errors_of_one_line():
    for argv, message in (
        (["--max_stepz", "3"], "unrecognized arguments: --max_stepz 3; did you mean --max_steps?"),
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
    experiment, _, _, _ = parse_arguments(["--data_seed", "5"])
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


def test_finished_run_is_read_and_not_repeated_and_says_so(caplog, monkeypatch):
    arguments = ["--mixer", "lru", "--smoke", "--max_steps", "2", "--output_dir", "run", *SMALL, *QUIET]
    experiment, results, output_dir, _ = parse_arguments(arguments)
    first = experiment.run(results, output_dir)
    assert {row.code for row in first} == {experiment.code()}
    weights, written = Path("run/model.safetensors"), os.stat("run/model.safetensors").st_mtime_ns
    with caplog.at_level(logging.WARNING):
        assert experiment.run(results, output_dir) == first
    assert f"finished before: rows from results/{first[0].cell}.jsonl; no checkpoint was written" in caplog.text
    assert os.stat(weights).st_mtime_ns == written
    weights.unlink()  # a checkpoint that is gone is trained again, and is the same
    assert [row.weights_sha256 for row in experiment.run(results, output_dir)] == [row.weights_sha256 for row in first]
    written = os.stat(weights).st_mtime_ns
    experiment.run(results, output_dir, overwrite=True)
    assert os.stat(weights).st_mtime_ns > written
    monkeypatch.setattr(Experiment, "code", lambda self: "another")
    experiment.run(results, output_dir)
    assert f"finished before, made by other code ({first[0].code}): rows from" in caplog.text
    other, _, _, _ = parse_arguments([*arguments, "--seed", "1"])
    assert other.cell("run") != experiment.cell("run") == first[0].cell
    (path,) = os.listdir("results")
    assert read_definition(os.path.join("results", path))["training"]["max_steps"] == 2


def test_experiment_refuses_unknown_arguments_of_trainer():
    with pytest.raises(ValueError, match="did you mean 'max_steps'"):
        Experiment(SimpleNamespace(), "lstm", training={"max_step": 3})


def test_every_argument_that_may_change_a_number_belongs_to_the_run():
    base = ["--mixer", "lru", *SMALL]
    cell = parse_arguments(base)[0].cell("run")
    assert parse_arguments([*base, *KEEP, "5"])[0].cell("run") == cell
    best = [parse_arguments([*base, "--load_best_model_at_end", "True", *KEEP, n])[0].cell("run") for n in ("5", "10")]
    assert len({cell, *best}) == 3
    for change in (
        ["--dataloader_drop_last", "True"],
        ["--train_sampling_strategy", "group_by_length"],
        ["--auto_find_batch_size", "True"],
        ["--torch_empty_cache_steps", "4", "--average_tokens_across_devices", "False"],
        ["--accelerator_config", '{"split_batches": true}'],
    ):
        assert parse_arguments([*base, *change])[0].cell("run") != cell, change


def test_each_argument_of_trainer_is_harmless_or_moves_the_digest():
    experiment = parse_arguments(["--mixer", "lru", *SMALL])[0]
    arguments = experiment.make_arguments("run")
    before = experiment.definition(arguments)
    silent = _HARMLESS | _WHEN_KEPT
    for field in dataclasses.fields(arguments):
        if not field.init or field.name in silent or field.name.startswith(_HARMLESS_GROUPS):
            continue
        changed = experiment.make_arguments("run")
        changed.to_dict = functools.partial(changed_value, changed, field.name)
        own = dataclasses.replace(experiment, training={field.name: "changed"})
        assert own.definition(changed)["training"] != before["training"], field.name
    assert {"max_steps", "learning_rate", "dataloader_drop_last", "optim"}.isdisjoint(silent)


def changed_value(arguments, name):
    """The values of arguments, with another one under a name."""
    return {**TrainingArguments.to_dict(arguments), name: "changed"}
