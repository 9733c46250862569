"""S4D against the convolution of its paper in complex128, and its initial values."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.s4d import MemoryS4DConfig, MemoryS4DForTokenClassification, MemoryS4DModel
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

SIZES = pytest.mark.parametrize("state_size", [2, 8, 64])


def _mixer(state_size=8, width=6, **fields):
    config = MemoryS4DConfig(vocab_size=5, hidden_size=width, state_size=state_size, initializer_range=0.4, **fields)
    mixer = randomised(MemoryS4DModel, config).layers[1].mixer
    with torch.no_grad():
        for name in ("log_dt", "log_A_real", "A_imag"):
            parameter = getattr(mixer, name)
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


def _kernel(mixer, length):
    """2 Re sum C (exp(dt A) - 1) / A exp(dt A)^t: (D, T)."""
    A = torch.complex(-mixer.log_A_real.exp(), mixer.A_imag)
    dt = mixer.log_dt.exp().unsqueeze(1)
    weights = torch.view_as_complex(mixer.C) * (torch.exp(dt * A) - 1) / A
    return torch.stack([2 * (weights * torch.exp(dt * A * t)).sum(1).real for t in range(length)], dim=1)


@SIZES
def test_equals_the_convolution_with_its_kernel_and_a_gated_output(state_size):
    mixer = _mixer(state_size)
    u = torch.randn(2, 70, 6, dtype=torch.float64)
    kernel, outputs = _kernel(mixer, 70), mixer(u)[0]
    for t in range(0, 70, 3):
        y = (u[:, : t + 1].flip(1) * kernel[:, : t + 1].T).sum(1) + mixer.D * u[:, t]
        y = y * 0.5 * (1 + torch.erf(y / 2**0.5))
        value, gate = (y @ mixer.out_proj.weight.T + mixer.out_proj.bias).chunk(2, dim=1)
        close(outputs[:, t], value * torch.sigmoid(gate), 1e-11)


def test_gradients_equal_those_of_the_convolution():
    mixer = _mixer()
    u = torch.randn(2, 40, 6, dtype=torch.float64)
    gradients = []
    for outputs in (mixer(u)[0], _by_convolution(mixer, u)):
        gradients.append(torch.autograd.grad(outputs.cos().sum(), list(mixer.parameters())))
    for actual, expected in zip(*gradients, strict=True):
        close(actual, expected, 1e-9)


def _by_convolution(mixer, u):
    time, kernel = u.shape[1], _kernel(mixer, u.shape[1])
    age = torch.arange(time).unsqueeze(1) - torch.arange(time)
    toeplitz = torch.where(age >= 0, kernel[:, age.clamp(min=0)], 0)
    y = torch.einsum("dts,bsd->btd", toeplitz, u) + mixer.D * u
    return torch.nn.functional.glu(mixer.out_proj(torch.nn.functional.gelu(y)), dim=-1)


@SIZES
def test_the_laws_of_the_state_hold_for_small_and_large_states(state_size):
    config = MemoryS4DConfig(vocab_size=5, hidden_size=6, state_size=state_size, initializer_range=0.4)
    assert_laws(randomised(MemoryS4DModel, config))
    assert MemoryS4DModel(config).state_size() == 2 * 6 * state_size


def test_the_spectrum_is_that_of_the_jacobian():
    assert_spectrum(_mixer(4), torch.randn(1, 3, 6, dtype=torch.float64))


def test_dropout_acts_in_training_only():
    mixer, u = _mixer(ssm_dropout=0.5), torch.randn(2, 5, 6, dtype=torch.float64)
    assert torch.equal(mixer(u)[0], mixer(u)[0])
    mixer.train()
    assert not torch.equal(mixer(u)[0], mixer(u)[0])


def test_initial_values_follow_their_laws_after_construction_and_loading(tmp_path):
    model = MemoryS4DForTokenClassification(MemoryS4DConfig(vocab_size=5, hidden_size=512, num_labels=2))
    model.save_pretrained(tmp_path)
    loaded = MemoryS4DForTokenClassification.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    for layer in loaded.model.layers:
        mixer = layer.mixer
        torch.testing.assert_close(mixer.log_A_real.exp(), torch.full((512, 32), 0.5))
        torch.testing.assert_close(mixer.A_imag, math.pi * torch.arange(32.0).expand(512, 32))
        assert math.log(0.001) <= mixer.log_dt.min() <= mixer.log_dt.max() <= math.log(0.1)
        quantiles = mixer.log_dt.quantile(torch.tensor([0.25, 0.5, 0.75]))
        expected = math.log(0.001) + math.log(100) * torch.tensor([0.25, 0.5, 0.75])
        torch.testing.assert_close(quantiles, expected, atol=0.5, rtol=0)
        assert abs(mixer.C.square().sum(-1).mean() - 1) < 0.05
        assert abs(mixer.D.std() - 1) < 0.15


def test_documented_groups_train_the_state_space_slowly_and_without_decay():
    model = MemoryS4DModel(MemoryS4DConfig(vocab_size=5, hidden_size=8))
    names = {id(parameter): name.rpartition(".")[2] for name, parameter in model.named_parameters()}
    slow = [group for group in model.optim_groups(1e-2, 0.1) if group["lr"] == 1e-3]
    assert {names[id(parameter)] for group in slow for parameter in group["params"]} == {
        "log_dt",
        "log_A_real",
        "A_imag",
    }
    assert {group["weight_decay"] for group in slow} == {0.0}


@pytest.mark.parametrize(
    ("field", "value"),
    [("state_size", 0), ("state_size", 3), ("time_step_min", 0.0), ("time_step_min", 0.2), ("ssm_dropout", 1.0)],
)
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(StrictDataclassError, match=f"{field} must be"):
        MemoryS4DConfig(vocab_size=5, hidden_size=8, **{field: value})
