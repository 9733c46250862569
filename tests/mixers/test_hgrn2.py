"""HGRN2 against its equations, and the law of its lower bounds."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.hgrn2 import MemoryHGRN2Config, MemoryHGRN2Model
from tests.mixers.memory_checks import assert_is_the_loop, convolved, normed
from tests.mixers.option_checks import assert_laws, assert_spectrum, randomised

OPTIONS = [{}, {"num_heads": 4, "lower_bounds": False}, {"conv_kernel": 3, "gate": True}]


def _mixer(layer=1, **fields):
    fields = {"hidden_size": 8, "initializer_range": 0.3, "num_hidden_layers": 2, **fields}
    return randomised(MemoryHGRN2Model, MemoryHGRN2Config(vocab_size=5, **fields)).layers[layer].mixer


def _loop(mixer, inputs):
    """The equations for one row, head by head."""
    heads, K, _ = mixer.memory_shape
    projected = inputs @ mixer.qkv_proj.weight.T
    projected = projected if mixer.conv is None else convolved(mixer.conv, projected)
    query, forget, value = projected.chunk(3, dim=-1)
    query = query * torch.sigmoid(query)
    low = 0 if mixer.bound is None else torch.sigmoid(mixer.bound)
    decay = low + (1 - low) * torch.sigmoid(forget)
    query, decay, value = (part.reshape(len(inputs), heads, K) for part in (query, decay, value))
    outputs, states = [], []
    for head in range(heads):
        state, read = inputs.new_zeros(K, K), []
        for t in range(len(inputs)):
            state = torch.diag(decay[t, head]) @ state + torch.outer(1 - decay[t, head], value[t, head])
            read.append(state.T @ query[t, head] / math.sqrt(K))
        outputs.append(torch.stack(read))
        states.append(state)
    outputs = normed(torch.stack(outputs, dim=1).flatten(1), mixer.norm.weight)
    if mixer.config.gate:
        gate = inputs @ mixer.gate_proj.weight.T
        outputs = outputs * gate * torch.sigmoid(gate)
    return outputs @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options, layer):
    assert_is_the_loop(_mixer(layer, **options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryHGRN2Config(vocab_size=5, hidden_size=8, **options)
    assert_laws(randomised(MemoryHGRN2Model, config))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("options", [{}, {"conv_kernel": 2}])
def test_the_spectrum_is_that_of_the_jacobian(options, layer):
    mixer = _mixer(layer, hidden_size=4, initializer_range=0.9, **options)
    assert_spectrum(mixer, torch.randn(1, 3, 4, dtype=torch.float64))


def test_lower_bounds_rise_with_the_depth_after_from_config_and_bound_the_decays():
    config = MemoryHGRN2Config(vocab_size=5, hidden_size=8, num_hidden_layers=4, initializer_range=3.0)
    inputs = 5 * torch.randn(1, 200, 8)
    for layer, block in enumerate(MemoryHGRN2Model._from_config(config).layers):
        spectrum = block.mixer.transition_spectrum(inputs)
        assert spectrum.min().item() == pytest.approx(layer / 4, abs=0.02)
        assert spectrum.max().item() == pytest.approx(1, abs=1e-3)
        assert (block.mixer.bound is None) == (layer == 0)
        if layer:
            torch.testing.assert_close(torch.sigmoid(block.mixer.bound), torch.full((8,), layer / 4))
            assert block.mixer.bound.dtype == torch.float32


def test_gates_that_are_all_but_closed_or_open_have_finite_gradients():
    mixer = _mixer(0)
    inputs = torch.tensor([[[1e4] * 8, [-1e4] * 8, [0.0] * 8]], dtype=torch.float64, requires_grad=True)
    outputs, final = mixer(inputs)
    (outputs.sum() + final["memory"].sum()).backward()
    assert torch.isfinite(inputs.grad).all()


def test_the_state_is_counted():
    assert _mixer(num_heads=4).state_size() == 4 * 2 * 2
    assert _mixer(conv_kernel=4).state_size() == 2 * 4 * 4 + 3 * 24


@pytest.mark.parametrize(
    "fields, name",
    [({"num_heads": 3}, "num_heads must divide"), ({"conv_kernel": -1}, "conv_kernel must be at least 0")],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryHGRN2Config(vocab_size=5, hidden_size=8, **fields)
