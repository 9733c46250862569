"""Linear transformer: the quadratic form of its paper, its switches, its state."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from hf_memory.mixers.linear_transformer import MemoryLinearTransformerConfig, MemoryLinearTransformerModel
from tests.mixers.option_checks import assert_adds_up, assert_equals_definition, assert_spectrum, randomised


def _mixer(**fields):
    config = MemoryLinearTransformerConfig(
        vocab_size=5, hidden_size=8, num_hidden_layers=1, initializer_range=0.3, **fields
    )
    return MemoryLinearTransformerModel(config).layers[0].mixer.double()


def _quadratic(mixer, inputs):
    """Attention with the weights phi(q) . phi(k), all pairs of positions at once."""
    projected = inputs @ mixer.qkv_proj.weight.T
    if mixer.conv is not None:
        kernel = mixer.conv.kernel_size
        padded = F.pad(projected, (0, 0, kernel - 1, 0))
        taps = [padded[:, i : i + inputs.shape[1]] * mixer.conv.weight[:, i] for i in range(kernel)]
        projected = F.silu(sum(taps))
    query, key, value = projected.view(*inputs.shape[:2], 3, 2, 4).unbind(2)
    query, key = (torch.where(x > 0, x + 1, x.exp()) for x in (query, key))
    weights = torch.einsum("bthk,bshk->bhts", query, key).tril()
    if mixer.config.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + mixer.config.normalizer_eps)
    output = torch.einsum("bhts,bshv->bthv", weights, value).flatten(2)
    if mixer.gate_proj is not None:
        gate = inputs @ mixer.gate_proj.weight.T
        output = output * gate / (1 + torch.exp(-gate))
    return output @ mixer.out_proj.weight.T


@pytest.mark.parametrize(
    "fields", [{}, {"normalize": False}, {"gate": True}, {"conv_kernel": 3}, {"normalizer_eps": 0.5, "conv_kernel": 1}]
)
def test_outputs_and_gradients_equal_quadratic_attention(fields):
    mixer = _mixer(**fields)
    inputs = torch.randn(2, 70, 8, dtype=torch.float64)
    assert_equals_definition(mixer, _quadratic, inputs)


def test_the_normaliser_makes_outputs_averages_of_the_values():
    mixer = _mixer(normalizer_eps=0.0)
    torch.nn.init.eye_(mixer.out_proj.weight)
    inputs = torch.randn(1, 30, 8, dtype=torch.float64)
    values = (inputs @ mixer.qkv_proj.weight.T)[..., 16:]
    outputs, _ = mixer(inputs)
    torch.testing.assert_close(outputs[:, 0], values[:, 0], rtol=1e-10, atol=1e-10)
    assert (outputs <= values.cummax(1).values + 1e-12).all()
    assert (outputs >= values.cummin(1).values - 1e-12).all()


@pytest.mark.parametrize(
    "fields, size",
    [({}, 2 * 4 * 5), ({"normalize": False}, 2 * 4 * 4), ({"conv_kernel": 4}, 40 + 3 * 24), ({"num_heads": 1}, 72)],
)
def test_state_size_counts_memory_normaliser_and_convolution(fields, size):
    assert _mixer(**fields).state_size() == size


def test_the_spectrum_is_one_since_the_state_only_adds_up():
    assert_adds_up(_mixer(), torch.randn(1, 1, 8, dtype=torch.float64))


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads"),
        ({"conv_kernel": -1}, "conv_kernel"),
        ({"normalizer_eps": -1.0}, "normalizer_eps"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryLinearTransformerConfig(vocab_size=5, hidden_size=8, **fields)


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_spectrum_counts_the_zeros_of_a_convolution(kernel):
    fields = {"hidden_size": 4, "conv_kernel": kernel, "initializer_range": 0.9, "num_heads": 2}
    mixer = (
        randomised(MemoryLinearTransformerModel, MemoryLinearTransformerConfig(vocab_size=5, **fields)).layers[0].mixer
    )
    assert_spectrum(mixer, torch.randn(1, 4, 4, dtype=torch.float64))
