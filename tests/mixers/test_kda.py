"""Kimi Delta Attention against its equations, against Kimi Linear of transformers, and the laws of its decays."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import KimiLinearConfig, KimiLinearForCausalLM

from hf_memory.mixers.kda import MemoryKDAConfig, MemoryKDAModel
from tests.mixers.memory_checks import (
    assert_is_the_loop,
    assert_same_logits,
    assert_uniform,
    converted,
    convolved,
    inverse_softplus_log,
    mixer_of,
    normed,
    scramble,
    unit,
)
from tests.mixers.option_checks import assert_laws, assert_spectrum, randomised

COMPLEX = {"decay": "signed", "allow_neg_eigval": True}
OPTIONS = [
    {},
    {"allow_neg_eigval": True, "head_dim": 3},
    {"decay": "bounded", "conv_kernel": 0, "gate": False},
    COMPLEX,
    {**COMPLEX, "key_activation": False, "signed_start": "positive"},
]


def _decay(mixer, inputs):
    """a (T, H, K) as the config says."""
    first, second = (layer.weight for layer in mixer.decay_proj)
    raw = (inputs @ first.T @ second.T + mixer.dt_bias).view(len(inputs), mixer.config.num_heads, -1)
    rate = torch.exp(mixer.A_log).unsqueeze(-1)
    if mixer.config.decay == "softplus":
        return torch.exp(-rate * torch.log1p(torch.exp(raw)))
    if mixer.config.decay == "bounded":
        return torch.exp(-5 * torch.sigmoid(rate * raw))
    least, turned = math.exp(-5), torch.tanh(rate * raw / 2)
    return torch.sign(turned) * (least + (1 - least) * turned.abs())


def _loop(mixer, inputs):
    """The equations for one row, head by head."""
    config, (heads, K, _) = mixer.config, mixer.memory_shape
    projected = inputs @ mixer.qkv_proj.weight.T
    query, key, value = convolved(mixer.conv, projected).split(heads * K, dim=-1)
    if not config.key_activation:
        kernel = mixer.conv.kernel_size
        padded = torch.cat((projected.new_zeros(kernel - 1, projected.shape[1]), projected))
        plain = sum(padded[i : i + len(inputs)] * mixer.conv.weight[:, i] for i in range(kernel))
        key = plain.split(heads * K, dim=-1)[1]
    query, key = (unit(part.reshape(len(inputs), heads, K)) for part in (query, key))
    value, decay = value.reshape(len(inputs), heads, K), _decay(mixer, inputs)
    logits = inputs @ mixer.beta_proj.weight.T
    logits = logits if mixer.beta_bias is None else logits + mixer.beta_bias
    beta = torch.sigmoid(logits) * (2 if config.allow_neg_eigval else 1)
    outputs, states = [], []
    for head in range(heads):
        state, read = inputs.new_zeros(K, K), []
        for t in range(len(inputs)):
            k = key[t, head]
            state = decay[t, head].unsqueeze(-1) * state
            state = state + beta[t, head] * torch.outer(k, value[t, head] - state.T @ k)
            read.append(state.T @ query[t, head] / math.sqrt(K))
        outputs.append(torch.stack(read))
        states.append(state)
    outputs = normed(torch.stack(outputs, dim=1), mixer.head_norm.norm.weight).flatten(1)
    if config.gate:
        first, second = (layer.weight for layer in mixer.gate_proj)
        outputs = outputs * torch.sigmoid(inputs @ first.T @ second.T)
    return outputs @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_memory_and_gradients_equal_the_equations(options):
    assert_is_the_loop(mixer_of(MemoryKDAModel, **options), _loop)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryKDAConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryKDAModel, config))


@pytest.mark.parametrize("options", [{}, {"allow_neg_eigval": True}, {"decay": "bounded"}, COMPLEX, {"num_heads": 4}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    fields = {"hidden_size": 4, "initializer_range": 0.9, "conv_kernel": 2, **options}
    assert_spectrum(mixer_of(MemoryKDAModel, **fields), torch.randn(1, 3, 4, dtype=torch.float64))


@pytest.mark.parametrize("options", [{}, {"allow_neg_eigval": True}, COMPLEX])
def test_eigenvalues_are_complex_with_signs_and_reflections_alone_and_never_leave_the_unit_circle(options):
    mixer = mixer_of(MemoryKDAModel, initializer_range=1.0, key_activation=False, **options)
    inputs = torch.randn(1, 40, 8, dtype=torch.float64)
    step, _ = mixer.step(inputs, None, None, False)
    decay = _decay(mixer, inputs[0])
    probe, beta = step.probe[0], step.beta[0]
    transition = torch.eye(4, dtype=torch.float64) - (beta.unsqueeze(-1) * probe).unsqueeze(-1) @ probe.unsqueeze(-2)
    values = torch.linalg.eigvals(transition @ torch.diag_embed(decay))
    assert values.abs().max() <= 1
    assert (values.imag.abs().max() > 0.1) == (options == COMPLEX)
    assert (values.real.min() < -0.1) == bool(options)


def test_logits_are_those_of_kimi_linear_with_padding_on_the_left_too():
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    layers = {"layer_types": ["linear_attention"] * 2, "mlp_layer_types": ["dense"] * 2}
    others = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "num_attention_heads": 2}
    config = KimiLinearConfig(**sizes, **layers, **others, linear_num_heads=4, linear_head_dim=6)
    theirs = scramble(KimiLinearForCausalLM(config))
    assert_same_logits(theirs, converted(theirs))


def _started(**fields):
    config = MemoryKDAConfig(vocab_size=5, hidden_size=1024, num_heads=256, num_hidden_layers=1, **fields)
    mixer = MemoryKDAModel._from_config(config).layers[0].mixer
    assert {getattr(mixer, name).dtype for name in mixer.fp32_parameters} == {torch.float32}
    return mixer


def test_rates_and_time_steps_follow_their_laws_after_from_config():
    mixer = _started()
    assert_uniform(mixer.A_log.exp(), 1, 16)
    assert_uniform(inverse_softplus_log(mixer.dt_bias), math.log(1e-3), math.log(0.1))


@pytest.mark.parametrize("options", [{"decay": "bounded"}, COMPLEX, {**COMPLEX, "signed_start": "positive"}])
def test_other_decays_start_at_the_drawn_time_steps(options):
    mixer = _started(**options)
    log_decay, sign = mixer.log_decay(torch.zeros(1, 1, 1024))
    low, high = math.log(1e-3) - 1e-3, math.log(0.1) + 1e-3  # float32 rounds sizes near 1
    assert_uniform((-log_decay).log(), low, high)
    if options["decay"] == "signed":
        spread = mixer.config.signed_start == "spread"
        assert abs((sign < 0).double().mean() - 0.5 * spread) < 0.06
        assert mixer.beta_bias.abs().unique().tolist() == pytest.approx([math.log(3) * spread])
        assert mixer.decay_proj[1].weight.std().item() == pytest.approx(0.002 if spread else 0.02, rel=0.1)


def test_state_size_counts_memory_and_convolution():
    assert mixer_of(MemoryKDAModel, num_heads=4, head_dim=3).state_size() == 4 * 3 * 3 + 3 * (3 * 4 * 3)


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"head_dim": -1}, "head_dim must be at least 0"),
        ({"decay": "linear"}, "decay"),
        ({"decay_min": 0.0}, r"decay_min must be in \(0, decay_max=16.0\]"),
        ({"largest_decay": 0.1}, "largest_decay must be above time_step_max=0.1"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryKDAConfig(vocab_size=5, hidden_size=8, **fields)
