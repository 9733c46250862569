"""``hf-memory list``: facts that are read from models and tasks."""

import importlib

import pytest
from typer.testing import CliRunner

from hf_memory.cli import list as cli_list
from hf_memory.cli.app import app
from hf_memory.mixers.auto import mixer_config, mixer_model, model_keys
from hf_memory.ops.backends.dispatch import available_backends, use_backend
from hf_memory.tasks import TASKS


def test_list_shows_every_mixer_and_task(monkeypatch):
    monkeypatch.setattr("hf_memory.mixers.auto.model_keys", lambda: ("lstm", "attention", "delta_net"))
    output = CliRunner().invoke(app, ["list"]).output
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
