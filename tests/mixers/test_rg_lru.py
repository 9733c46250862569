"""RG-LRU against its equations, against transformers, and its initial values."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

from hf_memory.mixers.rg_lru import MemoryRGLRUConfig, MemoryRGLRUModel
from tests.mixers.memory_checks import assert_uniform, converted, mixer_of, scramble, without_biases
from tests.mixers.option_checks import assert_equals_definition, assert_laws, assert_spectrum, close, randomised

OPTIONS = [
    {},
    {"unscaled_start": False, "num_heads": 4, "lru_width": 12, "conv_kernel": 2},
    {"conv_kernel": 0, "num_heads": 1},
]


def _mixer(**fields):
    """A mixer whose biases matter, and whose decays are far from 1."""
    mixer = mixer_of(MemoryRGLRUModel, **{"decay_min": 0.3, "decay_max": 0.95, **fields})
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


def _loop(mixer, inputs):
    """The equations token by token."""
    heads, rows = mixer.config.num_heads, []
    for row in inputs:
        x = row @ mixer.in_proj.weight.T + mixer.in_proj.bias
        if mixer.conv is not None:
            kernel = mixer.conv.kernel_size
            padded = torch.cat((x.new_zeros(kernel - 1, x.shape[1]), x))
            x = sum(padded[i : i + len(x)] * mixer.conv.weight[:, i] for i in range(kernel)) + mixer.conv.bias
        h, steps = x.new_zeros(x.shape[1]), []
        for t in range(len(x)):
            parts = x[t].view(heads, -1)
            r, i = (
                torch.cat([parts[j] @ mixer.gate_weight[j, :, g] + mixer.gate_bias[j, g] for j in range(heads)])
                for g in range(2)
            )
            a = torch.exp(-F.softplus(mixer.rate)) ** (8 * torch.sigmoid(r))
            scale = torch.sqrt(1 - a**2)
            if t == 0 and mixer.config.unscaled_start:
                scale = torch.ones_like(a)
            h = a * h + scale * torch.sigmoid(i) * x[t]
            steps.append(h)
        branch = F.gelu(row @ mixer.branch_proj.weight.T + mixer.branch_proj.bias, approximate="tanh")
        rows.append((torch.stack(steps) * branch) @ mixer.out_proj.weight.T + mixer.out_proj.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_equal_the_equations(options):
    assert_equals_definition(_mixer(**options), _loop, torch.randn(2, 12, 8, dtype=torch.float64))


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryRGLRUConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryRGLRUModel, config))


@pytest.mark.parametrize("options", [{"conv_kernel": 0}, {"conv_kernel": 3}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    assert_spectrum(_mixer(hidden_size=4, **options), torch.randn(1, 3, 4, dtype=torch.float64))


def test_only_the_input_at_position_zero_is_not_scaled():
    inputs = torch.randn(1, 6, 8, dtype=torch.float64)
    plain, scaled = (_mixer(unscaled_start=kind, conv_kernel=0) for kind in (True, False))
    scaled.load_state_dict(plain.state_dict())
    first, later = torch.arange(6)[None], torch.arange(3, 9)[None]
    expected = scaled(inputs)[0]
    close(plain(inputs, position_ids=later)[0], expected)
    assert (plain(inputs, position_ids=first)[0] - expected)[:, 0].abs().max() > 0.01
    close(plain(inputs, position_ids=first)[0], plain(inputs)[0])
    state = plain.initial_state(1)
    close(plain(inputs, state)[0], expected)


@pytest.fixture
def pair():
    """Two recurrent blocks of transformers, and ours with the same weights."""
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 2}
    ends = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = RecurrentGemmaConfig(
        **sizes, **ends, num_attention_heads=2, lru_width=24, block_types=["recurrent"], tie_word_embeddings=False
    )
    theirs = without_biases(scramble(RecurrentGemmaForCausalLM(config)))
    return theirs, converted(theirs)


def test_logits_are_those_of_transformers_under_its_cap(pair):
    theirs, ours = pair
    ids = torch.randint(0, 11, (2, 40))
    with torch.no_grad():
        expected, logits = theirs(ids, use_cache=False).logits, ours(ids).logits
    cap = theirs.config.logits_soft_cap
    assert (cap * torch.tanh(logits / cap) - expected).abs().max() < 2e-5 * expected.abs().max()


def test_generated_tokens_are_those_of_transformers(pair):
    theirs, ours = pair
    ids = torch.randint(0, 11, (2, 9))
    expected = theirs.generate(ids, max_new_tokens=12, do_sample=False, use_cache=False)
    assert torch.equal(ours.generate(ids, max_new_tokens=12, do_sample=False), expected)


def test_the_state_of_a_block_is_that_of_transformers_after_a_prompt():
    sizes = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 48}
    config = RecurrentGemmaConfig(**sizes, num_attention_heads=2, block_types=["recurrent"], tie_word_embeddings=False)
    theirs = without_biases(scramble(RecurrentGemmaForCausalLM(config)))
    ours, block = converted(theirs), theirs.model.layers[0].temporal_block
    inputs, position = torch.randn(2, 14, 16), torch.arange(14)[None]
    with torch.no_grad():
        expected = torch.cat(
            [
                block(inputs[:, part], position[:, part], None, use_cache=True)[0]
                for part in (slice(0, 12), slice(12, 13), slice(13, 14))
            ],
            dim=1,
        )
        actual, state = ours.model.layers[0].mixer(inputs)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(state["hidden"], block.rg_lru.recurrent_states, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(state["conv.inputs"].mT, block.conv1d_state, atol=2e-5, rtol=1e-5)


def test_decays_gates_and_taps_follow_their_laws_after_from_config():
    config = MemoryRGLRUConfig(vocab_size=5, hidden_size=1024, num_heads=8, num_hidden_layers=1)
    mixer = MemoryRGLRUModel._from_config(config).layers[0].mixer
    assert_uniform(torch.exp(-2 * F.softplus(mixer.rate.double())), 0.9**2, 0.999**2)
    assert mixer.gate_weight.std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert mixer.conv.weight.std().item() == pytest.approx((0.01 / 4) ** 0.5, rel=0.05)
    assert not any(bias.any() for bias in (mixer.gate_bias, mixer.conv.bias))
    assert {mixer.rate.dtype, mixer.gate_bias.dtype} == {torch.float32}


def test_a_channel_that_forgets_nothing_has_a_finite_gradient():
    mixer = mixer_of(MemoryRGLRUModel)
    with torch.no_grad():
        mixer.rate.fill_(-60.0)
    mixer.float()
    inputs = torch.randn(1, 9, 8, requires_grad=True)
    mixer(inputs)[0].square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())
    assert torch.isfinite(inputs.grad).all()


def test_state_size_counts_the_recurrence_and_the_convolution():
    assert mixer_of(MemoryRGLRUModel, lru_width=12).state_size() == 12 + 3 * 12


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"lru_width": 9}, "lru_width must be a multiple of num_heads=2"),
        ({"conv_kernel": -1}, "conv_kernel must be at least 0"),
        ({"decay_max": 1.0}, "decay_min and decay_max must hold 0 < decay_min < decay_max < 1"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryRGLRUConfig(vocab_size=5, hidden_size=8, **fields)
