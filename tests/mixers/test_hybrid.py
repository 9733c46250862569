"""Stacks of unlike layers: presets, shared fields, and one whole stack against its parts."""

import pytest
import torch

from hf_memory.mixers.based import BasedMixer
from hf_memory.mixers.hybrid import PRESETS, MemoryHybridConfig, MemoryHybridForCausalLM, MemoryHybridModel


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_model_that_splits_anywhere(name):
    config = MemoryHybridConfig.from_preset(name, vocab_size=7, hidden_size=32)
    model = MemoryHybridForCausalLM(config).eval().double()
    ids = torch.randint(0, 7, (2, 9))
    whole = model(ids, use_cache=True)
    first = model(ids[:, :4], use_cache=True)
    second = model(ids[:, 4:], cache=first.cache)
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole.logits, atol=1e-10, rtol=0)
    assert whole.cache.state_size() == model.state_size(9)


def test_based_360m_has_the_published_order_of_layers():
    config = MemoryHybridConfig.from_preset("based_360m", hidden_size=1024)
    kinds = [config.layer_config(layer).model_type.removeprefix("memory_") for layer in config.layers]
    assert len(kinds) == config.num_hidden_layers == 27
    assert [index for index, kind in enumerate(kinds) if kind == "based"] == [1, 6, 11, 16, 21]
    assert [index for index, kind in enumerate(kinds) if kind == "attention"] == [2, 7, 12, 17, 22]
    assert config.layer_config(config.layers[2]).window == 256
    assert config.layer_config(config.layers[2]).position_code == "rope"
    conv = config.layer_config(config.layers[0])
    assert (conv.expand, conv.conv_activation, conv.conv_kernel, conv.skip) == (2, "silu", 3, False)


def test_based_360m_has_the_published_number_of_parameters():
    published = {"hidden_size": 1024, "intermediate_size": 2048, "mlp_gated": True, "hidden_act": "silu"}
    config = MemoryHybridConfig.from_preset("based_360m", vocab_size=50_280, **published)
    with torch.device("meta"):
        model = MemoryHybridForCausalLM(config)
    conv, taylor, window = (
        sum(parameter.numel() for parameter in model.model.layers[index].mixer.parameters()) for index in range(3)
    )
    # Two maps to 2,048 channels and one back with biases, 3 taps and a bias; Taylor features of 16 for 16 heads.
    assert conv == 3 * 1024 * 2048 + 2 * 2048 + 1024 + 2048 * 4
    assert taylor == 2 * 1024 * 256 + 2 * 1024 * 1024
    assert window == 4 * 1024 * 1024
    mlp, norms = 3 * 1024 * 2048, 2 * 1024
    total = 50_280 * 1024 + 17 * conv + 5 * taylor + 5 * window + 27 * (mlp + norms) + 1024
    assert sum(parameter.numel() for parameter in model.parameters()) == total == 362_672_128


@pytest.mark.parametrize(
    "name, kinds, window",
    [("samba", ["mamba", "attention"], 2048), ("griffin", ["rg_lru", "rg_lru", "attention"], 1024)],
)
def test_stacks_of_recurrences_and_windows_have_the_published_order(name, kinds, window):
    config = MemoryHybridConfig.from_preset(name, vocab_size=7, hidden_size=32, num_hidden_layers=2 * len(kinds))
    plan = [config.layer_config(layer) for layer in config.layers]
    assert [layer.model_type.removeprefix("memory_") for layer in plan] == kinds
    assert (plan[-1].window, plan[-1].position_code) == (window, "rope")
    model = MemoryHybridModel(config)
    assert [type(layer.mixer).__name__ for layer in model.layers[: len(kinds)]] == [
        type(layer.mixer).__name__ for layer in model.layers[len(kinds) :]
    ]
    fixed = sum(layer.state_size() for layer in model.layers if not layer.mixer.growing_state)
    assert model.state_size(5000) == fixed + 2 * 2 * 32 * (window - 1)


def test_a_stack_has_a_longest_input_where_one_of_its_layers_has():
    long = {"mixer": "base_conv", "conv_kernel": 0}
    stacks = {("lstm", "base_conv"): False, ("lstm", "hyena"): True}
    for layers, limited in stacks.items():
        assert MemoryHybridConfig(layers=list(layers)).limited_length is limited
    assert MemoryHybridConfig(layers=["lstm", long]).limited_length
    assert MemoryHybridConfig(layers=["lstm"], position_embedding="learned").limited_length


def test_presets_are_not_changed_through_a_config_and_unknown_ones_suggest_the_nearest():
    config = MemoryHybridConfig.from_preset("zoology_based", hidden_size=16)
    config.layers[1]["num_heads"] = 4
    assert PRESETS["zoology_based"][1]["num_heads"] == 1
    with pytest.raises(ValueError, match="did you mean 'zoology_based'"):
        MemoryHybridConfig.from_preset("zoology_basd")


def test_layers_share_the_fields_of_the_stack_and_keep_their_own():
    config = MemoryHybridConfig(
        vocab_size=7,
        hidden_size=24,
        norm="layer",
        intermediate_size=8,
        layers=["lstm", {"mixer": "based", "feature_dim": 4}],
        num_hidden_layers=4,
    )
    model = MemoryHybridModel(config)
    assert [type(layer.mixer).__name__ for layer in model.layers] == ["LSTMMixer", "BasedMixer"] * 2
    assert all(isinstance(layer.norm, torch.nn.LayerNorm) and layer.mlp is not None for layer in model.layers)
    assert isinstance(model.layers[3].mixer, BasedMixer)
    assert model.layers[3].mixer.config.feature_dim == 4
    assert [layer.mixer.layer_idx for layer in model.layers] == [0, 1, 2, 3]
