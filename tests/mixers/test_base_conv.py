"""BaseConv against direct sums, with short and long filters."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.base_conv import MemoryBaseConvConfig, MemoryBaseConvForCausalLM, MemoryBaseConvModel
from hf_memory.models.configuration import unchanged_later_fields
from hf_memory.ops.implicit_filter import implicit_filter
from tests.mixers.option_checks import (
    assert_laws,
    assert_spectrum,
    assert_the_filter_stays_in_float32,
    close,
    randomised,
)

BASED = {"expand": 2, "conv_activation": "silu", "skip": False}
OPTIONS = [
    {},
    {"conv_kernel": 1},
    {"conv_kernel": 5, "skip": False},
    {"conv_kernel": 0},
    BASED,
    {"conv_kernel": 0, "expand": 3, "conv_activation": "silu"},
]


def _config(**fields):
    defaults = {"hidden_size": 6, "initializer_range": 0.4, "max_position_embeddings": 11}
    return MemoryBaseConvConfig(vocab_size=5, **{**defaults, **fields})


def _taps(mixer):
    """Taps of the filter (D, W), the current input first, and what is added to each sum."""
    if mixer.conv is not None:
        return mixer.conv.weight.flip(1), mixer.conv.bias
    taps = implicit_filter(11, 11, 3, mixer.filter_mlp, mixer.filter_frequency)
    return torch.cat([taps[:, :1] + 1, taps[:, 1:]], dim=1), 0


def _direct(mixer, u):
    """The equations with the convolution written as a sum."""
    config, x = mixer.config, u
    if config.expand:
        x = u @ mixer.in_proj.weight.T + mixer.in_proj.bias
    taps, constant = _taps(mixer)
    sums = [
        sum(taps[:, i] * x[:, t - i] for i in range(min(t + 1, taps.shape[1]))) + constant for t in range(u.shape[1])
    ]
    convolved = torch.stack(sums, dim=1)
    if config.conv_activation == "silu":
        convolved = convolved * convolved.sigmoid()
    output = convolved * (u @ mixer.gate_proj.weight.T + mixer.gate_proj.bias)
    if config.expand:
        output = output @ mixer.out_proj.weight.T + mixer.out_proj.bias
    return output + u if config.skip else output


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("time", [1, 9])
def test_outputs_and_gradients_equal_direct_sums(options, time):
    mixer = randomised(MemoryBaseConvModel, _config(**options)).layers[1].mixer
    u = torch.randn(2, time, 6, dtype=torch.float64)
    gradients = []
    for outputs in (mixer(u)[0], _direct(mixer, u)):
        gradients.append((outputs, *torch.autograd.grad(outputs.cos().sum(), list(mixer.parameters()))))
    for actual, expected in zip(*gradients, strict=True):
        close(actual, expected, 1e-10)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    assert_laws(randomised(MemoryBaseConvModel, _config(**options)))


def test_a_short_filter_has_a_fixed_state_and_no_limit():
    model = randomised(MemoryBaseConvModel, _config(num_hidden_layers=1, conv_kernel=3))
    assert model(torch.randint(0, 5, (1, 40))).last_hidden_state.isfinite().all()
    assert [model.state_size(length) for length in (None, 1, 100)] == [12, 12, 12]
    assert not model.layers[0].mixer.growing_state
    assert_spectrum(model.layers[0].mixer, torch.randn(1, 3, 6, dtype=torch.float64))


def test_a_long_filter_has_a_growing_state_and_a_limit():
    model = randomised(MemoryBaseConvModel, _config(num_hidden_layers=1, conv_kernel=0))
    ids = torch.randint(0, 5, (2, 12))
    cache = model(ids[:, :11], use_cache=True).cache
    for call in (lambda: model(ids), lambda: model(ids[:, :1], cache=cache)):
        with pytest.raises(ValueError, match=r"^max_position_embeddings=11 .* 12 tokens"):
            call()
    assert [model.state_size(length) for length in (1, 10, 100)] == [6, 60, 60]
    with pytest.raises(ValueError, match=r"^length"):
        model.state_size()
    assert model.layers[0].mixer.growing_state
    assert model.layers[0].mixer.transition_spectrum(torch.randn(1, 3, 6)) is None


def test_initial_values_of_a_long_filter_follow_their_laws_after_loading(tmp_path):
    model = MemoryBaseConvForCausalLM(_config(conv_kernel=0, hidden_size=128, filter_size=64))
    model.save_pretrained(tmp_path)
    loaded = MemoryBaseConvForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    for layer in loaded.model.requires_grad_(False).layers:
        mixer = layer.mixer
        assert (mixer.filter_frequency == 1).all()
        for linear in mixer.filter_mlp:
            bound = linear.in_features**-0.5
            assert 0.95 * bound < linear.weight.abs().max() <= bound


def test_a_long_filter_stays_in_float32_when_the_rest_is_rounded(tmp_path):
    config = _config(conv_kernel=0, hidden_size=64, max_position_embeddings=128, initializer_range=0.02)
    assert_the_filter_stays_in_float32(MemoryBaseConvForCausalLM, config, tmp_path)


def test_a_long_filter_is_trained_at_the_rate_of_the_rest_and_without_decay():
    model = MemoryBaseConvModel(_config(conv_kernel=0))
    groups = model.optim_groups(1e-2, 0.1)
    assert {group["lr"] for group in groups} == {1e-2}
    still = {id(parameter) for group in groups if not group["weight_decay"] for parameter in group["params"]}
    filters = [parameter for name, parameter in model.named_parameters() if ".filter_" in name]
    assert len(filters) == 2 * 8
    assert all(id(parameter) in still for parameter in filters)


def test_fields_that_joined_later_leave_the_published_layer_and_its_digest_as_they_were():
    assert unchanged_later_fields(_config()) == {"expand", "conv_activation"}
    assert unchanged_later_fields(_config(**BASED)) == set()
    names = {name for name, _ in MemoryBaseConvModel(_config(num_hidden_layers=1)).layers[0].mixer.named_parameters()}
    assert names == {"gate_proj.weight", "gate_proj.bias", "conv.weight", "conv.bias"}


def test_an_expanded_layer_has_wider_state_and_writes_to_the_residual_stream():
    model = MemoryBaseConvModel(_config(**BASED, num_hidden_layers=1))
    assert model.state_size() == 2 * 12
    long = MemoryBaseConvModel(_config(**BASED, conv_kernel=0, num_hidden_layers=1))
    assert [long.state_size(length) for length in (3, 100)] == [3 * 12, 10 * 12]
    torch.manual_seed(0)
    wide = MemoryBaseConvModel(_config(**BASED, hidden_size=256)).layers[0].mixer
    assert abs(wide.out_proj.weight.std() / (0.4 / 2) - 1) < 0.02  # two layers: 1 / sqrt(4)
    assert abs(wide.in_proj.weight.std() / 0.4 - 1) < 0.02


@pytest.mark.parametrize(
    ("field", "value"),
    [("conv_kernel", -1), ("expand", -1), ("filter_size", 0), ("filter_layers", -1), ("filter_features", 2)],
)
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(StrictDataclassError, match=f"{field} must be"):
        _config(**{field: value})
