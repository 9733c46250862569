"""Mamba against transformers, against a loop over its equations, and its initial values."""

import inspect
import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F
from transformers import MambaConfig, MambaModel

from hf_memory.experiments.provenance import config_digest
from hf_memory.mixers.mamba import MambaMixer, MemoryMambaConfig, MemoryMambaForCausalLM, MemoryMambaModel
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [
    {},
    {"negative_eigenvalues": True},
    {"conv_kernel": 0},
    {"gate": False},
    {"output_norm": True},
    {"selective": False},
    {"selective": False, "conv_kernel": 0, "gate": False},
    {"conv_bias": False, "expand": 1, "time_step_rank": 3},
]


@pytest.fixture
def pair():
    """A model of transformers and ours with the same weights."""
    torch.manual_seed(0)
    theirs = MambaModel(MambaConfig(vocab_size=11, hidden_size=16, state_size=4, num_hidden_layers=2)).eval()
    ours = MemoryMambaModel(MemoryMambaConfig(vocab_size=11, hidden_size=16, state_size=4)).eval()
    return theirs, ours, _copy_weights(theirs, ours)


def _copy_weights(theirs, ours):
    """Copy, and return the pairs of parameters: (theirs, ours)."""
    pairs = [(theirs.embeddings.weight, ours.embed_tokens.weight), (theirs.norm_f.weight, ours.norm.weight)]
    for block, layer in zip(theirs.layers, ours.layers, strict=True):
        mixer, own = block.mixer, layer.mixer
        pairs += [(block.norm.weight, layer.norm.weight)]
        pairs += [(getattr(mixer, name), getattr(own, name)) for name in ("A_log", "D")]
        pairs += [
            (getattr(mixer, name).weight, getattr(own, name).weight)
            for name in ("in_proj", "x_proj", "dt_proj", "out_proj")
        ]
        pairs += [(mixer.dt_proj.bias, own.dt_bias), (mixer.conv1d.weight, own.conv.weight)]
        pairs += [(mixer.conv1d.bias, own.conv.bias)]
    with torch.no_grad():
        for source, target in pairs:
            source.add_(0.2 * torch.randn_like(source))
            target.copy_(source.view_as(target))
    assert {id(target) for _, target in pairs} == {id(parameter) for parameter in ours.parameters()}
    return pairs


def test_outputs_and_every_gradient_equal_those_of_transformers(pair):
    theirs, ours, parameters = pair
    ids = torch.randint(0, 11, (2, 9))
    expected, actual = theirs(ids).last_hidden_state, ours(ids).last_hidden_state
    close(actual, expected, 1e-5)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (actual * weight).sum().backward()
    for source, target in parameters:
        close(target.grad / source.grad.abs().max(), source.grad.view_as(target) / source.grad.abs().max(), 2e-5)


def test_single_steps_equal_those_of_transformers(pair):
    theirs, ours, _ = pair
    ids, cache, own_cache = torch.randint(0, 11, (2, 6)), None, None
    # Earlier versions of transformers name the argument, and the field of the output, differently.
    name = "cache" if "cache" in inspect.signature(theirs.forward).parameters else "cache_params"
    for column in ids.split(1, dim=1):
        expected = theirs(column, use_cache=True, **{name: cache})
        actual = ours(column, cache=own_cache, use_cache=True)
        cache, own_cache = expected[name], actual.cache
        close(actual.last_hidden_state, expected.last_hidden_state, 1e-5)


