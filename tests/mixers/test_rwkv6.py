"""RWKV-6 against its equations, and its initial values."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from hf_memory.mixers.rwkv6 import MemoryRWKV6Config, MemoryRWKV6Model
from tests.mixers.memory_checks import assert_is_the_loop, mixer_of
from tests.mixers.option_checks import assert_laws, assert_spectrum, randomised

OPTIONS = [{}, {"num_heads": 4, "mix_rank": 2, "decay_rank": 3}]


def _loop(mixer, inputs):
    """The equations for one row, token by token and head by head."""
    heads, rank, width = mixer.config.num_heads, mixer.config.mix_rank, inputs.shape[1]
    states, last, outputs = [inputs.new_zeros(width // heads, width // heads)] * heads, torch.zeros_like(inputs[0]), []
    for x in inputs:
        change, last = last - x, x
        low = torch.tanh((x + change * mixer.mix_first) @ mixer.mix_down.weight.T)
        w, k, v, r, g = (
            x + change * (mixer.mix[j] + low[j * rank : j * rank + rank] @ mixer.mix_up[j]) for j in range(5)
        )
        raw = torch.tanh(w @ mixer.decay_down.weight.T) @ mixer.decay_up.weight.T + mixer.time_decay
        decay = torch.exp(-torch.exp(raw))
        maps = ((k, mixer.key), (v, mixer.value), (r, mixer.receptance))
        k, v, r = (mixed @ linear.weight.T for mixed, linear in maps)
        per_head = zip(*(part.view(heads, -1) for part in (k, v, r, decay, mixer.time_first)), strict=True)
        read = []
        for head, (k, v, r, d, u) in enumerate(per_head):
            read.append((states[head] + torch.diag(u) @ torch.outer(k, v)).T @ r)
            states[head] = torch.diag(d) @ states[head] + torch.outer(k, v)
        normed = F.group_norm(torch.cat(read)[None], heads, mixer.head_norm.weight, mixer.head_norm.bias, eps=64e-5)[0]
        gate = g @ mixer.gate.weight.T
        outputs.append((normed * gate * torch.sigmoid(gate)) @ mixer.out_proj.weight.T)
    return torch.stack(outputs), torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    mixer = mixer_of(MemoryRWKV6Model, **options)
    torch.nn.init.normal_(mixer.mix_up, std=0.3)
    assert_is_the_loop(mixer, _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryRWKV6Config(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryRWKV6Model, config))


def test_the_spectrum_is_that_of_the_jacobian():
    # From the initial state on, as the spectrum is: a step depends on the input before it.
    mixer = mixer_of(MemoryRWKV6Model, hidden_size=4, initializer_range=0.9)
    for _ in range(3):
        assert_spectrum(mixer, torch.randn(1, 1, 4, dtype=torch.float64))


def test_initial_values_are_those_of_the_official_code_after_from_config():
    config = MemoryRWKV6Config(vocab_size=5, hidden_size=8, num_hidden_layers=3)
    for layer, block in enumerate(MemoryRWKV6Model._from_config(config).layers):
        mixer, deep, falling = block.mixer, layer / 2, 1 - layer / 3
        for n in range(8):
            assert mixer.time_decay[n].item() == pytest.approx(-6 + 5 * (n / 7) ** (0.7 + 1.3 * deep), abs=1e-5)
            zigzag = 0.1 * ((n + 1) % 3 - 1)
            assert mixer.time_first[n].item() == pytest.approx(deep * (1 - n / 7) + zigzag, abs=1e-6)
            usual, slow = (n / 8) ** falling, (n / 8) ** (0.5 * falling)
            expected = [1 - usual, 1 - usual, 1 - usual - 0.3 * deep, 1 - slow, 1 - slow]
            assert mixer.mix[:, n].tolist() == pytest.approx(expected, abs=1e-6)
            assert mixer.mix_first[n].item() == pytest.approx(1 - usual, abs=1e-6)
        assert not mixer.mix_down.weight.any()
        assert not mixer.decay_down.weight.any()
        assert mixer.mix_up.abs().max() <= 0.01
        assert mixer.mix_up.std().item() == pytest.approx(0.01 / math.sqrt(3), rel=0.1)
        assert {mixer.time_decay.dtype, mixer.time_first.dtype} == {torch.float32}


def test_the_bonus_reaches_the_token_itself_alone():
    mixer = mixer_of(MemoryRWKV6Model)
    inputs = torch.randn(1, 6, 8, dtype=torch.float64)
    before = mixer(inputs)[1]["memory"]
    with torch.no_grad():
        mixer.time_first.add_(1.0)
    torch.testing.assert_close(mixer(inputs)[1]["memory"], before)


def test_the_state_is_counted():
    assert mixer_of(MemoryRWKV6Model, num_heads=4).state_size() == 4 * 2 * 2 + 8


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"mix_rank": 0}, "mix_rank must be at least 1"),
        ({"head_norm_eps": 0.0}, "head_norm_eps must be above 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryRWKV6Config(vocab_size=5, hidden_size=8, **fields)
