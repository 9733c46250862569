"""Gated DeltaProduct against its equations, against Gated DeltaNet, and what its reflections can turn."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.gated_delta_net import MemoryGatedDeltaNetConfig, MemoryGatedDeltaNetModel
from hf_memory.mixers.gated_delta_product import MemoryGatedDeltaProductConfig, MemoryGatedDeltaProductModel
from tests.mixers.memory_checks import (
    assert_is_the_loop,
    assert_uniform,
    convolved,
    inverse_softplus_log,
    mixer_of,
    normed,
    unit,
)
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [
    {},
    {"num_householder": 3, "allow_neg_eigval": False, "key_head_dim": 3, "value_head_dim": 5},
    {"num_householder": 1, "conv_kernel": 0, "gate": False},
    {"forget_gate": False, "learned_start": True},
    {"write": False, "learned_start": True, "value_head_dim": 2},
]


def _loop(mixer, inputs):
    """The equations for one row, head by head."""
    config, (heads, K, V), n, T = mixer.config, mixer.memory_shape, mixer.steps, len(inputs)
    projected = convolved(mixer.conv, inputs @ mixer.qkv_proj.weight.T)
    query, key, value = projected.split([heads * K, n * heads * K, n * heads * V * config.write], dim=-1)
    query, key = unit(query.reshape(T, heads, K)), unit(key.reshape(T, n, heads, K))
    value = value.reshape(T, n, heads, V) if config.write else inputs.new_zeros(T, n, heads, V)
    beta = torch.sigmoid(inputs @ mixer.beta_proj.weight.T).view(T, n, heads)
    beta = beta * (2 if config.allow_neg_eigval else 1)
    decay = inputs.new_ones(T, heads)
    if config.forget_gate:
        step = torch.log1p(torch.exp(inputs @ mixer.decay_proj.weight.T + mixer.dt_bias))
        decay = torch.exp(-torch.exp(mixer.A_log) * step)
    outputs, states = [], []
    for head in range(heads):
        state, read = inputs.new_zeros(K, V) if mixer.start is None else mixer.start[head], []
        for t in range(T):
            state = decay[t, head] * state
            for j in range(n):
                k = key[t, j, head]
                reflection = torch.eye(K, dtype=torch.float64) - beta[t, j, head] * torch.outer(k, k)
                state = reflection @ state + beta[t, j, head] * torch.outer(k, value[t, j, head])
            read.append(state.T @ query[t, head] / math.sqrt(K))
        outputs.append(torch.stack(read))
        states.append(state)
    outputs = normed(torch.stack(outputs, dim=1), mixer.head_norm.norm.weight).flatten(1)
    if config.gate:
        gate = inputs @ mixer.gate_proj.weight.T
        outputs = outputs * gate * torch.sigmoid(gate)
    return outputs @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(mixer_of(MemoryGatedDeltaProductModel, **options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryGatedDeltaProductConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryGatedDeltaProductModel, config))


@pytest.mark.parametrize("options", [{}, {"num_householder": 3}, {"forget_gate": False}, {"allow_neg_eigval": False}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    fields = {"hidden_size": 4, "initializer_range": 0.9, "conv_kernel": 2, "num_heads": 1, **options}
    assert_spectrum(mixer_of(MemoryGatedDeltaProductModel, **fields), torch.randn(1, 3, 4, dtype=torch.float64))


def test_one_step_a_token_is_gated_delta_net():
    fields = {"vocab_size": 5, "hidden_size": 8, "initializer_range": 0.3, "allow_neg_eigval": True}
    one = randomised(MemoryGatedDeltaProductModel, MemoryGatedDeltaProductConfig(num_householder=1, **fields))
    other = randomised(MemoryGatedDeltaNetModel, MemoryGatedDeltaNetConfig(**fields))
    other.load_state_dict(one.state_dict())
    ids = torch.randint(0, 5, (2, 9))
    close(one(ids).last_hidden_state, other(ids).last_hidden_state)


def test_without_writes_and_decay_full_strengths_keep_the_length_of_the_learned_start():
    fields = {"write": False, "learned_start": True, "forget_gate": False}
    mixer = mixer_of(MemoryGatedDeltaProductModel, **fields)
    mixer.strengths = lambda hidden_states: hidden_states.new_full((*hidden_states.shape[:1], 2 * 20, 2), 2.0)
    _, final = mixer(torch.randn(1, 20, 8, dtype=torch.float64))
    lengths = [state.norm(dim=-2) for state in (final["memory"][0], mixer.start)]
    torch.testing.assert_close(*lengths, rtol=1e-3, atol=0)  # keys have 1e-6 under their root
    assert (final["memory"][0] - mixer.start).abs().max() > 0.1


def test_parameters_follow_their_laws_after_from_config():
    fields = {"hidden_size": 1024, "num_heads": 256, "num_hidden_layers": 1, "learned_start": True}
    config = MemoryGatedDeltaProductConfig(vocab_size=5, num_householder=1, **fields)
    mixer = MemoryGatedDeltaProductModel._from_config(config).layers[0].mixer
    assert_uniform(mixer.A_log.exp(), 0.01, 16)
    assert_uniform(inverse_softplus_log(mixer.dt_bias), math.log(1e-3), math.log(0.1))
    assert mixer.start.square().sum(-1).mean().item() == pytest.approx(1, rel=0.1)
    assert {getattr(mixer, name).dtype for name in ("A_log", "dt_bias", "start")} == {torch.float32}


def test_state_size_counts_memory_and_convolution():
    mixer = mixer_of(MemoryGatedDeltaProductModel, num_householder=3, key_head_dim=3, value_head_dim=5)
    assert mixer.state_size() == 2 * 3 * 5 + 3 * (2 * 3 + 3 * 2 * (3 + 5))


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"num_householder": 0}, "num_householder must be at least 1"),
        ({"value_head_dim": -1}, "value_head_dim must be at least 0"),
        ({"write": False}, "write must be True where learned_start is False"),
        ({"time_step_floor": 0.0}, "time_step_floor must be above 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryGatedDeltaProductConfig(vocab_size=5, hidden_size=8, **fields)
