"""``hf-memory list``: facts that are read from models and tasks."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hf_memory.cli import facts
from hf_memory.cli.app import app
from hf_memory.cli.describe import task_lines
from hf_memory.cli.list import chosen
from hf_memory.mixers.auto import config_class, mixer_class, mixer_config, mixer_model, model_keys
from hf_memory.ops.backends.dispatch import available_backends, use_backend
from hf_memory.tasks import TASKS, task_class


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
    assert lines["attention"].split("│")[4].strip() == "none"
    assert lines["lstm"].split("│")[5].strip() == "torch"
    assert "0.516" in lines["bit_parity"]
    assert "0.288" in lines["mqar"]


@pytest.mark.parametrize("key", model_keys())
def test_every_mixer_names_its_source_with_a_year(key):
    fact = facts.mixer_facts(key)
    assert fact[0] == key
    assert any(word.strip("(),.;:").isdigit() and len(word.strip("(),.;:")) == 4 for word in fact[-1].split()), fact[-1]


@pytest.mark.parametrize(
    ("key", "operations"),
    [
        ("attention", ["rotation"]),
        ("lstm", ["lstm"]),
        ("mamba", ["selective_scan"]),
        ("h3", ["diagonal_ssm", "long_convolution"]),
        ("ids4", ["ids4"]),
        ("kda", ["generalized_delta_rule"]),
    ],
)
def test_operations_of_a_mixer_are_the_files_that_it_calls(key, operations):
    assert sorted(facts.operations_of_mixer(mixer_class(key))) == operations


def test_backend_is_the_one_that_runs():
    config = mixer_config("hybrid", vocab_size=4, hidden_size=8, layers=["lstm", "qlstm", "lru"])
    model = mixer_model(config)
    with use_backend("torch"):
        assert facts.backends_of(model) == ["torch"]
    installed = "numba" in available_backends()
    assert facts.backends_of(model) == (["torch", "numba"] if installed else ["torch"])
    assert facts.mixer_facts("lru")[4] == ("numba" if installed else "torch")


def test_source_is_read_from_the_docstring():
    assert facts.source_of("A.\n\nSource: Doe et al. (2020), eq. 3. State: one.") == "Doe et al. (2020), eq"
    assert (
        facts.source_of("A.\n\nSource: Doe et al. (2020), equation 3. State: one.") == "Doe et al. (2020), equation 3"
    )
    assert facts.source_of("y = x (Doe, 1990, equation 1)\n(Roe, 2000)") == "Doe, 1990, equation 1"
    assert (
        facts.source_of("After Doe and Roe (1990), and Poe et al. (2000).") == "Doe and Roe (1990); Poe et al. (2000)"
    )
    assert facts.source_of("Nothing.") == ""


def cells(output: str) -> dict[str, list[str]]:
    """The lines of all tables, by their first cell."""
    lines = [line.strip("│").split("│") for line in output.splitlines() if line.startswith("│")]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines if line[0].strip()}


def test_a_task_is_shown_with_all_its_configurations_and_knobs(call):
    code, output, _ = call("list", "mqar")
    assert code == 0
    assert output.startswith("mqar: Multi-query associative recall: key-value pairs, then each key once more")
    found = cells(output)
    assert found.keys() >= {*task_class("mqar").presets, *task_class("mqar").knob_names()}
    assert found["num_kv_pairs"] == ["4", "Number of pairs k."]
    assert found["headline metric"] == ["recall"]
    assert found["kv4_len64"][:5] == ["64", "64, 128, 256", "test_128_kv8, test_256_kv16", "num_kv_pairs=4", "0.288"]
    assert found["kv4_len64_shuffled"][4] == "0.250"
    assert found["based_mixture"][0] == "64 to 256"
    assert "lstm" not in found and "copying" not in found


def test_a_mixer_is_shown_with_its_law_its_facts_and_its_fields(call):
    code, output, _ = call("list", "delta_net")
    assert code == 0
    assert output.startswith("delta_net: DeltaNet: a matrix memory that replaces what a key has stored")
    assert "    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T," in output
    found = cells(output)
    assert found["eigenvalues"] == ["0.00 to 1.00"]
    # Two layers with two heads of 32 x 32, and three inputs of the convolutions on q, k and v.
    assert found["state at 1024"] == [f"{2 * (2 * 32 * 32 + 3 * 3 * 64):,}"]
    assert found["allow_neg_eigval"][0] == "False"
    assert found["hidden_size"] == ["64", "Width D of the residual stream."]
    assert ":attr:" not in output


def test_a_default_that_a_mixer_changes_is_the_one_that_is_shown(call):
    shown = cells(call("list", "hybrid")[1])
    assert shown["layers"][0] == repr(config_class("hybrid")().layers)
    assert shown["num_hidden_layers"] == ["0", "Number of blocks; 0 means as many as `layers`."]


def test_a_pattern_chooses_mixers_and_tasks(call):
    mixers, tasks = chosen("*net*")
    assert "delta_net" in mixers
    assert mixers == [key for key in model_keys() if "net" in key]
    assert tasks == [key for key in TASKS if "net" in key]
    assert chosen("*mqar")[1] == [key for key in TASKS if key.endswith("mqar")]
    code, output, _ = call("list", "[lg]ru")
    assert code == 0
    assert cells(output).keys() == {"gru", "lru"}
    assert "Tasks" not in output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("delta_nt", "unknown mixer or task: 'delta_nt'; did you mean 'delta_net'?"),
        ("LSTM", "did you mean 'lstm'?"),
        ("mqr", "did you mean 'mqar'?"),
        ("*nothing*", "no mixer and no task fits '*nothing*' (known: rnn, "),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_named(name, text, call):
    code, output, error = call("list", name)
    assert (code, output) == (2, "")
    assert text in error


@pytest.mark.parametrize("key", TASKS)
def test_every_task_is_shown_with_every_preset_and_the_meaning_of_every_knob(key):
    console = Console(width=200, record=True, file=io.StringIO())
    for line in task_lines(key):
        console.print(line)
    found = cells(console.export_text())
    assert found.keys() >= set(task_class(key).presets)
    assert all(found[knob][-1] for knob in task_class(key).knob_names())
