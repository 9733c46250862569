"""The command line: what it prints and writes, and what it says when it is asked for what does not exist."""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hf_memory.cli import app as cli
from hf_memory.cli import demo
from hf_memory.cli import list as cli_list
from hf_memory.experiments.arguments import parse_arguments, parse_fields
from hf_memory.experiments.results import read_definition, read_rows
from hf_memory.experiments.run import Experiment
from hf_memory.mixers.auto import mixer_config, mixer_model, model_keys
from hf_memory.ops.backends.dispatch import available_backends, use_backend
from hf_memory.tasks import TASKS

runner = CliRunner()
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--model", "hidden_size=8", "num_hidden_layers=1", "--data", "length=8", "test_lengths=[8,16]"]
QUIET = ["--disable_tqdm", "True", "--use_cpu", "True"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command as a user runs it."""
    monkeypatch.setattr(sys, "argv", ["hf-memory", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_list_shows_every_mixer_and_task(monkeypatch):
    monkeypatch.setattr("hf_memory.mixers.auto.model_keys", lambda: ("lstm", "attention", "delta_net"))
    output = runner.invoke(cli.app, ["list"]).output
    lines = {line.split("│")[1].strip(): line for line in output.splitlines() if line.startswith("│")}
    assert {"lstm", "attention", "delta_net", *TASKS} <= lines.keys()
    # Two layers of width 64 hold h and c, or a key and a value for each token.
    assert [cell.strip() for cell in lines["lstm"].split("│")[2:4]] == ["256", "256"]
    assert [cell.strip() for cell in lines["attention"].split("│")[2:4]] == ["16,384", "262,144"]
    assert "Vaswani et al., 2017" in lines["attention"]
    header = next(line for line in output.splitlines() if "mixer" in line and "source" in line)
    assert [cell.strip() for cell in header.strip("┃").split("┃")] == [
        *("mixer", "state at 64", "state at 1024", "eigenvalues", "backend", "source")
    ]
    assert [cell.strip() for cell in lines["attention"].split("│")[4:6]] == ["none", "torch"]
    assert "0.516" in lines["bit_parity"]
    assert "0.288" in lines["mqar"]


@pytest.mark.parametrize("key", model_keys())
def test_every_mixer_names_its_source_with_a_year(key):
    fact = cli_list.mixer_facts(key)
    assert fact[0] == key
    assert any(word.strip("(),.;:").isdigit() and len(word.strip("(),.;:")) == 4 for word in fact[-1].split()), fact[-1]


@pytest.mark.parametrize(
    ("key", "operations"),
    [
        ("attention", []),
        ("mamba", ["selective_scan"]),
        ("h3", ["diagonal_ssm", "long_convolution"]),
        ("ids4", ["ids4"]),
    ],
)
def test_operations_of_a_mixer_are_the_files_that_it_calls(key, operations):
    module = importlib.import_module(f"hf_memory.mixers.{key}")
    assert sorted(cli_list.operations_of(module)) == operations


def test_backend_is_the_one_that_runs():
    config = mixer_config("hybrid", vocab_size=4, hidden_size=8, layers=["attention", "qlstm", "lru"])
    model = mixer_model(config)
    with use_backend("torch"):
        assert cli_list.backends_of(model) == ["torch"]
    installed = "numba" in available_backends()
    assert cli_list.backends_of(model) == (["torch", "numba"] if installed else ["torch"])
    assert cli_list.mixer_facts("lru")[4] == ("numba" if installed else "torch")


def test_source_is_read_from_the_docstring():
    assert cli_list.source_of("A.\n\nSource: Doe et al. (2020), eq. 3. State: one.") == "Doe et al. (2020), eq"
    assert (
        cli_list.source_of("A.\n\nSource: Doe et al. (2020), equation 3. State: one.")
        == "Doe et al. (2020), equation 3"
    )
    assert cli_list.source_of("y = x (Doe, 1990, equation 1)\n(Roe, 2000)") == "Doe, 1990, equation 1"
    assert (
        cli_list.source_of("After Doe and Roe (1990), and Poe et al. (2000).")
        == "Doe and Roe (1990); Poe et al. (2000)"
    )
    assert cli_list.source_of("Nothing.") == ""


def test_train_writes_rows_and_a_checkpoint_that_evaluate_and_report_read(monkeypatch, capsys):
    train = ["train", "--mixer", "lstm", "--smoke", "--max_steps", "3", "--output_dir", "run", *SMALL, *QUIET]
    result = runner.invoke(cli.app, train)
    assert result.exit_code == 0, result.output
    rows = read_rows("results")
    assert [row.split for row in rows] == ["validation", "test_8", "test_16"]
    assert {(row.mixer, row.steps, row.tokens, row.seed) for row in rows} == {("lstm", 3, 3 * 16 * 8, 0)}
    assert "bit_parity, trained at 8" in result.output
    weights = ["config.json", "hf_memory_run.json", "model.safetensors", "training_args.json"]
    assert sorted(os.listdir("run")) == [*weights[:3], "tokenizer.json", "tokenizer_config.json", weights[3]]
    data = ["--data", "length=8", "--data", "test_lengths=[8,16]", "--data", "num_train=512"]
    data += ["--data", "num_validation=64", "--data", "num_test=64"]
    result = runner.invoke(cli.app, ["evaluate", "run", "--task", "bit_parity", "--results", "again", *data])
    assert result.exit_code == 0, result.output
    again = read_rows("again")
    assert [row.metrics for row in again] == [row.metrics for row in rows]
    assert {row.weights_sha256 for row in again} == {row.weights_sha256 for row in rows}
    result = runner.invoke(cli.app, ["report", "results", "--out", "page"])
    assert result.output.strip() == os.path.join("page", "index.html")
    assert f"{rows[1].value():.3f}" in Path("page/index.html").read_text()
    code, _, errors = call(monkeypatch, capsys, "evaluate", "run", "--task", "mqar")
    assert code == 2
    assert "mqar needs a model ForCausalLM" in errors


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


def test_data_seed_is_that_of_rows_and_of_their_order():
    experiment, _, _ = parse_arguments(["--data_seed", "5"])
    assert experiment.specification.seed == experiment.make_arguments("run").data_seed == 5
    with pytest.raises(ValueError, match="data_seed: 5 differs from data seed=4"):
        parse_arguments(["--data_seed", "5", "--data", "seed=4"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--mixer", "lstmm"], "did you mean 'lstm'?"),
        (["train", "--task", "bit_paritty"], "did you mean 'bit_parity'?"),
        (["train", "--config", "iid_33"], "did you mean 'iid_32'?"),
        (["train", "--data", "num_trian=5"], "did you mean 'num_train'?"),
        (["train", "--data", "num_train"], "entries are name=value, got 'num_train'"),
        (["train", "--model", "hiden_size=8", "--smoke", *QUIET], "did you mean 'hidden_size'?"),
        (["train", "--model", "norm=rmss", "--smoke", *QUIET], "norm"),
        (["evaluate", "nowhere", "--task", "mqr"], "did you mean 'mqar'?"),
        (["report", "nowhere"], "'nowhere' holds no file"),
        (["data", "show", "mqar", "--split", "tets_64"], "test_64"),
        (["data", "build", "bit_parity", "--data", "length=0"], "length must be"),
        (["data", "export", "bit_parity", "out", "--config", "iid_33"], "did you mean 'iid_32'?"),
    ],
)
def test_what_does_not_exist_is_named_with_the_nearest_and_nothing_is_written(monkeypatch, capsys, arguments, message):
    code, _, errors = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert os.listdir() == []


def test_configurations_are_named_or_all():
    result = runner.invoke(cli.app, ["data", "build", "bit_parity", "--config", "iid_32", "--all"])
    assert result.exit_code == 2
    assert "not both" in result.output


def test_data_show_prints_tokens_labels_and_scores():
    output = runner.invoke(cli.app, ["data", "show", "bit_parity", "--num-rows", "1", "--data", "length=6"]).output
    header, tokens, labels, scores = output.splitlines()
    assert header == "hf_memory/bit_parity iid_32 train, row 0"
    bits = [int(bit) for bit in tokens.split()[1:]]
    assert [int(label) for label in labels.split()[1:]] == [sum(bits[: t + 1]) % 2 for t in range(6)]
    assert scores.split()[1:] == ["^"] * 6


def test_data_build_and_export_write_what_datasets_reads():
    import datasets

    small = ["--data", "num_train=64", "--data", "num_validation=8", "--data", "num_test=8"]
    result = runner.invoke(cli.app, ["data", "build", "bit_parity", *small])
    assert result.exit_code == 0, result.output
    assert os.path.isdir(result.stdout.split()[-1])
    result = runner.invoke(cli.app, ["data", "export", "bit_parity", "out", "--config", "iid_32", *small])
    assert result.exit_code == 0, result.output
    assert datasets.load_dataset("out/bit_parity", "iid_32")["train"].num_rows == 64


def test_fields_are_json_or_text():
    text = ["a=1", "b=1e-3", "c=[1,2]", "d=rope", "e=True", "f=None", "g=null", "h="]
    values = {"a": 1, "b": 1e-3, "c": [1, 2], "d": "rope", "e": True, "f": None, "g": None, "h": ""}
    assert parse_fields(text, "model") == values
    with pytest.raises(ValueError, match="'a' is given twice"):
        parse_fields(["a=1", "a=2"], "model")


def test_experiment_refuses_unknown_arguments_of_trainer():
    with pytest.raises(ValueError, match="did you mean 'max_steps'"):
        Experiment(SimpleNamespace(), "lstm", training={"max_step": 3})


def test_demo_runs_every_cell_and_does_not_redo_finished_ones(monkeypatch):
    """In this process, since a worker needs seconds to start; a test marked slow runs the workers."""
    cells = [demo.Cell(study, mixer, True) for study in (0, 1) for mixer in demo.MIXERS]
    assert [cell.experiment().mixer for cell in cells] == [*demo.MIXERS] * 2
    assert len({cell.experiment().cell("x") for cell in cells}) == 8
    report = demo._Report(SimpleNamespace(put=lambda message: None), cells[0], os.getppid())
    path, ran = demo._run_cell(cells[0], Path("out"), report)
    assert ran
    before = path.stat().st_mtime_ns
    assert demo._run_cell(cells[0], Path("out"), report) == (path, False)
    assert path.stat().st_mtime_ns == before
    rows = read_rows(path)
    assert [row.length for row in rows if row.split != "validation"] == [32, 48, 64, 128, 256]
    assert demo._summary(rows).startswith(f"token accuracy {rows[1].value():.3f} at 32, ")


def test_worker_of_a_dead_parent_stops_and_releases_its_claim():
    cell = demo.Cell(0, "lstm", True)
    with pytest.raises(SystemExit):
        demo._run_cell(cell, Path("out"), demo._Report(SimpleNamespace(), cell, parent=-1))
    assert list(Path("out/rows").iterdir()) == []


def test_quickstart_prints_accuracy_beside_chance_for_each_length(capsys):
    runpy.run_path(str(EXAMPLES / "quickstart.py"))["main"](["--smoke"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("length")]
    assert [int(line.split()[1].rstrip(":")) for line in lines] == [32, 48, 64, 128, 256]
    assert all(0.4 < float(line.split()[3].rstrip(",")) < 0.6 for line in lines)


def test_example_trains_and_evaluates_with_tensorboard(capsys, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "events")
    logged = ["--report_to", "tensorboard", "--logging_steps", "1", "--max_steps", "2"]
    arguments = ["--mixer", "gru", "--smoke", "--output_dir", "run", *logged, *SMALL, *QUIET]
    runpy.run_path(str(EXAMPLES / "train_and_evaluate.py"))["main"](arguments)
    assert "bit_parity, trained at 8" in capsys.readouterr().out
    assert [row.split for row in read_rows("results")] == ["validation", "test_8", "test_16"]
    assert list(Path().rglob("events.out.tfevents*"))


@pytest.mark.slow
def test_demo_goes_on_where_it_was_stopped():
    first = runner.invoke(cli.app, ["demo", "--smoke", "--output-dir", "out"])
    assert first.exit_code == 0, first.output
    rows = sorted(Path("out/rows").iterdir())
    assert len(rows) == 8
    times = {path: path.stat().st_mtime_ns for path in rows[1:]}
    rows[0].unlink()
    again = runner.invoke(cli.app, ["demo", "--smoke", "--output-dir", "out"])
    assert again.exit_code == 0, again.output
    assert sorted(Path("out/rows").iterdir()) == rows
    assert {path: path.stat().st_mtime_ns for path in rows[1:]} == times
    assert (Path("out/report/index.html")).is_file()
    assert json.loads(rows[0].read_text().splitlines()[0])["rows"] > 1
