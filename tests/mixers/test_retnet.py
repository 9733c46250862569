"""RetNet against its equations in the quadratic form, and its fixed rates."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.retnet import MemoryRetnetConfig, MemoryRetnetModel
from tests.mixers.memory_checks import assert_is_the_loop, convolved, mixer_of, normed
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [{}, {"num_heads": 4, "expand": 1}, {"conv_kernel": 3, "gate": False}, {"rope_theta": 0.0}]


def _turned(vectors, theta):
    """Channel i and K / 2 + i of (T, K) as a complex number, turned by the position times theta^(-2i / K)."""
    if not theta:
        return vectors
    half = vectors.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(len(vectors), dtype=torch.float64).unsqueeze(-1) * frequency
    turned = torch.complex(vectors[:, :half], vectors[:, half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def _loop(mixer, inputs):
    """The parallel form, a sum over the past of each token, for one row, head by head; the state is a sum too."""
    (heads, K, V), time = mixer.memory_shape, len(inputs)
    projected = inputs @ mixer.qkv_proj.weight.T
    projected = projected if mixer.conv is None else convolved(mixer.conv, projected)
    query, key, value = projected.split([heads * K, heads * K, heads * V], dim=-1)
    outputs, states = [], []
    for head in range(heads):
        q, k = (_turned(part[:, head * K : head * K + K], mixer.config.rope_theta) for part in (query, key))
        v, rate = value[:, head * V : head * V + V], 1 - 2.0 ** (-5 - head)
        distance = torch.arange(time).unsqueeze(1) - torch.arange(time)
        weights = torch.where(distance >= 0, torch.tensor(rate, dtype=torch.float64) ** distance, 0)
        outputs.append((q @ k.T * weights) @ v / math.sqrt(K))
        states.append((k * weights[-1].unsqueeze(-1)).T @ v / math.sqrt(K))
    outputs = normed(torch.stack(outputs, dim=1), mixer.head_norm.norm.weight).flatten(1)
    if mixer.config.gate:
        gate = inputs @ mixer.gate_proj.weight.T
        outputs = outputs * gate * torch.sigmoid(gate)
    return outputs @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_quadratic_form(options):
    # Angles are those of float32, as tables of frequencies are.
    assert_is_the_loop(
        mixer_of(MemoryRetnetModel, **options), _loop, tolerance=1e-10 if "rope_theta" in options else 1e-5
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryRetnetConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryRetnetModel, config))


@pytest.mark.parametrize("options", [{}, {"conv_kernel": 2}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    mixer = mixer_of(MemoryRetnetModel, hidden_size=4, **options)
    assert_spectrum(mixer, torch.randn(1, 3, 4, dtype=torch.float64))


def test_heads_forget_at_the_published_rates():
    mixer = mixer_of(MemoryRetnetModel, num_heads=4)
    spectrum = mixer.transition_spectrum(torch.randn(1, 1, 8, dtype=torch.float64))
    assert spectrum.flatten().tolist() == pytest.approx([1 - 2.0**-5, 1 - 2.0**-8], rel=1e-12)


def test_a_shift_of_all_positions_changes_nothing():
    mixer = mixer_of(MemoryRetnetModel)
    inputs, positions = torch.randn(2, 9, 8, dtype=torch.float64), torch.arange(9).expand(2, -1)
    close(mixer(inputs, position_ids=positions + 100)[0], mixer(inputs, position_ids=positions)[0], 1e-5)


def test_the_state_is_counted():
    assert mixer_of(MemoryRetnetModel, conv_kernel=4).state_size() == 2 * 4 * 8 + 3 * 4 * 8


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"expand": 0}, "expand must be at least 1"),
        ({"rope_theta": -1.0}, "rope_theta must be at least 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryRetnetConfig(vocab_size=5, hidden_size=8, **fields)
