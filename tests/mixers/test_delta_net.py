"""DeltaNet: both parameterisations as float64 loops, its features, its spectrum, hard inputs."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from hf_memory.mixers.delta_net import MemoryDeltaNetConfig, MemoryDeltaNetModel, dpfp
from tests.mixers.option_checks import assert_spectrum, randomised


def _mixer(**fields):
    fields = {"hidden_size": 8, "initializer_range": 0.3, **fields}
    return MemoryDeltaNetModel(MemoryDeltaNetConfig(vocab_size=5, num_hidden_layers=1, **fields)).layers[0].mixer


def _yang(mixer, inputs):
    """Convolution, SiLU and unit keys, written out for one row."""
    projected = inputs @ mixer.qkv_proj.weight.T
    if mixer.conv is not None:
        padded = F.pad(projected, (0, 0, mixer.conv.kernel_size - 1, 0))
        taps = range(mixer.conv.kernel_size)
        projected = sum(padded[i : i + len(inputs)] * mixer.conv.weight[:, i] for i in taps)
    query, key, value = F.silu(projected).view(len(inputs), 3, 2, 4).unbind(1)
    query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
    return query, key, value


def _schlag(mixer, inputs):
    """Features divided by their sum, written out for one row."""
    query, key, value = (inputs @ mixer.qkv_proj.weight.T).view(len(inputs), 3, 2, 4).unbind(1)
    features = []
    for x in (query, key):
        if mixer.config.feature_map == "elu":
            phi = torch.where(x > 0, x + 1, x.exp())
        else:
            r = torch.cat((x.clamp(min=0), (-x).clamp(min=0)), -1)
            order = range(1, mixer.config.dpfp_order + 1)
            phi = torch.cat([torch.stack([r[..., i] * r[..., i - j] for i in range(8)], -1) for j in order], -1)
        features.append(phi / (phi.sum(-1, keepdim=True) + 1e-6))
    return *features, value


def _loop(mixer, inputs, project):
    """The recurrence for one row and one head at a time."""
    query, key, value = project(mixer, inputs)
    beta = torch.sigmoid(inputs @ mixer.beta_proj.weight.T) * (2 if mixer.config.allow_neg_eigval else 1)
    outputs, states = [], []
    for head in range(2):
        state, read = inputs.new_zeros(key.shape[-1], 4), []
        for t in range(len(inputs)):
            k, b = key[t, head], beta[t, head]
            state = state - b * torch.outer(k, k @ state) + b * torch.outer(k, value[t, head])
            read.append(query[t, head] @ state / 4**0.5)
        outputs.append(torch.stack(read))
        states.append(state)
    outputs = torch.stack(outputs, dim=1)
    if mixer.head_norm is not None:
        outputs = outputs * (outputs.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * mixer.head_norm.weight
    return outputs.view(len(inputs), 8) @ mixer.out_proj.weight.T, torch.stack(states)


@pytest.mark.parametrize(
    "fields, project",
    [
        ({}, _yang),
        ({"allow_neg_eigval": True, "conv_kernel": 0, "output_norm": False}, _yang),
        ({"parameterization": "schlag"}, _schlag),
        ({"parameterization": "schlag", "dpfp_order": 3, "allow_neg_eigval": True}, _schlag),
        ({"parameterization": "schlag", "feature_map": "elu"}, _schlag),
    ],
)
def test_outputs_state_and_gradients_equal_the_equations_in_float64(fields, project):
    mixer = _mixer(**fields).double()
    inputs = torch.randn(2, 21, 8, dtype=torch.float64)
    outputs, final = mixer(inputs)
    assert mixer.initial_state(2)["memory"].shape == final["memory"].shape
    expected, memory = (torch.stack(rows) for rows in zip(*(_loop(mixer, row, project) for row in inputs), strict=True))
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(final["memory"], memory, rtol=1e-10, atol=1e-10)
    parameters = list(mixer.parameters())
    ours = torch.autograd.grad((outputs**2).sum() + (final["memory"] ** 3).sum(), parameters)
    theirs = torch.autograd.grad((expected**2).sum() + (memory**3).sum(), parameters)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-8)


def test_the_features_of_schlag_on_a_worked_example():
    # r = ReLU([1, -2, -1, 2]) = [1, 0, 0, 2]; its first roll is [2, 1, 0, 0], its second [0, 2, 1, 0].
    inputs = torch.tensor([1.0, -2.0])
    assert dpfp(inputs, 1).tolist() == [2.0, 0.0, 0.0, 0.0]
    assert dpfp(inputs, 2).tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert dpfp(torch.tensor([1.0, 3.0]), 1).tolist() == [0.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize("parameterization, kernel, norm", [("yang", 4, True), ("schlag", 0, False)])
def test_convolution_and_norm_follow_the_parameterisation_unless_given(parameterization, kernel, norm):
    config = MemoryDeltaNetConfig(vocab_size=5, parameterization=parameterization)
    assert (config.conv_kernel, config.output_norm) == (kernel, norm)
    given = MemoryDeltaNetConfig(vocab_size=5, parameterization=parameterization, conv_kernel=2, output_norm=not norm)
    assert (given.conv_kernel, given.output_norm) == (2, not norm)
    assert MemoryDeltaNetConfig.from_dict(given.to_dict()).conv_kernel == 2


@pytest.mark.parametrize("fields", [{}, {"allow_neg_eigval": True}, {"parameterization": "schlag"}, {"num_heads": 8}])
def test_the_spectrum_is_that_of_the_jacobian_of_one_step(fields):
    mixer = _mixer(**{"conv_kernel": 0, **fields}).double()
    torch.nn.init.constant_(mixer.beta_proj.weight, 0.5)
    inputs = torch.randn(1, 1, 8, dtype=torch.float64).abs()
    shape = mixer.initial_state(1)["memory"].shape

    def step(memory):
        return mixer(inputs, {"memory": memory.view(shape)})[1]["memory"].flatten()

    jacobian = torch.autograd.functional.jacobian(step, torch.randn(shape.numel(), dtype=torch.float64))
    real = torch.linalg.eigvals(jacobian).real
    expected = torch.stack((real.min(), real.max())).expand(1, 1, 2)
    torch.testing.assert_close(mixer.transition_spectrum(inputs), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_spectrum_reaches_below_zero_only_where_that_is_allowed_and_never_leaves_the_unit_interval(dtype):
    for allowed in (False, True):
        mixer = _mixer(allow_neg_eigval=allowed, initializer_range=2.0).to(dtype)
        spectrum = mixer.transition_spectrum(3 * torch.randn(4, 200, 8, dtype=dtype))
        assert (spectrum[..., 1] == 1).all()
        assert spectrum.min().item() == pytest.approx(-1 if allowed else 0, abs=1e-2)
        assert spectrum.min() >= -1 - 1e-6 if allowed else spectrum.min() >= -1e-6


@pytest.mark.parametrize("parameterization", ["yang", "schlag"])
def test_keys_of_zeros_have_finite_gradients_and_write_nothing(parameterization):
    mixer = _mixer(parameterization=parameterization)
    inputs = torch.cat((torch.zeros(1, 5, 8), torch.randn(1, 3, 8)), dim=1).requires_grad_()
    outputs, final = mixer(inputs)
    (outputs.sum() + final["memory"].sum()).backward()
    assert torch.isfinite(inputs.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())
    assert mixer(inputs[:, :5])[1]["memory"].abs().max() == 0


def test_state_size_counts_memory_and_convolution():
    assert _mixer().state_size() == 2 * 4 * 4 + 3 * 8 * 3
    assert _mixer(parameterization="schlag", dpfp_order=2).state_size() == 2 * 16 * 4


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"num_heads": 3}, "num_heads must divide"),
        ({"conv_kernel": -1}, "conv_kernel must be at least 0"),
        ({"dpfp_order": 0}, "dpfp_order must be in"),
        ({"hidden_size": 8, "dpfp_order": 8}, r"dpfp_order must be in \[1, 7\]"),
        ({"parameterization": "young"}, "parameterization"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryDeltaNetConfig(vocab_size=5, **fields)


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_spectrum_counts_the_zeros_of_a_convolution(kernel):
    fields = {"hidden_size": 4, "conv_kernel": kernel, "initializer_range": 0.9, "num_heads": 2}
    mixer = randomised(MemoryDeltaNetModel, MemoryDeltaNetConfig(vocab_size=5, **fields)).layers[0].mixer
    assert_spectrum(mixer, torch.randn(1, 4, 4, dtype=torch.float64))
