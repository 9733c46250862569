"""The command line: what it prints and writes, and what it says when it is asked for what does not exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hf_memory import __version__
from hf_memory.cli.app import app
from hf_memory.experiments.results import read_rows

runner = CliRunner()
ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--model", "hidden_size=8", "num_hidden_layers=1", "--data", "length=8", "test_lengths=[8,16]"]
QUIET = ["--disable_tqdm", "True", "--use_cpu", "True"]
VALUES = {"--gpu-share": "0.5", "--output-dir": "here", "--repo-id": "me/here"}


def commands() -> dict[str, object]:
    """Every command that does something, by its words."""
    top = get_command(app).commands
    groups = ("data", "new")
    parts = {f"{group} {name}": command for group in groups for name, command in top[group].commands.items()}
    return {name: command for name, command in {**top, **parts}.items() if name not in groups}


def examples(name: str) -> list[str]:
    """The commands that stand in the help of one."""
    return re.findall(r"`(hf-memory [^`]+)`", " ".join(commands()[name].help.split()))


def parsed(words: list[str]) -> dict:
    """The values that the last command of some words has read."""
    context = get_command(app).make_context("hf-memory", words, resilient_parsing=True)
    while isinstance(getattr(context.command, "commands", None), dict):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context, resilient_parsing=True)
    return context.params


DASHED = [
    (name, flag, option.is_flag)
    for name, command in commands().items()
    for option in command.params
    for flag in (*option.opts, *option.secondary_opts)
    if "-" in flag.lstrip("-")
]


def test_train_writes_rows_and_a_checkpoint_that_evaluate_and_report_read(call):
    train = ["train", "--mixer", "lstm", "--smoke", "--max_steps", "3", "--output_dir", "run", *SMALL, *QUIET]
    result = runner.invoke(app, train)
    assert result.exit_code == 0, result.output
    rows = read_rows("results")
    assert [row.split for row in rows] == ["validation", "test_8", "test_16"]
    assert {(row.mixer, row.steps, row.tokens, row.seed) for row in rows} == {("lstm", 3, 3 * 16 * 8, 0)}
    assert "bit_parity, trained at 8" in result.output
    weights = ["config.json", "hf_memory_run.json", "model.safetensors", "training_args.json"]
    assert sorted(os.listdir("run")) == [*weights[:3], "tokenizer.json", "tokenizer_config.json", weights[3]]
    data = ["--data", "length=8", "test_lengths=[8, 16]", "num_train=512", "--data=num_validation=64", "num_test=64"]
    result = runner.invoke(
        app, ["evaluate", "run", "--task", "bit_parity", "--results", "again", *data, "--batch_size", "64"]
    )
    assert result.exit_code == 0, result.output
    again = read_rows("again")
    assert [row.metrics for row in again] == [row.metrics for row in rows]
    assert {row.weights_sha256 for row in again} == {row.weights_sha256 for row in rows}
    longer = ["evaluate", "run", "--task", "bit_parity", "--lengths", "8..32,20", *data[:2], "--data", "num_test=64"]
    result = runner.invoke(app, [*longer, "--data", "num_validation=64", "--results", "longer"])
    assert result.exit_code == 0, result.output
    values = {row.split: row.value() for row in read_rows("longer")}
    assert list(values) == ["validation", "test_8", "test_16", "test_32", "test_20"]
    assert values["test_16"] == rows[2].value()
    result = runner.invoke(app, ["report", "results", "--out", "page"])
    assert result.output.strip() == os.path.join("page", "index.html")
    assert f"{rows[1].value():.3f}" in Path("page/index.html").read_text()
    code, _, errors = call("evaluate", "run", "--task", "mqar")
    assert code == 2
    assert "mqar needs a model ForCausalLM" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--max_stepz", "3"], "unrecognized arguments: --max_stepz 3"),
        (["train", "--mixer", "lstmm"], "did you mean 'lstm'?"),
        (["train", "--task", "bit_paritty"], "did you mean 'bit_parity'?"),
        (["train", "--config", "iid_33"], "did you mean 'iid_32'?"),
        (["train", "--data", "num_trian=5"], "did you mean 'num_train'?"),
        (["train", "--data", "num_train"], "entries are name=value, got 'num_train'"),
        (["train", "--model", "hiden_size=8", "--smoke", *QUIET], "did you mean 'hidden_size'?"),
        (["train", "--model", "norm=rmss", "--smoke", *QUIET], "norm"),
        (["evaluate", "nowhere", "--task", "mqr"], "did you mean 'mqar'?"),
        (["evaluate", "run", "--task", "mqar", "--lengths", "64.."], "lengths must be numbers such as 64,128"),
        (["evaluate", "run", "--task", "mqar", "--lengths", "64", "--data", "test_lengths=[64]"], "not both"),
        (["report", "nowhere"], "'nowhere' holds no file"),
        (["data", "show", "mqar", "--split", "tets_64"], "test_64"),
        (["data", "build", "bit_parity", "--data", "length=0"], "length must be"),
        (["data", "export", "bit_parity", "out", "--config", "iid_33"], "did you mean 'iid_32'?"),
    ],
)
def test_what_does_not_exist_is_named_with_the_nearest_and_nothing_is_written(call, arguments, message):
    code, _, errors = call(*arguments)
    assert code == 2
    assert message in errors
    assert errors.startswith("Error: ")
    assert errors.count("\n") == 1
    assert os.listdir() == []


@pytest.mark.parametrize(("name", "flag", "alone"), DASHED, ids=[f"{name} {flag}" for name, flag, _ in DASHED])
def test_a_flag_with_a_dash_is_understood_with_an_underscore(name, flag, alone):
    start, value = name.split(), [] if alone else [VALUES.get(flag, "7")]
    expected = parsed([*start, flag, *value])
    other = "--" + flag[2:].replace("-", "_")
    assert parsed([*start, other, *value]) == expected
    if not flag.startswith("--no-"):  # which only says what holds anyway
        assert expected != parsed(start)
    if value:
        assert parsed([*start, f"{other}={value[0]}"]) == expected


@pytest.mark.parametrize("name", ["evaluate", "data build", "data show", "data export", "data push"])
def test_data_takes_pairs_together_or_one_by_one(name):
    start = name.split()
    for words in (
        ["--data", "a=1", "b=[3, 40]"],
        ["--data=a=1", "b=[3, 40]"],
        ["--data", "a=1", "--data", "b=[3, 40]"],
    ):
        assert list(parsed([*start, *words])["data"]) == ["a=1", "b=[3, 40]"]
        assert list(parsed([*start, *words, "--", "c=3"])["data"]) == ["a=1", "b=[3, 40]"]


def test_arguments_may_follow_pairs():
    values = parsed(["data", "export", "--data", "length=6", "num_test=8", "bit_parity", "out", "--num_proc", "2"])
    assert (values["task"], Path(values["out"]), values["num_proc"]) == ("bit_parity", Path("out"), 2)
    assert list(values["data"]) == ["length=6", "num_test=8"]
    assert parsed(["push", "runs/x", "--repo_id", "me/x", "--message", "--my_words"])["message"] == "--my_words"


def test_version_is_that_of_the_package(call):
    assert call("--version") == (0, f"hf-memory {__version__}\n", "")
    done = subprocess.run(
        [sys.executable, "-m", "hf_memory.cli", "--version"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, f"hf-memory {__version__}\n"), done.stderr


def test_completion_knows_commands_and_flags(tmp_path, monkeypatch):
    for words, position, found in (("hf-memory ev", 1, "evaluate"), ("hf-memory sweep --dr", 2, "--dry-run")):
        asked = {"_HF_MEMORY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        assert runner.invoke(app, [], env=asked, prog_name="hf-memory").output.split() == [found]
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    script = runner.invoke(app, ["--show-completion", "bash"], prog_name="hf-memory").output
    assert "complete -o default -F _hf_memory_completion hf-memory" in script
    result = runner.invoke(app, ["--install-completion", "bash"], prog_name="hf-memory")
    assert result.exit_code == 0, result.output
    (installed,) = tmp_path.rglob("hf-memory.sh")
    assert installed.read_text().strip() == script.strip()
    assert str(installed) in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize("name", commands())
def test_every_command_helps_with_an_example_of_its_own(name):
    result = runner.invoke(app, [*name.split(), "--help"], prog_name="hf-memory")
    assert result.exit_code == 0
    assert f"hf-memory {name}" in result.output
    assert any(f"{line} ".startswith(f"hf-memory {name} ") for line in examples(name))
    for flag in (flag for command, flag, _ in DASHED if command == name):
        assert flag in result.output


@pytest.mark.slow
def test_the_examples_run_as_printed(monkeypatch):
    Path("examples").symlink_to(ROOT / "examples")
    pushed = []

    def push(source, repo_id, *args, **options):
        pushed.append((str(source), repo_id))
        return SimpleNamespace(commit_url=f"to {repo_id}")

    monkeypatch.setattr("hf_memory.hub.checkpoints.push", push)
    monkeypatch.setattr("hf_memory.hub.datasets.push_results", push)
    monkeypatch.setattr("hf_memory.hub.datasets.push_dataset", push)
    order = ["train", "evaluate", "push", "report", *(name for name in commands() if name.startswith("data "))]
    for name in [*order, *(name for name in commands() if name not in order)]:
        for line in examples(name):
            result = runner.invoke(app, shlex.split(line)[1:], prog_name="hf-memory")
            assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception}"
    assert pushed == [("runs/lstm", "me/lstm"), ("results", "me/memory-results"), ("mqar", "me/mqar")]
    assert Path("report/index.html").is_file()
    assert Path("exported/bit_parity/README.md").is_file()
