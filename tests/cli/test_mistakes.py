"""Mistakes of a new user at the command line: each ends in one line that names the fix."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from hf_memory.data.specification import specify
from hf_memory.experiments.training import model_for_task
from tests.cli.test_errors import QUIET, TRAIN, refused

DATA = ["--data", "length=8", "test_lengths=[8]", "num_train=32", "num_validation=8", "num_test=8"]
EVALUATE = ["evaluate", "run", "--task", "bit_parity", *DATA]


@pytest.fixture
def place(trained, tmp_path) -> Path:
    """A folder with a checkpoint, its rows, a file, and folders that are no checkpoint."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (tmp_path / "file").write_text("words")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "run" / "config.json", tmp_path / "bare")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 8, "n_head": 1}))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "5"], "--steps 5; did you mean --max_steps?"),
        (["--batch-size", "8"], "did you mean --per_device_train_batch_size?"),
        (["--epochs=2"], "did you mean --num_train_epochs?"),
        (["--learning_rat", "1"], "did you mean --learning_rate?"),  # no flag may be cut short ...
        (["--num_train", "5"], "give it as --data num_train=..."),  # ... since this would be --num_train_epochs
        (["--hidden-size", "8"], "give it as --model hidden_size=..."),
        (["gru"], "unrecognized arguments: gru; did you mean --mixer gru?"),
        (["mqar"], "did you mean --task mqar?"),
        (["--wholly-unknown"], "--help lists the arguments"),
        (["--lr", "-1"], "learning_rate must be at least 0, got -1.0"),
        (["--lr", "nan"], "learning_rate must be at least 0, got nan"),
        (["--max_steps", "0"], "max_steps must be at least 1, or -1 for num_train_epochs, got 0"),
        (["--max_steps", "-5"], "max_steps must be at least 1, or -1 for num_train_epochs, got -5"),
        (["--gradient_accumulation_steps", "0"], "gradient_accumulation_steps must be a whole number of at least 1"),
        (["--per_device_train_batch_size", "0"], "per_device_train_batch_size must be a whole number of at least 1"),
        (["--model", "vocab_size=1"], "vocab_size follows from the task 'bit_parity'; leave it out"),
        (["--model", "num_labels=3"], "num_labels follows from the task 'bit_parity'; leave it out"),
        (["--model", "hidden_size", "=", "8"], "entries are name=value, got 'hidden_size'; write them without spaces"),
        (["--model", "cell_size=abc"], "Error: Field 'cell_size' expected int, got str (value: 'abc')"),
        (["--model", "intermediate_size=-4"], "Error: intermediate_size must be at least 0, got -4"),
        (["--mixer", "hybrid", "--model", "layers=[lstm,gru]"], """write 'layers=["a", "b"]' in single ones"""),
        (["--mixer", "hybrid", "--model", "layers=[]"], "layers must hold at least one mixer"),
        (["--output_dir", "file"], "file: it is a file; give a folder, or another name"),
        (["--data", "modulo=3"], "did you mean 'modulus'?"),
    ],
)
def test_mistakes_of_training_are_found_before_data_are_generated(call, monkeypatch, words, message):
    Path("file").touch()
    monkeypatch.setattr("hf_memory.experiments.run.load_dataset", lambda *a, **k: pytest.fail("data were generated"))
    assert message in refused(call, *TRAIN, *QUIET, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "run/model.safetensors", *EVALUATE[2:]], "model.safetensors is a file; give its folder, 'run'"),
        (["evaluate", ".", *EVALUATE[2:]], "has no config.json; did you mean 'bare'?"),
        (["evaluate", "empty", *EVALUATE[2:]], "has no config.json; give a folder that save_pretrained wrote"),
        (["evaluate", "bare", *EVALUATE[2:]], "bare holds no model.safetensors; copy it again, or give a folder that"),
        (["evaluate", "theirs", *EVALUATE[2:]], "has model_type 'gpt2', and `hf-memory probe` asks models of other"),
        ([*EVALUATE, "--revision", "v2"], "revision: run is a folder here, which has none; leave it out"),
        ([*EVALUATE, "--generate"], "a causal model is needed, got MemoryLSTMForTokenClassification; leave --generate"),
        ([*EVALUATE, "--share", "columns"], "share must be one of 'rows', 'time', got 'columns'"),
        (["report", "rows", "--revision", "v2"], "revision: 'rows' is a path here, which has none; leave it out"),
        (["report", "rows", "--out", "file"], "file: it is a file; give a folder, or another name"),
        (["data", "export", "bit_parity", "file", *DATA], "file: it is a file; give a folder, or another name"),
        (["demo", "--output-dir", "file"], "file: it is a file; give a folder, or another name"),
        (["push", "nowhere", "--repo-id", "me/x"], "checkpoint: there is no folder 'nowhere'"),
        (["push", "file", "--repo-id", "me/x"], "checkpoint: file is a file; give the folder that save_pretrained"),
        (["probe", "run", "--task", "mqar"], "a probe needs a model ForCausalLM, 'run' is MemoryLSTMForTokenClass"),
        (["probe", "empty", "--task", "mqar"], "empty has no config.json; give a folder that save_pretrained wrote"),
        (["evaluate", "run"], "Missing option '--task'; `hf-memory evaluate --help` lists what it takes"),
        (["evalute", "run"], "Did you mean 'evaluate'?"),
        (["data", "load", "mqar"], "No such command 'load'; `hf-memory data --help` lists what it takes"),
        (["list", "lstm", "gru"], "(gru); `hf-memory list --help` lists"),
        (["list", "--taks"], "No such option"),
    ],
)
def test_mistakes_with_folders_and_commands_are_one_line(call, place, words, message):
    assert message in refused(call, *words)