def test_many_tokens_after_a_cache_equal_one_pass_of_transformers(pair):
    theirs, ours, _ = pair
    ids = torch.randint(0, 11, (2, 12))
    cache = ours(ids[:, :5], use_cache=True).cache
    close(ours(ids[:, 5:], cache=cache).last_hidden_state, theirs(ids).last_hidden_state[:, 5:], 1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_equals_a_loop_over_the_equations(options):
    config = MemoryMambaConfig(vocab_size=5, hidden_size=8, state_size=3, initializer_range=0.4, **options)
    mixer = randomised(MemoryMambaModel, config).layers[0].mixer
    u = torch.randn(2, 7, 8, dtype=torch.float64)
    outputs, state = mixer(u)
    inner, history = config.expand * 8, [torch.zeros(2, config.expand * 8, dtype=torch.float64)] * 3
    h = torch.zeros(2, inner, 3, dtype=torch.float64)
    for t in range(7):
        projected = u[:, t] @ mixer.in_proj.weight.T
        x, z = projected[:, :inner], projected[:, inner:]
        if config.conv_kernel:
            history = [*history[-3:], x]
            x = sum(mixer.conv.weight[:, i] * history[i] for i in range(4))
            x = x + mixer.conv.bias if config.conv_bias else x
        x = x * torch.sigmoid(x)
        if config.selective:
            r, B, C = (x @ mixer.x_proj.weight.T).split([mixer.rank, 3, 3], dim=1)
            dt = torch.log1p(torch.exp(r @ mixer.dt_proj.weight.T + mixer.dt_bias))
        else:
            B, C = mixer.B.expand(2, 3), mixer.C.expand(2, 3)
            dt = torch.log1p(torch.exp(mixer.dt_bias)).expand_as(x)
        a = torch.exp(-dt.unsqueeze(-1) * torch.exp(mixer.A_log))
        a = 2 * a - 1 if config.negative_eigenvalues else a
        h = a * h + (dt * x).unsqueeze(-1) * B.unsqueeze(1)
        y = (h * C.unsqueeze(1)).sum(-1) + mixer.D * x
        y = y * z * torch.sigmoid(z) if config.gate else y
        if config.output_norm:
            y = y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * mixer.out_norm.weight
        close(outputs[:, t], y @ mixer.out_proj.weight.T, 1e-12)
    close(state["ssm"], h, 1e-12)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryMambaConfig(vocab_size=5, hidden_size=8, state_size=3, initializer_range=0.4, **options)
    assert_laws(randomised(MemoryMambaModel, config))


@pytest.mark.parametrize("options", OPTIONS)
def test_the_spectrum_is_that_of_the_jacobian(options):
    config = MemoryMambaConfig(vocab_size=5, hidden_size=4, expand=1, state_size=3, initializer_range=0.9)
    for name, value in options.items():
        setattr(config, name, value)
    mixer = randomised(MemoryMambaModel, config).layers[0].mixer
    assert_spectrum(mixer, 3 * torch.randn(1, 4, 4, dtype=torch.float64))


def test_negative_eigenvalues_reach_below_zero_and_positive_ones_do_not():
    lows = []
    for negative in (False, True):
        config = MemoryMambaConfig(vocab_size=5, hidden_size=8, conv_kernel=0, negative_eigenvalues=negative)
        mixer = MemoryMambaModel(config).layers[0].mixer
        with torch.no_grad():
            mixer.dt_bias.fill_(2.0)
        spectrum = mixer.transition_spectrum(torch.randn(2, 5, 8))
        assert spectrum.max() <= 1
        lows.append(spectrum.min().item())
    assert lows[0] >= 0
    assert -1 <= lows[1] < -0.99


def _assert_initial_law(mixer: MambaMixer):
    torch.testing.assert_close(mixer.A_log.exp(), torch.arange(1.0, 17).expand(512, 16))
    assert (mixer.D == 1).all()
    steps = F.softplus(mixer.dt_bias)
    assert steps.min() >= 0.001 * 0.999
    assert steps.max() <= 0.1 * 1.001
    quantiles = steps.log().quantile(torch.tensor([0.25, 0.5, 0.75]))
    expected = math.log(0.001) + math.log(100) * torch.tensor([0.25, 0.5, 0.75])
    torch.testing.assert_close(quantiles, expected, atol=0.5, rtol=0)
    bound = mixer.rank**-0.5
    assert bound * 0.98 < mixer.dt_proj.weight.abs().max() <= bound
    assert abs(mixer.dt_proj.weight.std() / (bound / 3**0.5) - 1) < 0.05
    assert {getattr(mixer, name).dtype for name in mixer.fp32_parameters} == {torch.float32}


def test_initial_values_follow_their_laws_after_construction_and_loading(tmp_path):
    model = MemoryMambaForCausalLM(MemoryMambaConfig(vocab_size=5, hidden_size=256))
    model.save_pretrained(tmp_path)
    loaded = MemoryMambaForCausalLM.from_pretrained(tmp_path)
    for layer, other in zip(model.model.layers, loaded.model.layers, strict=True):
        _assert_initial_law(layer.mixer)
        assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), other.parameters(), strict=True))


def test_without_selection_the_state_space_is_the_same_at_all_inputs():
    config = MemoryMambaConfig(vocab_size=5, hidden_size=8, conv_kernel=0, gate=False, selective=False)
    mixer = MemoryMambaModel(config).layers[0].mixer.double()
    assert {"x_proj", "dt_proj"} & {name.partition(".")[0] for name, _ in mixer.named_parameters()} == set()
    assert (mixer.B == 1).all()
    # Linear in what the activation lets through: responses to two inputs at different times add up.
    mixer.in_proj = torch.nn.Identity()
    x, y = torch.zeros(2, 1, 6, 16, dtype=torch.float64)
    x[:, 1], y[:, 3] = torch.randn(16), torch.randn(16)
    close(mixer(x + y)[0], mixer(x)[0] + mixer(y)[0], 1e-12)


def test_a_config_from_before_the_switch_has_the_digest_it_had():
    config = MemoryMambaConfig(vocab_size=5, hidden_size=8)
    assert config_digest(config) == "c81f1dd209e85db3"
    assert config_digest(config) != config_digest(MemoryMambaConfig(vocab_size=5, hidden_size=8, selective=False))


def test_decays_stay_in_float32_when_loaded_in_bfloat16(tmp_path):
    MemoryMambaForCausalLM(MemoryMambaConfig(vocab_size=5, hidden_size=8)).save_pretrained(tmp_path)
    mixer = MemoryMambaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).model.layers[0].mixer
    assert {mixer.A_log.dtype, mixer.D.dtype, mixer.dt_bias.dtype} == {torch.float32}
    assert mixer.in_proj.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("state_size", 0), ("expand", 0), ("conv_kernel", -1), ("time_step_rank", -1)],
        *[("time_step_min", 0.0), ("time_step_min", 0.2), ("time_step_floor", 0.0)],
    ],
)
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(StrictDataclassError, match=f"{field} must be"):
        MemoryMambaModel(MemoryMambaConfig(vocab_size=5, hidden_size=8, **{field: value}))
