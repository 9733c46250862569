"""Gated DeltaNet against its equations, against Qwen3-Next and Olmo Hybrid of transformers, and its initial values."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import OlmoHybridConfig, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

from hf_memory.mixers.gated_delta_net import (
    MemoryGatedDeltaNetConfig,
    MemoryGatedDeltaNetModel,
)
from tests.mixers.memory_checks import (
    assert_is_the_loop,
    assert_same_logits,
    assert_uniform,
    converted,
    convolved,
    copy_weights,
    inverse_softplus_log,
    mixer_of,
    normed,
    scramble,
    unit,
)
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [
    {},
    {"allow_neg_eigval": True},
    {"num_heads": 4, "num_key_heads": 2, "key_head_dim": 3, "value_head_dim": 5},
    {"conv_kernel": 0, "gate": False},
]


def _loop(mixer, inputs):
    """The equations for one row, head by head."""
    config, (heads, K, V) = mixer.config, mixer.memory_shape
    projected = convolved(mixer.conv, inputs @ mixer.qkv_proj.weight.T)
    query, key, value = projected.split([mixer.key_heads * K, mixer.key_heads * K, heads * V], dim=-1)
    query, key = (unit(part.reshape(len(inputs), mixer.key_heads, K)) for part in (query, key))
    value = value.reshape(len(inputs), heads, V)
    beta = torch.sigmoid(inputs @ mixer.beta_proj.weight.T) * (2 if config.allow_neg_eigval else 1)
    step = torch.log1p(torch.exp(inputs @ mixer.decay_proj.weight.T + mixer.dt_bias))
    decay = torch.exp(-torch.exp(mixer.A_log) * step)
    outputs, states = [], []
    for head in range(heads):
        state, read, shared = inputs.new_zeros(K, V), [], head * mixer.key_heads // heads
        for t in range(len(inputs)):
            k = key[t, shared]
            state = decay[t, head] * state
            state = state + beta[t, head] * torch.outer(k, value[t, head] - state.T @ k)
            read.append(state.T @ query[t, shared] / math.sqrt(K))
        outputs.append(torch.stack(read))
        states.append(state)
    outputs = normed(torch.stack(outputs, dim=1), mixer.head_norm.norm.weight).flatten(1)
    if config.gate:
        gate = inputs @ mixer.gate_proj.weight.T
        outputs = outputs * gate * torch.sigmoid(gate)
    return outputs @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(mixer_of(MemoryGatedDeltaNetModel, **options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryGatedDeltaNetConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryGatedDeltaNetModel, config))


@pytest.mark.parametrize("options", [{}, {"allow_neg_eigval": True}, {"num_heads": 4}, {"conv_kernel": 0}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    fields = {"hidden_size": 4, "initializer_range": 0.9, "conv_kernel": 2, **options}
    assert_spectrum(mixer_of(MemoryGatedDeltaNetModel, **fields), torch.randn(1, 3, 4, dtype=torch.float64))


def test_negative_eigenvalues_come_with_the_factor_alone():
    for allowed in (False, True):
        mixer = mixer_of(MemoryGatedDeltaNetModel, allow_neg_eigval=allowed, initializer_range=2.0)
        spectrum = mixer.transition_spectrum(3 * torch.randn(4, 100, 8, dtype=torch.float64))
        assert (spectrum.abs() <= 1).all()
        assert (spectrum.min() < -0.5) == allowed


def test_logits_are_those_of_qwen3_next_with_padding_on_the_left_too():
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6}
    others = {"num_attention_heads": 2, "head_dim": 8, "mlp_only_layers": [0, 1], "num_experts": 2}
    layers = {"layer_types": ["linear_attention"] * 2, "linear_value_head_dim": 5}
    theirs = scramble(Qwen3NextForCausalLM(Qwen3NextConfig(**sizes, **heads, **others, **layers)))
    assert_same_logits(theirs, converted(theirs))


@pytest.mark.parametrize("allow_neg_eigval", [False, True])
def test_a_layer_is_that_of_olmo_hybrid_with_padding_on_the_left_too(allow_neg_eigval):
    torch.manual_seed(0)
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6}
    config = OlmoHybridConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=4, linear_allow_neg_eigval=allow_neg_eigval, **heads
    )
    theirs = scramble(OlmoHybridGatedDeltaNet(config, 0))
    fields = {"num_heads": 4, "num_key_heads": 2, "key_head_dim": 6, "value_head_dim": 12, "hidden_size": 16}
    mixer = mixer_of(MemoryGatedDeltaNetModel, allow_neg_eigval=allow_neg_eigval, **fields).float()
    names = {"beta_proj": "b_proj", "decay_proj": "a_proj", "gate_proj": "g_proj", "out_proj": "o_proj"}
    pairs = [(getattr(theirs, name).weight, getattr(mixer, own).weight) for own, name in names.items()]
    maps = torch.cat((theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight))
    pairs += [(maps, mixer.qkv_proj.weight), (theirs.conv1d.weight, mixer.conv.weight)]
    pairs += [(theirs.o_norm.weight, mixer.head_norm.norm.weight)]
    pairs += [(theirs.A_log, mixer.A_log), (theirs.dt_bias, mixer.dt_bias)]
    copy_weights(pairs, mixer)
    inputs = torch.randn(2, 40, 16)
    close(mixer(inputs)[0], theirs(inputs), 2e-5)
    mask = torch.ones(2, 40)
    mask[:, :9] = 0
    close(mixer(inputs[:, 9:])[0], theirs(inputs, attention_mask=mask)[:, 9:], 2e-5)


def test_rates_and_time_steps_follow_their_laws_after_from_config():
    config = MemoryGatedDeltaNetConfig(vocab_size=5, hidden_size=1024, num_heads=512, num_hidden_layers=1)
    mixer = MemoryGatedDeltaNetModel._from_config(config).layers[0].mixer
    assert_uniform(mixer.A_log.exp(), 0.01, 16)
    assert_uniform(inverse_softplus_log(mixer.dt_bias), math.log(1e-3), math.log(0.1))
    assert {mixer.A_log.dtype, mixer.dt_bias.dtype} == {torch.float32}


def test_state_size_counts_memory_and_convolution():
    mixer = mixer_of(MemoryGatedDeltaNetModel, num_heads=4, num_key_heads=2, key_head_dim=3, value_head_dim=5)
    assert mixer.state_size() == 4 * 3 * 5 + 3 * (2 * 2 * 3 + 4 * 5)


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"num_heads": 4, "num_key_heads": 3}, "num_key_heads must divide num_heads=4"),
        ({"conv_kernel": -1}, "conv_kernel must be at least 0"),
        ({"decay_min": 0.0}, r"decay_min must be in \(0, decay_max=16.0\]"),
        ({"time_step_min": 0.2}, r"time_step_min must be in \(0, time_step_max=0.1\]"),
        ({"time_step_floor": 0.0}, "time_step_floor must be above 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryGatedDeltaNetConfig(vocab_size=5, hidden_size=8, **fields)
