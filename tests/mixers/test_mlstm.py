"""mLSTM against its equations, against transformers, and the law of its gates."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import xLSTMConfig, xLSTMForCausalLM

from hf_memory.mixers.mlstm import MemoryMLSTMConfig, MemoryMLSTMModel
from tests.mixers.memory_checks import assert_is_the_loop, converted, convolved, mixer_of, scramble
from tests.mixers.option_checks import assert_laws, assert_spectrum, randomised

OPEN = {"input_bias": 0.5, "forget_bias_min": -1.0, "forget_bias_max": 2.0}
OPTIONS = [
    {},
    OPEN,
    {**OPEN, "num_heads": 4, "key_head_dim": 3, "gate_soft_cap": 0.0},
    {**OPEN, "conv_kernel": 3, "gate": False},
]


def _capped(raw, cap):
    return cap * torch.tanh(raw / cap) if cap else raw


def _loop(mixer, inputs):
    """The equations for one row, head by head, with no maximum but in the state that is handed on."""
    (heads, K, V), cap = mixer.memory_shape, mixer.config.gate_soft_cap
    projected = inputs @ mixer.qkv_proj.weight.T
    projected = projected if mixer.conv is None else convolved(mixer.conv, projected)
    query, key, value = projected.split([heads * K, heads * K, heads * V], dim=-1)
    query, key = (part.reshape(len(inputs), heads, K) for part in (query, key))
    value = value.reshape(len(inputs), heads, V)
    write, keep = (inputs @ mixer.gates_proj.weight.T).split(heads, dim=-1)
    write, keep = _capped(write + mixer.input_bias, cap), _capped(keep + mixer.forget_bias, cap)
    outputs, states = [], []
    for head in range(heads):
        state, sums, most, read = inputs.new_zeros(K, V), inputs.new_zeros(K), inputs.new_zeros(()), []
        for t in range(len(inputs)):
            forget = torch.sigmoid(keep[t, head])
            new = torch.exp(write[t, head]) * key[t, head] / math.sqrt(K)
            state, sums = forget * state + torch.outer(new, value[t, head]), forget * sums + new
            most = torch.maximum(most + forget.log(), write[t, head]).detach()
            weight = (sums @ query[t, head]).abs()
            read.append(state.T @ query[t, head] / torch.maximum(weight, torch.ones_like(weight)))
        outputs.append(torch.stack(read))
        states.append(state * torch.exp(-most))
    outputs = torch.stack(outputs, dim=1)
    centred = outputs - outputs.mean(-1, keepdim=True)
    outputs = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    outputs = outputs.flatten(1) * mixer.head_norm.weight
    if mixer.config.gate:
        outputs = outputs * torch.sigmoid(inputs @ mixer.gate_proj.weight.T)
    return outputs @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(mixer_of(MemoryMLSTMModel, **options), _loop, tolerance=1e-9)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryMLSTMConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryMLSTMModel, config))


@pytest.mark.parametrize("options", [OPEN, {**OPEN, "conv_kernel": 2}])
def test_the_spectrum_is_that_of_the_jacobian_of_the_unscaled_sums(options):
    def encode(state):
        scale = state["maximum"].exp()[..., None]
        sums = {"memory": state["memory"] * scale[..., None], "normalizer": state["normalizer"] * scale}
        return {**{name: leaf for name, leaf in state.items() if name.startswith("conv")}, **sums}

    def decode(state):
        return {**state, "maximum": torch.zeros_like(state["normalizer"][..., 0])}

    mixer = mixer_of(MemoryMLSTMModel, hidden_size=4, initializer_range=0.9, **options)
    assert_spectrum(mixer, torch.randn(1, 3, 4, dtype=torch.float64), encode, decode)


@pytest.fixture
def pair():
    """A model of transformers with its kernels in plain torch, and ours with the same weights."""
    sizes = {"vocab_size": 11, "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 2, "pad_token_id": None}
    config = xLSTMConfig(**sizes, ffn_round_up_to_multiple_of=8, autocast_kernel_dtype="float32", eos_token_id=None)
    theirs = scramble(xLSTMForCausalLM(config))  # widths of keys and values are multiples of 64 there
    return theirs, converted(theirs)


@pytest.mark.parametrize("bias", [-10.0, 1.0])
def test_logits_are_those_of_transformers_under_its_cap(pair, bias):
    theirs, ours = pair
    with torch.no_grad():
        for block, layer in zip(theirs.backbone.blocks, ours.model.layers, strict=True):
            block.mlstm_layer.igate_preact.bias.fill_(bias)
            layer.mixer.input_bias.fill_(bias)
        ids = torch.randint(0, 11, (2, 70))
        expected = theirs(ids, use_cache=True).logits
        logits = ours(ids).logits
        cap = theirs.config.output_logit_soft_cap
        actual = cap * torch.tanh(logits / cap)
    assert (actual - expected).abs().max() < 5e-5 * expected.abs().max()


def test_the_memory_and_its_maximum_are_those_of_transformers(pair):
    theirs, ours = pair
    ids = torch.randint(0, 11, (2, 23))
    with torch.no_grad():
        cache, states = theirs(ids, use_cache=True).cache, ours(ids, use_cache=True).cache.states
    for layer, state in enumerate(states):
        memory, normalizer, most = cache.rnn_state[layer]
        scale = theirs.config.qk_head_dim**-0.5  # of the queries there
        torch.testing.assert_close(state["mixer.maximum"], most.squeeze(-1), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(state["mixer.memory"], memory * scale, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(state["mixer.normalizer"], normalizer * scale, atol=1e-5, rtol=1e-4)


def test_generated_tokens_are_those_of_transformers(pair):
    theirs, ours = pair
    ids = torch.randint(0, 11, (2, 9))
    expected, actual = (model.generate(ids, max_new_tokens=12, do_sample=False) for model in (theirs, ours))
    assert torch.equal(actual, expected)


def test_gates_start_closed_to_writes_and_open_to_memory_after_from_config():
    config = MemoryMLSTMConfig(vocab_size=5, hidden_size=16, num_heads=4, num_hidden_layers=1)
    mixer = MemoryMLSTMModel._from_config(config).layers[0].mixer
    assert not mixer.gates_proj.weight.any()
    assert mixer.input_bias.tolist() == [-10.0] * 4
    assert mixer.forget_bias.tolist() == [3.0, 4.0, 5.0, 6.0]
    assert {mixer.input_bias.dtype, mixer.forget_bias.dtype} == {torch.float32}
    expected = torch.sigmoid(15 * torch.tanh(torch.tensor([3.0, 6.0]) / 15))
    spectrum = mixer.transition_spectrum(torch.randn(2, 3, 16))
    torch.testing.assert_close(spectrum, expected.expand(2, 3, 2))


def test_a_later_value_outweighs_all_earlier_ones_by_its_input_gate():
    mixer = mixer_of(MemoryMLSTMModel, num_heads=1, key_head_dim=8, gate=False, gate_soft_cap=0.0, **OPEN)
    with torch.no_grad():
        mixer.qkv_proj.weight.copy_(torch.cat((torch.eye(8), torch.eye(8), torch.eye(8))))
        mixer.gates_proj.weight[0] = 0
        mixer.gates_proj.weight[0, 0] = 40.0
        mixer.out_proj.weight.copy_(torch.eye(8))
    inputs = torch.randn(1, 12, 8, dtype=torch.float64)
    inputs[0, :, 0] = 0.0
    inputs[0, 11, 0] = 1.0
    loud = mixer(inputs)[0][0, -1]
    torch.testing.assert_close(loud, mixer.head_norm(inputs[:, -1:, None])[0, 0], atol=1e-4, rtol=0)


def test_keys_are_half_as_wide_as_values_and_the_state_is_counted():
    mixer = mixer_of(MemoryMLSTMModel, hidden_size=16, conv_kernel=4)
    assert mixer.memory_shape == (2, 4, 8)
    assert mixer.state_size() == 2 * (4 * 8 + 4 + 1) + 3 * (2 * 8 + 16)


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"key_head_dim": -1}, "key_head_dim must be at least 0"),
        ({"gate_soft_cap": -1.0}, "gate_soft_cap must be at least 0"),
        ({"forget_bias_min": 7.0}, "forget_bias_min must be at most forget_bias_max=6.0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryMLSTMConfig(vocab_size=5, hidden_size=8, **fields)
