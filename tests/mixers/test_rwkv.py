"""RWKV-4 against transformers, against a loop over its equations, and its initial values."""

import math

import pytest
import torch
from transformers import RwkvConfig, RwkvModel

from hf_memory.mixers.rwkv import MemoryRWKVConfig, MemoryRWKVForCausalLM, MemoryRWKVModel
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [{"channel_mix": True}, {"channel_mix": True, "intermediate_size": 12}, {"num_hidden_layers": 1}]


def _config(**fields):
    return MemoryRWKVConfig(vocab_size=11, **{"hidden_size": 8, **fields})


@pytest.fixture
def pair():
    """A model of transformers and ours with the same weights, and the pairs of parameters."""
    theirs = RwkvModel(
        RwkvConfig(vocab_size=11, hidden_size=16, num_hidden_layers=3, context_length=32, rescale_every=0)
    ).eval()
    ours = MemoryRWKVModel(_config(hidden_size=16, num_hidden_layers=3, norm="layer", channel_mix=True)).eval()
    pairs = [(theirs.ln_out, ours.norm)]
    for block, layer in zip(theirs.blocks, ours.layers, strict=True):
        attention, mixer, feed_forward, mlp = block.attention, layer.mixer, block.feed_forward, layer.mlp
        pairs += [(block.ln1, layer.norm), (block.ln2, layer.mlp_norm), (attention.output, mixer.out_proj)]
        pairs += [(getattr(attention, name), getattr(mixer, name)) for name in ("key", "value", "receptance")]
        pairs += [(getattr(feed_forward, name), getattr(mlp, name)) for name in ("key", "value", "receptance")]
    parameters = [
        (getattr(source, name), getattr(target, name))
        for source, target in pairs
        for name in ("weight", "bias")
        if getattr(target, name, None) is not None
    ]
    for block, layer in zip(theirs.blocks, ours.layers, strict=True):
        attention, mixer, feed_forward, mlp = block.attention, layer.mixer, block.feed_forward, layer.mlp
        parameters += [(attention.time_decay, mixer.time_decay), (attention.time_first, mixer.time_first)]
        for name in ("key", "value", "receptance"):
            parameters.append((getattr(attention, f"time_mix_{name}"), getattr(mixer, f"mix_{name}")))
        for name in ("key", "receptance"):
            parameters.append((getattr(feed_forward, f"time_mix_{name}"), getattr(mlp, f"mix_{name}")))
    with torch.no_grad():
        for source, target in parameters:
            source.add_(0.2 * torch.randn_like(source))
            target.copy_(source.view_as(target))
    return theirs, ours, parameters


def test_outputs_and_every_gradient_equal_those_of_transformers(pair):
    theirs, ours, parameters = pair
    embeds = torch.randn(2, 9, 16)
    # Our models have no second norm after the embedding, so they are given what it returns.
    normed = theirs.blocks[0].pre_ln(embeds).detach()
    expected = theirs(inputs_embeds=embeds, use_cache=False).last_hidden_state
    actual = ours(inputs_embeds=normed).last_hidden_state
    close(actual, expected, 1e-5)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (actual * weight).sum().backward()
    assert len(parameters) == len([p for p in ours.parameters() if p.grad is not None])
    for source, target in parameters:
        close(target.grad / source.grad.abs().max(), source.grad.view_as(target) / source.grad.abs().max(), 2e-5)


def test_states_equal_those_of_transformers(pair):
    theirs, ours, _ = pair
    embeds = torch.randn(2, 9, 16)
    with torch.no_grad():
        expected = theirs(inputs_embeds=embeds, use_cache=True).state
        states = ours(inputs_embeds=theirs.blocks[0].pre_ln(embeds), use_cache=True).cache.states
    for layer, state in enumerate(states):
        close(state["mlp.shift"][:, 0], expected[0][..., layer], 1e-5)
        close(state["mixer.shift"][:, 0], expected[1][..., layer], 1e-5)
        close(state["mixer.wkv"], torch.stack([leaf[..., layer] for leaf in expected[2:]], dim=1), 1e-5)


def test_equals_a_loop_over_the_equations():
    model = randomised(MemoryRWKVModel, _config(initializer_range=0.4, channel_mix=True))
    mixer, mlp = model.layers[1].mixer, model.layers[1].mlp
    u = torch.randn(2, 7, 8, dtype=torch.float64)
    outputs, mixed = mixer(u)[0], mlp(u)[0]
    w, bonus = -mixer.time_decay.exp(), mixer.time_first
    keys, values = [], []
    before = torch.zeros(2, 8, dtype=torch.float64)
    for t, now in enumerate(u.unbind(1)):
        key, value, receptance = (
            (mix * now + (1 - mix) * before) @ linear.weight.T
            for mix, linear in (
                (mixer.mix_key, mixer.key),
                (mixer.mix_value, mixer.value),
                (mixer.mix_receptance, mixer.receptance),
            )
        )
        weights = [torch.exp((t - 1 - s) * w + k) for s, k in enumerate(keys)] + [torch.exp(bonus + key)]
        keys.append(key)
        values.append(value)
        average = sum(a * v for a, v in zip(weights, values, strict=True)) / sum(weights)
        close(outputs[:, t], (average / (1 + torch.exp(-receptance))) @ mixer.out_proj.weight.T, 1e-12)
        inner = (mlp.mix_key * now + (1 - mlp.mix_key) * before) @ mlp.key.weight.T
        gate = (mlp.mix_receptance * now + (1 - mlp.mix_receptance) * before) @ mlp.receptance.weight.T
        close(mixed[:, t], torch.sigmoid(gate) * (inner.clamp(min=0) ** 2 @ mlp.value.weight.T), 1e-12)
        before = now


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    assert_laws(randomised(MemoryRWKVModel, _config(initializer_range=0.4, **options)))


