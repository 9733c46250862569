"""Models of transformers become ours: the same scores, the same continuation, the same words, or a refusal by name."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from hf_memory.hub.conversions import SOURCES, source_of
from hf_memory.hub.conversions.source import capped
from hf_memory.hub.convert import Converted, convert
from tests.hub.sources import CONFIGS, KEPT, random_source
from tests.snippets import ROOT


def converted(model_type: str, folder: Path, layers=None, **fields) -> Converted:
    random_source(model_type, **fields).save_pretrained(folder / "theirs")
    return convert(str(folder / "theirs"), folder / "ours", layers)


def loaded(model_type: str, folder: Path, kept=None):
    """The source as it is read, without the layers that were not kept, and what was written."""
    known, config = source_of(model_type), AutoConfig.from_pretrained(folder / "theirs")
    for name, value in known.before.items():
        setattr(config, name, value)
    theirs = AutoModelForCausalLM.from_pretrained(folder / "theirs", config=config).eval()
    if kept is not None:
        known.keep(theirs, kept)
    return theirs, AutoModelForCausalLM.from_pretrained(folder / "ours").eval(), known.cap(theirs.config)


def test_every_source_has_a_test():
    assert set(CONFIGS) == set(SOURCES)


@torch.no_grad()
@pytest.mark.parametrize("model_type", SOURCES)
def test_scores_continuation_and_words_are_those_of_the_source(model_type, tmp_path):
    kept = KEPT.get(model_type)
    found = converted(model_type, tmp_path, kept)
    theirs, ours, cap = loaded(model_type, tmp_path, kept)
    assert ours.config.model_type == f"memory_{SOURCES[model_type]}"
    assert found.model == type(ours).__name__
    assert found.difference < 5e-5
    assert found.layers == tuple(kept or range(theirs.config.num_hidden_layers))
    ids = torch.randint(0, 11, (2, 40))
    expected = theirs(ids, use_cache=False).logits
    first = ours(ids[:, :17], use_cache=True)
    rest = ours(ids[:, 17:], cache=first.cache)
    actual = capped(torch.cat((first.logits, rest.logits), dim=1), cap)
    assert (actual - expected).abs().max() < 5e-5 * expected.abs().max()
    words = ours.generate(ids[:, :9], max_new_tokens=8, do_sample=False)
    recomputed = ids[:, :9]
    for _ in range(8):
        recomputed = torch.cat((recomputed, theirs(recomputed, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(words, recomputed)


def test_some_layers_are_the_source_without_the_others(tmp_path):
    found = converted("mamba2", tmp_path, [1], num_hidden_layers=3)
    theirs, ours, _ = loaded("mamba2", tmp_path, [1])
    assert found.layers == (1,)
    assert ours.config.num_hidden_layers == len(theirs.backbone.layers) == 1
    ids = torch.randint(0, 11, (2, 20))
    torch.testing.assert_close(ours(ids).logits, theirs(ids, use_cache=False).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "fields", "layers", "message"),
    [
        ("olmo_hybrid", {}, None, r"the mixer of layers 3 \(full_attention\): only 'linear_attention' has a "
         r"counterpart; of this kind are 0, 1, 2; --layer N keeps one layer"),
        ("qwen3_next", {"mlp_only_layers": [0]}, None, r"the MLP of layers 1 \(mixture of experts\): only 'dense' has"),
        ("kimi_linear", {"mlp_layer_types": ["dense", "sparse"]}, [1], r"the MLP of layers 1 \(sparse\): only 'dense'"),
        ("recurrent_gemma", {"block_types": ["recurrent", "attention"]}, None, r"block of layers 1 \(attention\)"),
        ("mamba", {"use_bias": True}, None, "use_bias=True: the maps into and out of the mixer have no biases here"),
        ("mamba2", {"time_step_limit": (0.0, 0.1)}, None, "time_step_limit=.*: time steps have no bounds here"),
        ("rwkv", {}, [1, 2], "layer 1 as the first: the norm of the embedding belongs to layer 0"),
        ("rwkv", {"attention_hidden_size": 32}, None, "attention_hidden_size=32: the mixer is as wide as the model"),
        ("xlstm", {"use_bias": True}, None, "use_bias=True: maps and norms have no biases here"),
        ("mamba", {}, [2], "layer must be from 0 to 1, got 2"),
        ("mamba", {}, [], "layer must be from 0 to 1, got none"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(model_type, fields, layers, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        converted(model_type, tmp_path, layers, **fields)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]


def test_biases_of_an_mlp_are_refused(tmp_path):
    model = random_source("recurrent_gemma")
    with torch.no_grad():
        model.model.layers[1].mlp_block.up_proj.bias[0] = 0.1
    model.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError, match="the biases of the MLP of layer 1: an MLP has none here"):
        convert(str(tmp_path / "theirs"), tmp_path / "ours")


def test_scores_that_differ_are_not_written(tmp_path, monkeypatch):
    known = source_of("mamba2")
    wrong = {**known.fields(random_source("mamba2").config), "negative_eigenvalues": True}
    other = dataclasses.replace(known, fields=lambda config: wrong)
    monkeypatch.setattr("hf_memory.hub.convert.source_of", lambda model_type: other)
    with pytest.raises(ValueError, match="the scores of the converted model differ by .* nothing was written"):
        converted("mamba2", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]


def test_other_models_folders_and_places_are_refused(tmp_path):
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=5)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(
        ValueError, match=r"unknown model_type of a source that can be converted: 'gpt2' \(known: 'mamba'"
    ):
        convert(str(tmp_path / "gpt2"), tmp_path / "ours")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no config.json; did you mean|has no config.json; give a folder"):
        convert(str(tmp_path / "empty"), tmp_path / "ours")
    with pytest.raises(ValueError, match="there is no folder"):
        convert(str(tmp_path / "nowhere"), tmp_path / "ours")
    with pytest.raises(ValueError, match="output must be a new or an empty folder"):
        convert(str(tmp_path / "gpt2"), tmp_path / "gpt2")
    random_source("mamba").save_pretrained(tmp_path / "theirs")
    weights = tmp_path / "theirs" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        convert(str(tmp_path / "theirs"), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


KILLED = """
import os, signal, sys
from transformers import PreTrainedModel
from hf_memory.hub.convert import convert
save = PreTrainedModel.save_pretrained
def half(self, folder, *args, **kwargs):
    save(self, folder, *args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
PreTrainedModel.save_pretrained = half
convert("theirs", "ours")
"""


def test_a_conversion_that_was_killed_leaves_nothing_and_runs_again(tmp_path):
    random_source("mamba").save_pretrained(tmp_path / "theirs")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert not (tmp_path / "ours").exists()
    convert(str(tmp_path / "theirs"), tmp_path / "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
    assert (tmp_path / "ours" / "model.safetensors").is_file()
