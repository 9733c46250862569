"""The guard of the configs: what it refuses, and what it must let through."""

import contextlib
import dataclasses
import importlib.metadata
import json
import math

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from hf_memory.experiments.provenance import config_digest
from hf_memory.mixers.attention import MemoryAttentionConfig
from hf_memory.mixers.auto import config_class, mixer_config, model_keys
from hf_memory.mixers.hybrid import MemoryHybridConfig
from hf_memory.mixers.lstm import MemoryLSTMConfig, MemoryLSTMModel
from hf_memory.models.configuration import MemoryConfig


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
        ({"layers": []}, "layers must hold at least one mixer"),
        ({"layers": ["atention"]}, "did you mean 'attention'"),
        ({"layers": [{"mixer": "attention", "windows": 4}]}, "did you mean 'window'"),
        ({"layers": [{"mixer": "attention", "hidden_size": 4}]}, "shared fields"),
        ({"layers": [{"window": 4}]}, "'mixer'"),
        ({"layers": [{"mixer": "attention", "window": -4}]}, "window"),
    ):
        with pytest.raises(Exception, match=message):
            MemoryHybridConfig(**fields)


def float_fields():
    """Each field of floats of each config, those that all share once."""
    shared = {field.name for field in dataclasses.fields(MemoryConfig)}
    for key in model_keys():
        for field in dataclasses.fields(config_class(key)):
            if isinstance(field.default, float) and (key == "hybrid" or field.name not in shared):
                yield key, field.name


@pytest.mark.parametrize(("key", "name"), list(float_fields()))
def test_a_field_of_floats_takes_integers_and_nothing_that_is_not_finite(key, name):
    for value in (1, 0, 2):
        with contextlib.suppress(StrictDataclassError):
            held = getattr(mixer_config(key, vocab_size=5, **{name: value}), name)
            assert type(held) is float and held == value
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(StrictDataclassError, match=name):
            mixer_config(key, vocab_size=5, **{name: value})
    for value in ("1", True):
        with pytest.raises(StrictDataclassError, match=name):
            mixer_config(key, vocab_size=5, **{name: value})


def test_an_integer_is_the_same_config_as_its_float(tmp_path):
    config = MemoryAttentionConfig(vocab_size=5, residual_dropout=0, rope_theta=10000, norm_eps=1)
    assert config.rope_theta == 10_000.0 and type(config.rope_theta) is float
    floats = MemoryAttentionConfig(vocab_size=5, residual_dropout=0.0, rope_theta=10_000.0, norm_eps=1.0)
    assert config_digest(config) == config_digest(floats)
    assert config.to_json_string() == floats.to_json_string()
    config.embedding_dropout = 0
    assert type(config.embedding_dropout) is float
    config.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path, residual_dropout=0).residual_dropout) is float
    with pytest.raises(Exception, match="norm_eps"):
        MemoryAttentionConfig(vocab_size=5, norm_eps=10**400)


def test_a_field_that_may_be_none_takes_integers_too():
    assert MemoryLSTMConfig(vocab_size=5, forget_bias=2).forget_bias == 2.0
    assert type(MemoryLSTMConfig(vocab_size=5, forget_bias=2).forget_bias) is float
    assert MemoryLSTMConfig(vocab_size=5, forget_bias=None).forget_bias is None
    with pytest.raises(Exception, match="forget_bias must be finite"):
        MemoryLSTMConfig(vocab_size=5, forget_bias=math.nan)


def test_what_is_set_later_is_checked_when_a_model_is_built():
    config = MemoryLSTMConfig(vocab_size=5)
    config.norm_eps = math.nan
    with pytest.raises(Exception, match="norm_eps must be finite, got nan"):
        MemoryLSTMModel(config)


def test_an_unknown_activation_is_named_with_the_choices():
    with pytest.raises(Exception, match=r"hidden_act must be one of .*gelu.*relu.*silu.*; got 'nope'"):
        MemoryAttentionConfig(vocab_size=5, hidden_act="nope")
    with pytest.raises(Exception, match="normalizer_eps must be finite"):
        MemoryHybridConfig(layers=[{"mixer": "based", "normalizer_eps": math.nan}])
    layers = [{"mixer": "attention", "rope_theta": 100}]
    assert type(MemoryHybridConfig(layers=layers).layer_config(layers[0]).rope_theta) is float