def test_the_spectrum_is_that_of_the_jacobian_of_the_unscaled_sums():
    mixer = randomised(MemoryRWKVModel, _config(hidden_size=6, initializer_range=0.4)).layers[1].mixer

    def encode(state):
        numerator, denominator, exponent = state["wkv"].unbind(1)
        sums = torch.stack([numerator, denominator], dim=1) * exponent.exp().unsqueeze(1)
        return {"shift": state["shift"], "sums": sums}

    def decode(state):
        numerator, denominator = state["sums"].unbind(1)
        return {
            "shift": state["shift"],
            "wkv": torch.stack([numerator, denominator, torch.zeros_like(numerator)], dim=1),
        }

    assert_spectrum(mixer, torch.randn(1, 4, 6, dtype=torch.float64), encode, decode)


def test_channel_mix_is_the_mlp_of_the_block_and_counts_its_state():
    plain, own, mlp = (
        MemoryRWKVModel(_config(num_hidden_layers=1, **fields))
        for fields in ({}, {"channel_mix": True}, {"intermediate_size": 12})
    )
    assert plain.layers[0].mlp is None
    assert own.layers[0].mlp.key.weight.shape == (32, 8)
    assert [model.state_size() for model in (plain, own, mlp)] == [32, 40, 32]
    assert mlp.layers[0].mlp.up_proj.weight.shape == (12, 8)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_initial_values_follow_the_official_code_at_any_depth(depth, tmp_path):
    model = MemoryRWKVForCausalLM(_config(hidden_size=10, num_hidden_layers=depth, channel_mix=True))
    model.save_pretrained(tmp_path)
    for candidate in (model, MemoryRWKVForCausalLM.from_pretrained(tmp_path)):
        for index, layer in enumerate(candidate.model.requires_grad_(False).layers):
            deep, falling = (index / (depth - 1) if depth > 1 else 0.0), 1 - index / depth
            mixer = layer.mixer
            for h in range(10):
                assert math.isclose(mixer.time_decay[h], -5 + 8 * (h / 9) ** (0.7 + 1.3 * deep), abs_tol=1e-5)
                assert math.isclose(mixer.time_first[h], math.log(0.3) + 0.5 * ((h + 1) % 3 - 1), abs_tol=1e-6)
                assert math.isclose(mixer.mix_key[h], (h / 10) ** falling, abs_tol=1e-6)
                assert math.isclose(mixer.mix_value[h], (h / 10) ** falling + 0.3 * deep, abs_tol=1e-6)
                assert math.isclose(mixer.mix_receptance[h], (h / 10) ** (0.5 * falling), abs_tol=1e-6)
                assert math.isclose(layer.mlp.mix_key[h], (h / 10) ** falling, abs_tol=1e-6)
            for linear in (mixer.key, mixer.receptance, mixer.out_proj, layer.mlp.receptance, layer.mlp.value):
                assert not linear.weight.any()
            assert mixer.value.weight.std() > 0.01
            assert layer.mlp.key.weight.std() > 0.01
            assert {mixer.time_decay.dtype, mixer.time_first.dtype} == {torch.float32}


def test_a_fresh_block_is_the_identity_unless_zero_init_is_off():
    hidden = torch.randn(2, 5, 8)
    assert torch.equal(MemoryRWKVModel(_config(channel_mix=True)).layers[0](hidden)[0], hidden)
    block = MemoryRWKVModel(_config(channel_mix=True, zero_init=False)).layers[0]
    assert (block(hidden)[0] - hidden).abs().max() > 1e-6
    assert abs(block.mixer.key.weight.std() / 0.02 - 1) < 0.4


def test_decay_and_bonus_take_no_weight_decay_and_neither_do_the_mixing_weights():
    model = MemoryRWKVModel(_config(channel_mix=True))
    decayed = {
        id(parameter)
        for group in model.optim_groups(1e-3, 0.1)
        if group["weight_decay"]
        for parameter in group["params"]
    }
    names = {name.rpartition(".")[2] for name, p in model.named_parameters() if id(p) not in decayed}
    assert names == {"time_decay", "time_first", "mix_key", "mix_value", "mix_receptance", "weight"}
    assert id(model.layers[0].mixer.key.weight) in decayed
