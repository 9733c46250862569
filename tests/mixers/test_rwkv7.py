"""RWKV-7 against its equations, the range of its eigenvalues, and its initial values."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from hf_memory.mixers.rwkv7 import MemoryRWKV7Config, MemoryRWKV7Model
from tests.mixers.memory_checks import assert_is_the_loop, assert_uniform, mixer_of
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [{}, {"wide_rates": True, "num_heads": 4, "decay_rank": 2, "rate_rank": 3, "gate_rank": 4}]


def _low_rank(mixer, name, inputs, between=lambda x: x):
    down, up = (getattr(mixer, f"{name}_{way}").weight for way in ("down", "up"))
    return between(inputs @ down.T) @ up.T


def _loop(mixer, inputs):
    """The equations for one row, token by token and head by head, with the transition as a matrix."""
    heads, width = mixer.config.num_heads, inputs.shape[1]
    states, last, outputs = [inputs.new_zeros(width // heads, width // heads)] * heads, torch.zeros_like(inputs[0]), []
    for x in inputs:
        r, w, k, v, a, g = (x + (last - x) * mixer.mix[j] for j in range(6))
        last = x
        r, k, v = (m @ p.weight.T for m, p in ((r, mixer.receptance), (k, mixer.key), (v, mixer.value)))
        raw = _low_rank(mixer, "decay", w, torch.tanh) + mixer.decay_bias
        decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(raw))
        rate = torch.sigmoid(_low_rank(mixer, "rate", a) + mixer.rate_bias)
        removed, added = k * mixer.removal, k * (1 + (rate - 1) * mixer.addition)
        rate = rate * (1 + decay) if mixer.config.wide_rates else rate
        parts = (part.view(heads, -1) for part in (r, v, decay, rate, removed, added, mixer.bonus))
        read, direct = [], []
        for head, (q, u, d, s, c, n, b) in enumerate(zip(*parts, strict=True)):
            c = c / c.norm()
            transition = torch.diag(d) - torch.outer(s * c, c)
            states[head] = transition @ states[head] + torch.outer(n, u)
            read.append(states[head].T @ q)
            direct.append((q * n * b).sum() * u)
        normed = F.group_norm(torch.cat(read)[None], heads, mixer.head_norm.weight, mixer.head_norm.bias, eps=64e-5)[0]
        gate = _low_rank(mixer, "gate", g, torch.sigmoid)
        outputs.append(((normed + torch.cat(direct)) * gate) @ mixer.out_proj.weight.T)
    return torch.stack(outputs), torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(mixer_of(MemoryRWKV7Model, **options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryRWKV7Config(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryRWKV7Model, config))


@pytest.mark.parametrize("wide", [False, True])
def test_the_spectrum_is_that_of_the_jacobian(wide):
    # From the initial state on, as the spectrum is: a step depends on the input before it.
    mixer = mixer_of(MemoryRWKV7Model, hidden_size=4, wide_rates=wide)
    for _ in range(3):
        assert_spectrum(mixer, torch.randn(1, 1, 4, dtype=torch.float64))


@pytest.mark.parametrize("wide, least", [(False, math.exp(-math.exp(-0.5)) - 1), (True, -1.0)])
def test_eigenvalues_reach_their_bounds_and_not_beyond(wide, least):
    mixer = mixer_of(MemoryRWKV7Model, wide_rates=wide)
    with torch.no_grad():
        mixer.decay_bias.fill_(20.0)
        mixer.rate_bias.fill_(20.0)
    spectrum = mixer.transition_spectrum(torch.randn(1, 40, 8, dtype=torch.float64))
    assert spectrum.min().item() == pytest.approx(least, abs=1e-6)
    with torch.no_grad():
        mixer.decay_bias.normal_(std=3)
        mixer.rate_bias.normal_(mean=3, std=3)
    spectrum = mixer.transition_spectrum(3 * torch.randn(1, 200, 8, dtype=torch.float64))
    assert spectrum.min() >= least - 1e-9
    assert spectrum.max() <= 1


def test_initial_values_are_those_of_the_official_code_after_from_config():
    config = MemoryRWKV7Config(vocab_size=5, hidden_size=8, num_hidden_layers=3)
    for layer, block in enumerate(MemoryRWKV7Model._from_config(config).layers):
        mixer, deep, falling = block.mixer, layer / 2, 1 - layer / 3
        for n in range(8):
            wave, line = 2 * (n % 4) / 3 - 1, n / 7 - 0.5
            wave = wave * abs(wave)
            decay = -6 + 6 * (n / 7) ** (1 + deep**0.3) + 0.5 + 2.5 * wave
            assert mixer.decay_bias[n].item() == pytest.approx(decay, abs=1e-5)
            assert mixer.rate_bias[n].item() == pytest.approx(-0.19 + 0.3 * wave + 0.4 * line, abs=1e-6)
            assert mixer.removal[n].item() == pytest.approx(0.71 - 0.1 * line, abs=1e-6)
            expected = [1 - (n / 8) ** (c * falling) for c in (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)]
            assert mixer.mix[:, n].tolist() == pytest.approx(expected, abs=1e-6)
        assert mixer.addition.unique().tolist() == pytest.approx([1.02])
        assert mixer.bonus.unique().tolist() == pytest.approx([-0.04])
        for name in ("decay", "rate", "gate"):
            assert not getattr(mixer, f"{name}_down").weight.any()
            up = getattr(mixer, f"{name}_up").weight
            close(up @ up.T, 0.01 * torch.eye(8), 1e-6)
        assert not mixer.out_proj.weight.any()
        assert {mixer.decay_bias.dtype, mixer.rate_bias.dtype} == {torch.float32}


def test_maps_are_drawn_uniformly():
    config = MemoryRWKV7Config(vocab_size=5, hidden_size=64, num_hidden_layers=1, zero_init=False)
    mixer = MemoryRWKV7Model._from_config(config).layers[0].mixer
    for linear, bound in ((mixer.receptance, 0.5), (mixer.key, 0.05), (mixer.value, 0.5)):
        assert_uniform(linear.weight, -bound / 8, bound / 8)
    assert mixer.out_proj.weight.any()


def test_ranks_are_those_of_the_official_code_and_the_state_is_counted():
    for width, small, large in ((64, 32, 32), (768, 64, 128), (2048, 128, 224)):
        with torch.device("meta"):
            config = MemoryRWKV7Config(vocab_size=5, hidden_size=width, num_hidden_layers=1)
            mixer = MemoryRWKV7Model(config).layers[0].mixer
        assert (mixer.decay_down.out_features, mixer.rate_down.out_features) == (small, small)
        assert mixer.gate_down.out_features == large
    assert mixer_of(MemoryRWKV7Model, num_heads=4).state_size() == 4 * 2 * 2 + 8


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"rate_rank": -1}, "rate_rank must be at least 0"),
        ({"head_norm_eps": 0.0}, "head_norm_eps must be above 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryRWKV7Config(vocab_size=5, hidden_size=8, **fields)
