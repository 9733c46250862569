"""Training and evaluation on two processes give what one gives: losses, counts, and one file of rows."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from hf_memory.data.builder import load_dataset
from hf_memory.experiments.evaluation import evaluate_lengths, load_for_task
from hf_memory.experiments.results import read_rows
from hf_memory.mixers.auto import mixer_config, mixer_model
from tests.distributed.launching import CONFIGS, launch
from tests.distributed.training_ranks import STEPS, experiment, run

RANKS = Path(__file__).with_name("training_ranks.py")
GLOO = ("accelerate.commands.launch", "--config_file", str(CONFIGS / "cpu_gloo.yaml"))
ROWS_PER_STEP = 16


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    losses, rows = run(folder, ROWS_PER_STEP)
    return folder, losses, rows


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    found = launch(str(RANKS), str(folder), str(ROWS_PER_STEP // 2), launcher=GLOO)
    return folder, found["losses"], found["rows"]


def test_the_loss_of_every_step_is_that_of_one_process(one, two):
    assert len(one[1]) == len(two[1]) == STEPS
    assert two[1] == pytest.approx(one[1], rel=2e-5)
    assert len(set(one[1])) == STEPS


def test_both_processes_return_the_same_rows_and_one_file_holds_them(one, two):
    folder, _, (first, second) = two
    assert first == second
    (mine,), (theirs,) = (list((base / "results").glob("*.jsonl")) for base in (one[0], folder))
    assert mine.name == theirs.name
    assert [row.split for row in read_rows(theirs)] == ["validation", "test_12", "test_16"]


def test_rows_differ_in_times_and_in_the_rounding_of_weights_alone(one, two):
    for mine, theirs in zip(one[2], two[2][0], strict=True):
        differing = {name for name in mine if mine[name] != theirs[name]}
        assert differing <= {"train_seconds", "eval_seconds", "weights_sha256", "metrics"}
        for name, value in mine["metrics"].items():
            assert theirs["metrics"][name]["denominator"] == value["denominator"]
            assert theirs["metrics"][name]["value"] == pytest.approx(value["value"], rel=1e-4)


def test_one_process_counts_the_same_for_the_weights_of_two(two):
    folder, _, (rows, _) = two
    specification = experiment(1).specification
    data = load_dataset("hf_memory/bit_parity", **specification.overrides)
    splits = {name: data[name] for name in data if name != "train"}
    assert [len(split) for split in splits.values()] == [97, 97, 97]
    model = load_for_task(folder / "run", specification.task)
    found = evaluate_lengths(model, specification, splits, batch_size=8, progress=False)
    for alone, together in zip(found, rows, strict=True):
        for name in ("token_accuracy", "sequence_accuracy"):
            counts = together["metrics"][name]
            assert (counts["numerator"], counts["denominator"]) == (
                alone.metrics[name].numerator,
                alone.metrics[name].denominator,
            )
        assert alone.metrics["sequence_accuracy"].denominator == 97
        assert together["metrics"]["loss"]["value"] == pytest.approx(alone.metrics["loss"].value, rel=1e-6)


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "zero2", "cpu_gloo"])
def test_accelerate_reads_the_example_configurations(name):
    path = CONFIGS / f"{name}.yaml"
    config = load_config_from_file(str(path))
    assert config.num_processes == 2
    assert config.mixed_precision == "no"
    assert bool(config.use_cpu) == (name == "cpu_gloo")
    if name == "zero2":
        assert config.distributed_type == "DEEPSPEED"
        assert config.deepspeed_config["zero_stage"] == 2
        assert config.deepspeed_config["gradient_accumulation_steps"] == "auto"  # the script's own
    if name == "fsdp2":
        settings = yaml.safe_load(path.read_text())["fsdp_config"]
        assert settings["fsdp_version"] == 2
        wrapped = settings["fsdp_transformer_layer_cls_to_wrap"]
        model = mixer_model(mixer_config("lru", vocab_size=4, hidden_size=8), "causal")
        assert wrapped in {type(module).__name__ for module in model.modules()}
        assert wrapped in model._no_split_modules
