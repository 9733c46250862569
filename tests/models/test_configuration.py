"""The guard of the configs: what it refuses, and what it must let through."""

import importlib.metadata
import json

import pytest
from transformers import AutoConfig

from hf_memory.mixers.attention import MemoryAttentionConfig
from hf_memory.mixers.hybrid import MemoryHybridConfig


def test_the_nearest_field_is_suggested():
    with pytest.raises(ValueError, match=r"'hiddensize'; did you mean 'hidden_size'\?"):
        MemoryAttentionConfig(hiddensize=8)


@pytest.mark.parametrize(
    "written",
    [
        {"auto_map": {"AutoConfig": "a.B"}},
        {"quantization_config": {}},
        {"pad_token_id": None, "eos_token_id": 2},
        {"_attn_implementation_autoset": True},
        {"torch_dtype": "float32"},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"max_length": 20, "num_beams": 2},
        {"num_labels": 5, "id2label": {str(i): str(i) for i in range(5)}},
    ],
)
def test_keys_that_transformers_writes_are_taken(written):
    assert MemoryAttentionConfig(vocab_size=5, **written).vocab_size == 5


@pytest.mark.parametrize("field", ["transformers_version", "hf_memory_version"])
def test_keys_of_a_newer_version_load_and_those_of_this_one_do_not(field, monkeypatch, tmp_path):
    monkeypatch.setattr("hf_memory.models.configuration.installed_version", lambda: "0.1.0")
    saved = {**MemoryAttentionConfig(vocab_size=5).to_dict(), "future_field": 3}
    (tmp_path / "config.json").write_text(json.dumps({**saved, field: "99.0.0"}, default=str))
    assert AutoConfig.from_pretrained(tmp_path).vocab_size == 5
    (tmp_path / "config.json").write_text(json.dumps({**saved, field: "0.0.1"}, default=str))
    with pytest.raises(ValueError, match="future_field"):
        AutoConfig.from_pretrained(tmp_path)


def test_a_saved_config_names_its_version_and_survives_a_second_save(tmp_path):
    MemoryAttentionConfig(vocab_size=5, window=4).save_pretrained(tmp_path / "first")
    first = AutoConfig.from_pretrained(tmp_path / "first")
    first.save_pretrained(tmp_path / "second")
    second = AutoConfig.from_pretrained(tmp_path / "second")
    assert {**second.to_dict(), "_name_or_path": ""} == {**first.to_dict(), "_name_or_path": ""}
    assert first.window == 4
    assert first.hf_memory_version == importlib.metadata.version("hf_memory")


def test_fields_can_be_changed_while_loading_and_are_checked(tmp_path):
    MemoryAttentionConfig(vocab_size=5, hidden_size=16).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, num_heads=4).num_heads == 4
    with pytest.raises(Exception, match="window"):
        AutoConfig.from_pretrained(tmp_path, window="wide")


def test_a_hybrid_repeats_its_layers_and_checks_them():
    config = MemoryHybridConfig(layers=["attention", {"mixer": "attention", "window": 4}], num_hidden_layers=4)
    assert config.layer_config(config.layers[1]).window == 4
    assert MemoryHybridConfig(layers=["attention"] * 3).num_hidden_layers == 3
    for fields, message in (
        ({"layers": ["attention"] * 2, "num_hidden_layers": 3}, "num_hidden_layers"),
        ({"layers": []}, "num_hidden_layers"),
        ({"layers": ["atention"]}, "did you mean 'attention'"),
        ({"layers": [{"mixer": "attention", "windows": 4}]}, "did you mean 'window'"),
        ({"layers": [{"mixer": "attention", "hidden_size": 4}]}, "shared fields"),
        ({"layers": [{"window": 4}]}, "'mixer'"),
        ({"layers": [{"mixer": "attention", "window": -4}]}, "window"),
    ):
        with pytest.raises(Exception, match=message):
            MemoryHybridConfig(**fields)
