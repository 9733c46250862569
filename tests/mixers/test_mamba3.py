"""Mamba-3 against its equations, its initial values, and what turning its state is good for."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from hf_memory.mixers.mamba3 import MemoryMamba3Config, MemoryMamba3Model
from tests.mixers.memory_checks import assert_is_the_loop, assert_uniform, inverse_softplus_log, mixer_of, normed
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

SMALL = {"state_size": 4}
OPTIONS = [
    {},
    {"state_size": 6, "rotation": "full", "rate": "rational"},
    {"num_heads": 4, "num_groups": 2, "expand": 1, "output_norm": True},
    {"state_size": 3, "rotation": "none"},
]


def _mixer(**fields):
    """A mixer whose time steps reach one, so that its angles reach a half turn."""
    mixer = mixer_of(MemoryMamba3Model, **{**SMALL, "time_step_min": 0.5, "time_step_max": 2.0, **fields})
    with torch.no_grad():
        for parameter in (mixer.key_bias, mixer.query_bias, mixer.D, mixer.key_norm.weight, mixer.query_norm.weight):
            parameter.add_(0.5 * torch.randn_like(parameter))
    return mixer


def _rotation(angles, size):
    """The matrix that turns neighbouring pairs, and leaves the rest."""
    blocks = [torch.stack((torch.stack((a.cos(), -a.sin())), torch.stack((a.sin(), a.cos())))) for a in angles]
    return torch.block_diag(*blocks, torch.eye(size - 2 * len(angles), dtype=torch.float64))


def _loop(mixer, inputs):
    """The equations for one row, head by head, with an angle that adds up and keys and queries that it turns."""
    config, inner = mixer.config, mixer.inner
    heads, groups, N = config.num_heads, config.num_groups, config.state_size
    pairs = {"half": N // 4, "full": N // 2, "none": 0}[config.rotation]
    sizes = [inner, inner, groups * N, groups * N, heads, heads, heads, pairs]
    z, x, B, C, d, a, trapezoid, r = (inputs @ mixer.in_proj.weight.T).split(sizes, dim=-1)
    x = x.reshape(len(inputs), heads, -1)
    B = normed(B.reshape(-1, groups, N), mixer.key_norm.weight)
    C = normed(C.reshape(-1, groups, N), mixer.query_norm.weight)
    step, share = F.softplus(d + mixer.dt_bias), torch.sigmoid(trapezoid)
    rate = F.softplus(a)
    if config.rate == "rational":
        rate = torch.where(a >= 0, 1 + a, 1 / (1 - a))
    outputs, states = [], []
    for head in range(heads):
        group = head * groups // heads
        state, angle, read = inputs.new_zeros(N, x.shape[-1]), inputs.new_zeros(pairs), []
        last = torch.zeros_like(state)
        for t in range(len(inputs)):
            dt = step[t, head]
            keep = torch.exp(-dt * rate[t, head])
            angle = angle + dt * math.pi * torch.tanh(r[t])
            turn = _rotation(angle, N)
            key = turn @ (B[t, group] + mixer.key_bias[head])
            query = turn @ (C[t, group] + mixer.query_bias[head])
            written = torch.outer(key, x[t, head])
            state = keep * state + (1 - share[t, head]) * dt * keep * last + share[t, head] * dt * written
            last = written
            read.append(state.T @ query + mixer.D[head] * x[t, head])
        outputs.append(torch.stack(read))
        states.append(_rotation(angle, N).T @ state)
    y = torch.stack(outputs, dim=1)
    if config.output_norm:
        y = normed(y, mixer.out_norm.weight.view(heads, -1))
    return y.flatten(1) * z * torch.sigmoid(z) @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(_mixer(**options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryMamba3Config(vocab_size=5, hidden_size=8, num_hidden_layers=1, **{**SMALL, **options})
    assert_laws(randomised(MemoryMamba3Model, config))


@pytest.mark.parametrize("options", [{}, {"rotation": "full"}, {"rotation": "none"}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    mixer = _mixer(hidden_size=4, initializer_range=0.9, expand=1, **options)
    assert_spectrum(mixer, torch.randn(1, 3, 4, dtype=torch.float64))


def test_eigenvalues_turn_only_where_the_state_does():
    inputs = torch.randn(1, 200, 8, dtype=torch.float64)
    turning, still = (_mixer(rotation=kind).transition_spectrum(inputs) for kind in ("half", "none"))
    assert turning.min() < -0.3
    assert turning.abs().max() < 1
    assert still.min() == 0
    assert 0 < still.max() < 1


def test_the_future_reaches_no_earlier_output_to_the_last_digit():
    # The weight of a token needs the time step after it: it is read only once that step is there.
    mixer = _mixer()
    inputs = torch.randn(1, 12, 8, dtype=torch.float64)
    other = inputs.clone()
    other[:, 7:] = 50 * torch.randn(1, 5, 8, dtype=torch.float64)
    assert torch.equal(mixer(inputs)[0][:, :7], mixer(other)[0][:, :7])


def test_a_layer_set_by_hand_counts_modulo_two_by_half_turns():
    mixer = mixer_of(MemoryMamba3Model, hidden_size=4, num_heads=1, expand=1, **SMALL)
    with torch.no_grad():
        for parameter in (mixer.in_proj.weight, mixer.key_bias, mixer.query_bias):
            parameter.zero_()
        mixer.dt_bias.fill_(math.log(math.e - 1))  # a time step of 1
        mixer.key_bias[0, 0] = mixer.query_bias[0, 0] = 1
        x, rates = 4, 4 * 4  # rows of the map: z, x, B and C of four numbers, then d, a, l and r
        mixer.in_proj.weight[x, 1] = 1  # what is written: the mark of the first token
        mixer.in_proj.weight[rates + 1, 2] = -60  # channel 2 is one: forget at the least rate
        mixer.in_proj.weight[rates + 2, 2] = 60  # and take the end of each step alone
        mixer.in_proj.weight[rates + 3, 0] = 60  # a bit turns by pi
    bits = torch.randint(0, 2, (3, 2000))
    bits[:, 0] = 0
    inputs = torch.stack((bits, torch.zeros_like(bits), torch.ones_like(bits), torch.zeros_like(bits)), dim=-1).double()
    inputs[:, 0, 1] = 1
    _, state = mixer(inputs)
    signs = 1 - 2 * (bits.sum(1) % 2).double()
    close(state["memory"][:, 0, 0, 0], signs * math.exp(-1999e-4), 1e-9)


def test_time_steps_biases_and_passed_inputs_follow_their_laws_after_from_config():
    config = MemoryMamba3Config(vocab_size=5, hidden_size=1024, num_heads=512, num_hidden_layers=1, state_size=4)
    mixer = MemoryMamba3Model._from_config(config).layers[0].mixer
    assert_uniform(inverse_softplus_log(mixer.dt_bias), math.log(1e-3), math.log(0.1))
    special = mixer.key_bias, mixer.query_bias, mixer.D
    assert all((parameter == 1).all() for parameter in special)
    assert {parameter.dtype for parameter in (*special, mixer.dt_bias)} == {torch.float32}


def test_state_size_counts_memory_last_key_and_last_value():
    mixer = mixer_of(MemoryMamba3Model, num_heads=4, num_groups=2, state_size=8)
    assert mixer.state_size() == 4 * 8 * 4 + 2 * 8 + 16


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"num_groups": 3}, "num_groups must divide num_heads=2"),
        ({"state_size": 6}, "state_size must be a multiple of 4"),
        ({"state_size": 5, "rotation": "full"}, "state_size must be a multiple of 2"),
        ({"state_size": 0}, "state_size must be at least 1"),
        ({"time_step_min": 0.2}, r"time_step_min must be in \(0, time_step_max=0.1\]"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryMamba3Config(vocab_size=5, hidden_size=8, **fields)
