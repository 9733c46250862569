"""Hyena against direct sums over the past, its filters, and its limit."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.hyena import MemoryHyenaConfig, MemoryHyenaForCausalLM, MemoryHyenaModel
from hf_memory.ops.implicit_filter import implicit_filter
from tests.mixers.option_checks import assert_laws, assert_the_filter_stays_in_float32, close, randomised

ORDERS = pytest.mark.parametrize("order", [2, 3])


def _config(**fields):
    defaults = {"hidden_size": 6, "initializer_range": 0.4, "max_position_embeddings": 20, "filter_size": 8}
    return MemoryHyenaConfig(vocab_size=5, **{**defaults, **fields})


def _filters(mixer):
    """Taps of every filter ((O - 1) * D, L), position by position."""
    config, columns = mixer.config, []
    longest, width = config.max_position_embeddings, (config.order - 1) * config.hidden_size
    delta = torch.linspace(math.log(100) / 1.5, math.log(100) / 0.3, width, dtype=torch.float64)
    for i in range(longest):
        bands = (config.filter_features - 1) // 2
        angles = 2 * math.pi * i / longest * torch.linspace(1e-4, bands - 1, bands, dtype=torch.float64)
        hidden = torch.cat([torch.tensor([i / (longest - 1)], dtype=torch.float64), angles.cos(), -angles.sin()])
        for linear in mixer.filter_mlp[:-1]:
            hidden = torch.sin(mixer.filter_frequency * linear(hidden))
        columns.append(mixer.filter_mlp[-1](hidden) * torch.exp(-delta * i / (longest - 1)))
    return torch.stack(columns, dim=1)


def _direct(mixer, u):
    """The equations with every convolution written as a sum."""
    config, time = mixer.config, u.shape[1]
    projected = torch.nn.functional.pad(mixer.in_proj(u), (0, 0, 2, 0))
    mixed = sum(projected[:, i : i + time] * mixer.conv.weight[:, i] for i in range(3)) + mixer.conv.bias
    *gates, z = mixed.chunk(config.order + 1, dim=-1)
    for i, taps in enumerate(_filters(mixer).chunk(config.order - 1)):
        x = gates[i] * z
        sums = [(x[:, : t + 1].flip(1) * taps[:, : t + 1].T).sum(1) for t in range(time)]
        z = torch.stack(sums, dim=1) + mixer.filter_bias[i] * x
    return mixer.out_proj(gates[-1] * z)


@ORDERS
@pytest.mark.parametrize("time", [1, 7, 20])
def test_outputs_and_gradients_equal_direct_sums(order, time):
    mixer = randomised(MemoryHyenaModel, _config(order=order)).layers[1].mixer
    u = torch.randn(2, time, 6, dtype=torch.float64)
    gradients = []
    for outputs in (mixer(u)[0], _direct(mixer, u)):
        gradients.append((outputs, *torch.autograd.grad(outputs.cos().sum(), list(mixer.parameters()))))
    for actual, expected in zip(*gradients, strict=True):
        close(actual, expected, 1e-9)


@ORDERS
def test_every_order_keeps_the_laws_of_the_state_up_to_the_last_position(order):
    model = randomised(MemoryHyenaModel, _config(order=order, max_position_embeddings=11, conv_kernel=4))
    assert_laws(model)


def test_a_row_that_grows_past_the_filter_is_refused_however_it_comes():
    model = randomised(MemoryHyenaModel, _config(max_position_embeddings=8))
    ids = torch.randint(0, 5, (2, 9))
    full = model(ids[:, :8], use_cache=True).cache
    calls = [lambda: model(ids), lambda: model(ids[:, :1], cache=full)]
    for call in calls:
        with pytest.raises(ValueError, match=r"^max_position_embeddings=8 .* 9 tokens"):
            call()


def test_padding_does_not_count_towards_the_limit():
    model = randomised(MemoryHyenaModel, _config(max_position_embeddings=8))
    embeds, mask = torch.randn(1, 12, 6, dtype=torch.float64), torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0]])
    outputs = model(inputs_embeds=embeds, attention_mask=mask, use_cache=True)
    real = embeds[:, mask[0].bool()]
    more = torch.randn(1, 2, 6, dtype=torch.float64)
    expected = model(inputs_embeds=torch.cat([real, more], dim=1)).last_hidden_state
    close(outputs.last_hidden_state[:, mask[0].bool()], expected[:, :6])
    close(model(inputs_embeds=more, cache=outputs.cache).last_hidden_state, expected[:, 6:])
    with pytest.raises(ValueError, match="max_position_embeddings"):
        model(inputs_embeds=torch.cat([more, more[:, :1]], dim=1), cache=outputs.cache)


def test_the_filter_belongs_to_its_length():
    torch.manual_seed(0)
    short = randomised(MemoryHyenaModel, _config(max_position_embeddings=20)).layers[0].mixer
    torch.manual_seed(0)
    long = randomised(MemoryHyenaModel, _config(max_position_embeddings=40)).layers[0].mixer
    u = torch.randn(1, 10, 6, dtype=torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(short.parameters(), long.parameters(), strict=True))
    assert (short(u)[0] - long(u)[0]).abs().max() > 1e-3


def test_the_filter_stays_in_float32_when_the_rest_is_rounded(tmp_path):
    config = _config(hidden_size=64, filter_size=64, max_position_embeddings=128, initializer_range=0.02)
    assert_the_filter_stays_in_float32(MemoryHyenaForCausalLM, config, tmp_path)


def test_features_and_frequency_of_the_filter_are_those_of_the_config():
    published = {"filter_features": 3, "filter_frequency": 1.0, "filter_size": 64}  # Arora et al. (2023), for MQAR
    mixer = randomised(MemoryHyenaModel, _config(**published)).layers[0].mixer
    assert mixer.filter_mlp[0].weight.shape == (64, 3)
    assert (MemoryHyenaModel(_config(**published)).layers[0].mixer.filter_frequency == 1).all()
    u = torch.randn(2, 9, 6, dtype=torch.float64)
    close(mixer(u)[0], _direct(mixer, u), 1e-9)


def test_a_filter_built_for_far_longer_rows_starts_almost_flat():
    ranks = []
    for longest in (256, 2048):
        torch.manual_seed(0)
        mixer = (
            MemoryHyenaModel(_config(hidden_size=256, filter_size=64, max_position_embeddings=longest)).layers[0].mixer
        )
        taps = implicit_filter(32, longest, 5, mixer.filter_mlp, mixer.filter_frequency).detach()
        values = torch.linalg.svdvals(taps)
        share = values / values.sum()
        ranks.append(float(torch.exp(-(share * share.log()).sum())))  # effective rank of what 32 tokens see
    assert ranks[0] > 20
    assert ranks[1] < 6


def test_the_size_of_the_state_needs_a_length_and_ends_with_the_filter():
    model = MemoryHyenaModel(_config(num_hidden_layers=1, order=3))
    assert [model.state_size(length) for length in (0, 5, 100)] == [2 * 24, 2 * 24 + 60, 2 * 24 + 2 * 19 * 6]
    with pytest.raises(ValueError, match=r"^length"):
        model.state_size()


def test_initial_values_follow_their_laws_after_construction_and_loading(tmp_path):
    model = MemoryHyenaForCausalLM(_config(hidden_size=256, filter_size=128))
    model.save_pretrained(tmp_path)
    loaded = MemoryHyenaForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    for layer in loaded.model.requires_grad_(False).layers:
        mixer = layer.mixer
        assert (mixer.filter_frequency == 10).all()
        assert abs(mixer.filter_bias.std() - 1) < 0.2
        for linear in mixer.filter_mlp:
            bound = linear.in_features**-0.5
            assert 0.95 * bound < linear.weight.abs().max() <= bound
            assert linear.bias is None or 0.8 * bound < linear.bias.abs().max() <= bound
        assert abs(mixer.in_proj.weight.std() / 0.4 - 1) < 0.05


def test_documented_groups_train_the_filter_slowly_and_without_decay():
    model = MemoryHyenaModel(_config())
    slow = [group for group in model.optim_groups(1e-2, 0.1) if group["lr"] == 1e-3]
    found = {id(parameter) for group in slow for parameter in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in found}
    assert names == {
        name for name, _ in model.named_parameters() if "filter_mlp" in name or name.endswith("filter_frequency")
    }
    assert len(names) == 2 * 8
    assert {group["weight_decay"] for group in slow} == {0.0}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("order", 1), ("conv_kernel", 0), ("filter_size", 0)],
        *[("filter_layers", -1), ("filter_features", 4), ("filter_features", 1)],
    ],
)
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(StrictDataclassError, match=f"{field} must be"):
        _config(**{field: value})
