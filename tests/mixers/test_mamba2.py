"""Mamba-2 against its equations, against transformers, and its initial values."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import Mamba2Config, Mamba2ForCausalLM

from hf_memory.mixers.mamba2 import MemoryMamba2Config, MemoryMamba2Model
from tests.mixers.memory_checks import (
    assert_is_the_loop,
    assert_same_logits,
    assert_uniform,
    converted,
    convolved,
    inverse_softplus_log,
    mixer_of,
    normed,
    scramble,
)
from tests.mixers.option_checks import assert_laws, assert_spectrum, randomised

SMALL = {"state_size": 3}
OPTIONS = [
    {},
    {"negative_eigenvalues": True},
    {"num_heads": 4, "num_groups": 2, "expand": 1},
    {"conv_kernel": 0, "output_norm": False},
    {"conv_bias": False},
]


def _loop(mixer, inputs):
    """The equations for one row, head by head."""
    config, inner = mixer.config, mixer.inner
    heads, groups, N = config.num_heads, config.num_groups, config.state_size
    z, mixed, raw = (inputs @ mixer.in_proj.weight.T).split([inner, inner + 2 * groups * N, heads], dim=-1)
    mixed = convolved(mixer.conv, mixed)
    x, B, C = mixed.split([inner, groups * N, groups * N], dim=-1)
    x = x.reshape(len(inputs), heads, -1)
    B, C = (part.reshape(len(inputs), groups, N) for part in (B, C))
    step = torch.log1p(torch.exp(raw + mixer.dt_bias))
    decay = torch.exp(-step * torch.exp(mixer.A_log))
    decay = 2 * decay - 1 if config.negative_eigenvalues else decay
    outputs, states = [], []
    for head in range(heads):
        state, read, group = inputs.new_zeros(N, x.shape[-1]), [], head * groups // heads
        for t in range(len(inputs)):
            state = decay[t, head] * state + step[t, head] * torch.outer(B[t, group], x[t, head])
            read.append(state.T @ C[t, group] + mixer.D[head] * x[t, head])
        outputs.append(torch.stack(read))
        states.append(state)
    y = torch.stack(outputs, dim=1).flatten(1) * z * torch.sigmoid(z)
    if config.output_norm:
        weight = mixer.out_norm.weight.view(groups, -1)
        y = normed(y.view(len(inputs), groups, -1), weight).flatten(1)
    return y @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(mixer_of(MemoryMamba2Model, **SMALL, **options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryMamba2Config(vocab_size=5, hidden_size=8, num_hidden_layers=1, **SMALL, **options)
    assert_laws(randomised(MemoryMamba2Model, config))


@pytest.mark.parametrize("options", [{}, {"negative_eigenvalues": True}, {"conv_kernel": 0}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    fields = {"hidden_size": 4, "state_size": 2, "conv_kernel": 2, "expand": 1, "initializer_range": 0.9, **options}
    assert_spectrum(mixer_of(MemoryMamba2Model, **fields), torch.randn(1, 3, 4, dtype=torch.float64))


def test_a_step_that_halves_the_state_has_a_finite_gradient_where_eigenvalues_may_be_negative():
    mixer = mixer_of(MemoryMamba2Model, **SMALL, negative_eigenvalues=True)
    with torch.no_grad():
        mixer.in_proj.weight.zero_()
        mixer.A_log.zero_()
        mixer.dt_bias.fill_(0.0)  # softplus(0) = log 2, so that 2 exp(-log 2) - 1 = 0
    inputs = torch.randn(1, 9, 8, dtype=torch.float64, requires_grad=True)
    outputs, final = mixer(inputs)
    (outputs.sum() + final["memory"].sum()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())
    assert mixer.transition_spectrum(inputs).abs().max() < 1e-5


@pytest.mark.parametrize("groups", [1, 2])
def test_logits_are_those_of_transformers_with_padding_on_the_left_too(groups):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 6, "chunk_size": 16}
    config = Mamba2Config(num_heads=4, head_dim=8, n_groups=groups, **sizes)
    theirs = scramble(Mamba2ForCausalLM(config))
    assert_same_logits(theirs, converted(theirs))


def test_rates_time_steps_and_passed_inputs_follow_their_laws_after_from_config():
    config = MemoryMamba2Config(vocab_size=5, hidden_size=1024, num_heads=512, num_hidden_layers=1, state_size=2)
    mixer = MemoryMamba2Model._from_config(config).layers[0].mixer
    assert_uniform(mixer.A_log.exp(), 1, 16)
    assert_uniform(inverse_softplus_log(mixer.dt_bias), math.log(1e-3), math.log(0.1))
    assert (mixer.D == 1).all()
    assert {mixer.A_log.dtype, mixer.dt_bias.dtype, mixer.D.dtype} == {torch.float32}


def test_state_size_counts_memory_and_convolution():
    mixer = mixer_of(MemoryMamba2Model, num_heads=4, num_groups=2, state_size=3)
    assert mixer.state_size() == 4 * 3 * 4 + 3 * (16 + 2 * 2 * 3)


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"num_groups": 3}, "num_groups must divide num_heads=2"),
        ({"state_size": 0}, "state_size must be at least 1"),
        ({"decay_max": 0.5}, r"decay_min must be in \(0, decay_max=0.5\]"),
        ({"time_step_min": 0.2}, r"time_step_min must be in \(0, time_step_max=0.1\]"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryMamba2Config(vocab_size=5, hidden_size=8, **fields)
