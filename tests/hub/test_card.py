"""Cards and the other forms of result rows, without a network."""

import json
import math
import shlex
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from hf_memory.data.benchmark import benchmark_yaml
from hf_memory.data.specification import specify
from hf_memory.experiments.arguments import parse_arguments
from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import Row
from hf_memory.experiments.run import Experiment
from hf_memory.hub.checkpoints import save_for_hub
from hf_memory.hub.model_card import BEGIN, END, merge_card, merge_text, model_card, split_card
from hf_memory.hub.results import (
    eval_results_yaml,
    preset_of,
    rows_from_table,
    rows_of_weights,
    rows_table,
    training_command,
)
from tests.contracts.models import make

WEIGHTS = "ab" * 32


def row(split: str = "test_32", value: float = 0.75, rows: int = 3_000, **changes) -> Row:
    """A row of the LRU on the default configuration of ``bit_parity``."""
    length = int(split.removeprefix("test_")) if split.startswith("test_") else 32
    metrics = {
        "token_accuracy": MetricValue(value, value * 32 * rows, 32 * rows, 0.5, {"all_zero": 0.45}),
        "sequence_accuracy": MetricValue(0.25, 0.25 * rows, rows, None, {}),
    }
    facts = {
        "cell": "c0", "arm": "lru", "mixer": "lru", "config_digest": "d0", "task": "bit_parity", "task_knobs": {},
        "data_version": "1.0.0+numpy2.4", "split": split, "length": length, "train_length": (32, 32), "seed": 3,
        "data_seed": 0, "learning_rate": 1e-3, "learning_rate_grid": (1e-4, 1e-3), "schedule": "cosine",
        "optim_groups": "documented", "stop_rule": "200 steps", "steps": 200, "tokens": 409600, "parameters": 1234,
        "parameters_non_embedding": 900, "parameters_per_block": 450, "state_numbers": 64, "state_bytes": 256,
        "headline": "token_accuracy", "metrics": metrics, "train_seconds": 2.5, "eval_seconds": 0.5, "device": "cpu",
        "backend": "torch", "versions": {"torch": "2.13"}, "weights_sha256": WEIGHTS,
    }  # fmt: skip
    return Row(**facts | changes)


def test_a_card_without_rows_has_no_results_and_invents_nothing() -> None:
    text = model_card(make("lru", "token_classification"), "me/lru")
    card = ModelCard(text)
    assert card.data.eval_results is None
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "token-classification",
        "tags": ["hf_memory", "lru"],
    }
    headings = [line for line in card.text.splitlines() if line.startswith("## ")]
    assert headings == ["## Model", "## Equations and source", "## Use", "## Limits"]
    assert "None" not in text and "null" not in text
    assert "Orvieto et al. (2023)" in text


def test_a_card_shows_values_levels_training_and_limits() -> None:
    rows = [row("test_32", 0.96), row("test_64", 0.625), row("validation", 0.97)]
    text = model_card(make("lru", "token_classification"), "me/lru", rows, commands=["hf-memory train --mixer lru"])
    assert "| lru | 0.960 | 0.625 |" in text
    assert "| chance | 0.500 | 0.500 |" in text
    assert "| all zero | 0.450 | 0.450 |" in text
    assert "```bash\nhf-memory train --mixer lru\n```" in text
    assert "| learning rates tried | 0.0001, 0.001 |" in text
    assert "its token accuracy is above 0.9 up to test length 32; the longest test length is 64" in text
    assert "![token_accuracy by test length](figures/hf_memory/bit_parity_at_32_token_accuracy.png)" in text
    results = {(found.dataset_split, found.metric_type): found for found in ModelCard(text).data.eval_results}
    assert results["test_64", "token_accuracy"].metric_value == 0.625
    assert results["test_64", "token_accuracy"].metric_args["chance"] == 0.5
    assert "chance" not in results["test_64", "sequence_accuracy"].metric_args


def test_the_curve_over_learning_rates_is_read_from_the_rows_of_the_search() -> None:
    own = [row("test_32"), row("validation", 0.9)]
    others = [row("validation", 0.5, learning_rate=1e-4, weights_sha256="cd" * 32, cell="c1")]
    text = model_card(make("lru", "token_classification"), "me/lru", own, siblings=[*own, *others])
    assert "on `validation` by learning rate, 2 runs. The best rate lies on the edge of the grid." in text
    assert "| 0.0001 | 0.500 |\n| 0.001 | 0.900 |" in text
    assert "by learning rate" not in model_card(make("lru"), "me/lru", own, siblings=own)


def test_values_that_are_not_numbers_are_said_and_not_indexed() -> None:
    rows = [row("test_32", math.nan)]
    text = model_card(make("lru", "token_classification"), "me/lru", rows)
    assert "On `test_32` the token accuracy is not a number." in text
    assert [found.metric_type for found in ModelCard(text).data.eval_results] == ["sequence_accuracy"]
    assert eval_results_yaml(rows) == ""


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
    again, _, folder = parse_arguments([*words[2:], "--output_dir", str(tmp_path)])
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


def test_text_outside_of_the_marks_stays() -> None:
    assert merge_text("", "new") == f"{BEGIN}\nnew\n{END}\n"
    assert merge_text("Theirs.\n", "new") == f"Theirs.\n{BEGIN}\nnew\n{END}\n"
    assert merge_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n", "new") == f"Before.\n{BEGIN}\nnew\n{END}\nAfter.\n"


def test_cards_of_datasets_are_merged_too() -> None:
    previous = "---\nlicense: mit\ntags:\n- theirs\nconfigs: old\n---\nTheirs.\n"
    metadata, text = split_card(merge_card(previous, "---\ntags:\n- ours\nconfigs: new\n---\nOurs.\n"))
    assert metadata == {"license": "mit", "tags": ["theirs", "ours"], "configs": "new"}
    assert text.startswith("Theirs.\n") and "Ours." in text
    with pytest.raises(ValueError, match="card: its metadata are not YAML"):
        split_card("---\na: [\n---\n")


def test_the_content_of_a_push_can_be_written_to_a_folder(tmp_path: Path) -> None:
    folder = save_for_hub(make("gru", "token_classification"), tmp_path / "out", "me/gru", task="dyck", tags=["mine"])
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "mixers_gru.py", "tokenizer.json", "README.md"} <= names
    assert ModelCard.load(folder / "README.md").data.tags == ["hf_memory", "gru", "mine"]
    with pytest.raises(ValueError, match="folder must be new or empty"):
        save_for_hub(make("gru"), folder, "me/gru")
    (tmp_path / "checkpoint").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "checkpoint" / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "checkpoint" / "README.md").write_text("Mine.\n")
    (tmp_path / "checkpoint" / "optimizer.pt").write_bytes(b"")
    again = save_for_hub(tmp_path / "checkpoint", tmp_path / "again", "me/gru")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (again / "README.md").read_text().split("---\n")[2].startswith("Mine.\n")
    assert not (again / "optimizer.pt").exists()
