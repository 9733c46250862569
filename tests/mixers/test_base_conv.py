"""BaseConv against direct sums, with short and long filters."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.base_conv import MemoryBaseConvConfig, MemoryBaseConvForCausalLM, MemoryBaseConvModel
from hf_memory.ops.implicit_filter import implicit_filter
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [{}, {"conv_kernel": 1}, {"conv_kernel": 5, "skip": False}, {"conv_kernel": 0}]


def _config(**fields):
    defaults = {"hidden_size": 6, "initializer_range": 0.4, "max_position_embeddings": 11}
    return MemoryBaseConvConfig(vocab_size=5, **{**defaults, **fields})


def _taps(mixer):
    """Taps of the filter (D, W), the current input first, and what is added to each sum."""
    if mixer.conv is not None:
        return mixer.conv.weight.flip(1), mixer.conv.bias
    weights = [linear.weight for linear in mixer.filter_mlp]
    biases = [linear.bias for linear in mixer.filter_mlp[:-1]]
    taps = implicit_filter(11, 11, weights, biases, mixer.filter_frequency)
    first = torch.cat([mixer.filter_bias.unsqueeze(1), torch.zeros(6, 10, dtype=torch.float64)], dim=1)
    return taps + first, 0


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("time", [1, 9])
def test_outputs_and_gradients_equal_direct_sums(options, time):
    mixer = randomised(MemoryBaseConvModel, _config(**options)).layers[1].mixer
    u = torch.randn(2, time, 6, dtype=torch.float64)

    def direct():
        taps, constant = _taps(mixer)
        convolved = torch.stack(
            [sum(taps[:, i] * u[:, t - i] for i in range(min(t + 1, taps.shape[1]))) + constant for t in range(time)],
            dim=1,
        )
        product = convolved * (u @ mixer.gate_proj.weight.T + mixer.gate_proj.bias)
        return product + u if mixer.config.skip else product

    gradients = []
    for outputs in (mixer(u)[0], direct()):
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
        assert (mixer.filter_bias == 1).all()
        for linear in mixer.filter_mlp:
            bound = linear.in_features**-0.5
            assert 0.95 * bound < linear.weight.abs().max() <= bound


def test_documented_groups_train_a_long_filter_slowly():
    for kernel, count in ((3, 0), (0, 2 * 8)):
        groups = MemoryBaseConvModel(_config(conv_kernel=kernel)).optim_groups(1e-2, 0.1)
        slow = [group for group in groups if group["lr"] == 1e-3]
        assert sum(len(group["params"]) for group in slow) == count
        assert all(group["weight_decay"] == 0 for group in slow)


@pytest.mark.parametrize(
    ("field", "value"), [("conv_kernel", -1), ("filter_size", 0), ("filter_layers", -1), ("filter_features", 2)]
)
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(StrictDataclassError, match=f"{field} must be"):
        _config(**{field: value})
