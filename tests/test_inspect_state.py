"""The example that shows a state: its numbers are the model's, and its table says what is due."""

import runpy
from pathlib import Path

import pytest
import torch

from hf_memory.experiments.training import model_for_task
from hf_memory.tasks import make_task

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "inspect_state.py"))


def table(output: str) -> list[list[str]]:
    """The cells of the lines below the heading."""
    lines = output.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("step"))
    return [line.split() for line in lines[start + 1 : start + 33]]


@pytest.mark.parametrize("mixer", ["lstm", "mamba"])
def test_smoke_prints_a_line_for_each_token(capsys, tmp_path, mixer):
    EXAMPLE["main"](["--smoke", "--mixer", mixer, "--plot", str(tmp_path / "state.png")])
    rows = table(capsys.readouterr().out)
    assert [int(row[0]) for row in rows] == list(range(32))
    tokens = torch.tensor([int(row[1]) for row in rows])
    assert [int(row[2]) for row in rows] == (tokens.cumsum(0) % 2).tolist()
    assert all(float(row[5]) <= float(row[7]) for row in rows)
    assert (tmp_path / "state.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_shows_its_own_states(capsys, tmp_path):
    model = model_for_task("gru", make_task("bit_parity"), hidden_size=8, num_hidden_layers=2).eval()
    model.save_pretrained(tmp_path)
    EXAMPLE["main"](["--checkpoint", str(tmp_path)])
    output = capsys.readouterr().out
    assert "8 numbers in mixer.hidden" in output
    index = int(output.split("mixer.hidden[")[1].split("]")[0])
    rows = table(output)
    ids = torch.tensor([[int(row[1]) for row in rows]])
    for step in (0, 10, 31):
        state = model(ids[:, : step + 1], use_cache=True).cache.states[-1]["mixer.hidden"]
        assert float(rows[step][4]) == pytest.approx(state[0, index].item(), abs=0.006)


def test_the_checkpoint_of_the_repository_holds_the_parity(capsys):
    EXAMPLE["main"]([])
    output = capsys.readouterr().out
    assert all(row[2] == row[3] for row in table(output))
    assert abs(float(output.split("correlation with the parity ")[1].split()[0])) > 0.5


def test_smoke_asks_for_a_mixer(capsys):
    with pytest.raises(SystemExit):
        EXAMPLE["main"](["--smoke"])
    assert "--smoke shortens the training of a --mixer" in capsys.readouterr().err


def test_the_number_that_holds_the_label_is_found():
    labels = torch.randint(0, 2, (4, 9))
    numbers = {"a": torch.randn(4, 9, 3), "b": torch.randn(4, 9, 5)}
    numbers["b"][..., 2] = 3 - 2 * labels
    assert EXAMPLE["best_number"](numbers, labels)[:2] == ("b", 2)
    assert EXAMPLE["best_number"](numbers, labels)[2] == pytest.approx(-1, abs=0.1)


def test_a_growing_state_is_refused_before_training(capsys):
    with pytest.raises(SystemExit):
        EXAMPLE["main"](["--smoke", "--mixer", "attention"])
    assert "choose a model whose state has a fixed size" in capsys.readouterr().err
