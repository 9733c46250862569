"""Checkpoints that are not whole are refused, in words that name the fault."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_memory.hub.loading import load_checkpoint
from hf_memory.testing.models import make


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make("gru", "token_classification").save_pretrained(tmp_path / "gru")
    return tmp_path / "gru"


def change(checkpoint: Path, **fields: object) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, **fields}))


def test_the_class_is_the_one_that_the_config_names(checkpoint: Path) -> None:
    model = load_checkpoint(checkpoint)
    assert type(model).__name__ == "MemoryGRUForTokenClassification"
    assert not model.training
    weights = load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gru"}, "has the unknown model_type 'gru' .known: memory_rnn, "),
        ({"model_type": None}, "has the unknown model_type None"),
        ({"architectures": ["Stranger"]}, "must name one of MemoryGRUModel, .*, got 'Stranger'"),
        ({"architectures": None}, "must name one of MemoryGRUModel, .*, got 'none'"),
    ],
)
def test_a_config_that_names_no_class_is_refused(checkpoint: Path, fields: dict, message: str) -> None:
    change(checkpoint, **fields)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("kind", ["missing", "unexpected"])
def test_a_tensor_too_few_or_too_many_is_named(checkpoint: Path, kind: str) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    if kind == "missing":
        del weights["score.bias"]
    else:
        weights["score.extra"] = torch.ones(2)
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"{kind} keys: score."):
        load_checkpoint(checkpoint)


def test_a_pickle_is_read_only_where_it_is_allowed(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no safetensors; it holds no weights$"):
        load_checkpoint(checkpoint)
    torch.save(weights, checkpoint / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"are a pickle .pytorch_model\.bin., which can run code"):
        load_checkpoint(checkpoint)
    model = load_checkpoint(checkpoint, allow_pickle=True)
    assert torch.equal(model.state_dict()["score.bias"], weights["score.bias"])
