"""The Taylor layer of Based: the quadratic form of its paper, its switches, its state."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.based import MemoryBasedConfig, MemoryBasedModel
from tests.mixers.option_checks import assert_adds_up, assert_equals_definition, assert_spectrum, randomised


def _mixer(**fields):
    fields = {"feature_dim": 3, "num_heads": 2, **fields}
    config = MemoryBasedConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, initializer_range=0.5, **fields)
    return MemoryBasedModel(config).layers[0].mixer.double()


def _quadratic(mixer, inputs):
    """Attention with the weights 1 + x + x^2 / 2, all pairs of positions at once."""
    size, heads = mixer.config.feature_dim, mixer.config.num_heads
    projected = inputs @ mixer.qkv_proj.weight.T
    query, key = (
        projected[..., i * heads * size : (i + 1) * heads * size].unflatten(-1, (heads, size)) for i in (0, 1)
    )
    value = projected[..., 2 * heads * size :].unflatten(-1, (heads, -1))
    x = torch.einsum("bthf,bshf->bhts", query, key) / size**0.5
    weights = (1 + x + x**2 / 2).tril()
    if mixer.config.normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    output = torch.einsum("bhts,bshv->bthv", weights, value).flatten(2)
    if mixer.gate_proj is not None:
        gate = inputs @ mixer.gate_proj.weight.T
        output = output * gate / (1 + torch.exp(-gate))
    return output @ mixer.out_proj.weight.T


@pytest.mark.parametrize(
    "fields", [{}, {"symmetric": False}, {"normalize": False}, {"gate": True}, {"num_heads": 1, "feature_dim": 5}]
)
def test_outputs_and_gradients_equal_quadratic_attention(fields):
    mixer = _mixer(**fields)
    inputs = torch.randn(2, 140, 8, dtype=torch.float64)
    assert_equals_definition(mixer, _quadratic, inputs)


def test_the_convolution_comes_before_the_split_into_heads():
    mixer, plain = _mixer(conv_kernel=2), _mixer()
    plain.load_state_dict({name: leaf for name, leaf in mixer.state_dict().items() if not name.startswith("conv")})
    inputs = torch.randn(1, 9, 8, dtype=torch.float64)
    mixed = mixer.conv(inputs @ mixer.qkv_proj.weight.T)[0]
    # With an identity in front, the plain layer sees what the convolution returns.
    expected = torch.nn.Linear(20, 20, bias=False, dtype=torch.float64)
    torch.nn.init.eye_(expected.weight)
    plain.qkv_proj = expected
    torch.testing.assert_close(mixer(inputs)[0], plain(mixed)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "fields, size",
    [
        ({}, 2 * (1 + 3 + 6) * (4 + 1)),
        ({"symmetric": False}, 2 * (1 + 3 + 9) * (4 + 1)),
        ({"normalize": False}, 2 * (1 + 3 + 6) * 4),
        ({"conv_kernel": 4}, 100 + 3 * (6 + 6 + 8)),
    ],
)
def test_state_size_counts_features_normaliser_and_convolution(fields, size):
    assert _mixer(**fields).state_size() == size


def test_the_spectrum_is_one_since_the_state_only_adds_up():
    assert_adds_up(_mixer(), torch.randn(1, 1, 8, dtype=torch.float64))


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads"),
        ({"feature_dim": 0}, "feature_dim must be at least 1"),
        ({"conv_kernel": -1}, "conv_kernel"),
        ({"normalizer_eps": -1.0}, "normalizer_eps"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryBasedConfig(vocab_size=5, hidden_size=8, **fields)


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_spectrum_counts_the_zeros_of_a_convolution(kernel):
    fields = {"hidden_size": 4, "conv_kernel": kernel, "initializer_range": 0.9, "num_heads": 1, "feature_dim": 2}
    mixer = randomised(MemoryBasedModel, MemoryBasedConfig(vocab_size=5, **fields)).layers[0].mixer
    assert_spectrum(mixer, torch.randn(1, 4, 4, dtype=torch.float64))
