"""Gated linear attention against its equations, and the law of its gates."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.gla import MemoryGLAConfig, MemoryGLAModel
from tests.mixers.memory_checks import assert_is_the_loop, convolved, mixer_of, normed
from tests.mixers.option_checks import assert_laws, assert_spectrum, randomised

OPTIONS = [{}, {"num_heads": 4, "key_head_dim": 3, "gate_rank": 2}, {"conv_kernel": 3, "gate": False}]


def _loop(mixer, inputs):
    """The equations for one row, head by head."""
    heads, K, V = mixer.memory_shape
    projected = inputs @ mixer.qkv_proj.weight.T
    projected = projected if mixer.conv is None else convolved(mixer.conv, projected)
    query, key, value = projected.split([heads * K, heads * K, heads * V], dim=-1)
    first, second = (layer.weight for layer in mixer.decay_proj)
    decay = torch.sigmoid(inputs @ first.T @ second.T + mixer.decay_bias) ** (1 / 16)
    query, key, decay = (part.reshape(len(inputs), heads, K) for part in (query, key, decay))
    value = value.reshape(len(inputs), heads, V)
    outputs, states = [], []
    for head in range(heads):
        state, read = inputs.new_zeros(K, V), []
        for t in range(len(inputs)):
            state = torch.diag(decay[t, head]) @ state + torch.outer(key[t, head], value[t, head])
            read.append(state.T @ query[t, head] / math.sqrt(K))
        outputs.append(torch.stack(read))
        states.append(state)
    outputs = normed(torch.stack(outputs, dim=1), mixer.head_norm.norm.weight).flatten(1)
    if mixer.config.gate:
        gate = inputs @ mixer.gate_proj.weight.T
        outputs = outputs * gate * torch.sigmoid(gate)
    return outputs @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(mixer_of(MemoryGLAModel, **options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryGLAConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryGLAModel, config))


@pytest.mark.parametrize("options", [{}, {"conv_kernel": 2}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    fields = {"hidden_size": 4, "initializer_range": 0.9, "gate_temperature": 1.0, **options}
    assert_spectrum(mixer_of(MemoryGLAModel, **fields), torch.randn(1, 3, 4, dtype=torch.float64))


def test_decays_start_near_the_root_of_one_half_after_from_config():
    model = MemoryGLAModel._from_config(MemoryGLAConfig(vocab_size=5, hidden_size=64, num_hidden_layers=1))
    mixer = model.layers[0].mixer
    assert mixer.decay_bias.dtype == torch.float32
    assert mixer.log_decay(torch.randn(2, 50, 64)).exp().mean().item() == pytest.approx(0.5 ** (1 / 16), abs=1e-3)


def test_keys_are_half_as_wide_as_values_and_the_state_is_counted():
    mixer = mixer_of(MemoryGLAModel, hidden_size=16, conv_kernel=4)
    assert mixer.memory_shape == (2, 4, 8)
    assert mixer.state_size() == 2 * 4 * 8 + 3 * (2 * 8 + 16)


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"gate_rank": 0}, "gate_rank must be at least 1"),
        ({"gate_temperature": 0.0}, "gate_temperature must be above 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryGLAConfig(vocab_size=5, hidden_size=8, **fields)