def test_a_task_that_does_not_fit_a_checkpoint_is_not_pushed_with_it(call, place, monkeypatch):
    monkeypatch.setattr("hf_memory.hub.checkpoints.make_repo", lambda api, repo_id, *a, **k: repo_id)
    monkeypatch.setattr("hf_memory.hub.checkpoints.read_card", lambda *a, **k: None)
    monkeypatch.setattr("hf_memory.hub.checkpoints.upload", lambda *a, **k: pytest.fail("it was pushed"))
    found = refused(call, "push", "run", "--repo-id", "me/x", "--task", "dyck")
    assert "task: dyck has 6 symbols, and the checkpoint knows 2" in found


def test_a_head_of_random_weights_is_not_probed(call, place):
    config = json.loads((place / "run" / "config.json").read_text())
    config |= {"architectures": ["MemoryLSTMForCausalLM"], "tie_word_embeddings": False}
    (place / "run" / "config.json").write_text(json.dumps(config))
    code, _, errors = call("probe", "run", "--task", "mqar")
    assert code == 2
    assert "'run' lacks lm_head.weight, which would be random; give a checkpoint of MemoryLSTMForCausalLM" in errors


def test_without_a_word_a_group_of_commands_shows_its_help(call):
    for words in ([], ["data"], ["new"]):
        code, out, errors = call(*words)
        assert code == 2
        assert "Usage:" in out
        assert errors == ""


def test_a_recipe_without_the_profile_says_where_it_goes(call):
    values = {"name": "tiny", "task": "bit_parity", "arms": {"lstm": {}}, "learning_rates": [0.001]}
    Path("tiny.yaml").write_text(yaml.safe_dump(values))
    assert "'cpu' is not one of this recipe's (smoke); add it below `profiles:`" in refused(call, "sweep", "tiny.yaml")


@pytest.mark.parametrize("name", ["vocab_size", "num_labels", "id2label", "problem_type"])
def test_what_follows_from_a_task_is_no_field_of_its_models(name):
    with pytest.raises(ValueError, match=f"{name} follows from the task 'mqar'"):
        model_for_task("lstm", specify("mqar").task, **{name: 2})


def test_a_rate_by_its_short_name_is_the_rate(call):
    code, out, errors = call(
        *TRAIN,
        *QUIET,
        "--lr",
        "0.25",
    )
    assert code == 0, errors
    assert "0.25" in out
