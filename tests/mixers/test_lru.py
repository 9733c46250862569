"""LRU: the equations as a complex128 loop, the ring of its eigenvalues, optimiser groups."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from hf_memory.mixers.lru import MemoryLRUConfig, MemoryLRUModel
from hf_memory.ops.backends.dispatch import use_backend


def _mixer(**fields):
    config = MemoryLRUConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, initializer_range=0.3, **fields)
    return MemoryLRUModel(config).layers[0].mixer


def _loop(mixer, inputs, state):
    """The equations of the paper, one step and one row at a time."""
    eigenvalues = torch.exp(torch.complex(-mixer.nu_log.exp(), mixer.theta_log.exp()))
    b, c = torch.complex(mixer.B_re, mixer.B_im), torch.complex(mixer.C_re, mixer.C_im)
    outputs = []
    for x in inputs:
        state = eigenvalues * state + mixer.gamma_log.exp() * (b @ x.to(b.dtype))
        y = (c @ state).real + mixer.D * x
        if mixer.out_proj is not None:
            g = F.gelu(y)
            y = mixer.out_proj(g) * torch.sigmoid(mixer.gate_proj(g))
        outputs.append(y)
    return torch.stack(outputs), state


@pytest.mark.parametrize("glu", [True, False])
@pytest.mark.parametrize("state_size", [0, 3])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_outputs_state_and_gradients_equal_the_equations_in_complex128(glu, state_size, backend):
    mixer = _mixer(glu=glu, state_size=state_size).double()
    inputs = torch.randn(2, 7, 8, dtype=torch.float64)
    state = {name: torch.randn_like(leaf).requires_grad_() for name, leaf in mixer.initial_state(2).items()}
    with use_backend(backend):
        outputs, final = mixer(inputs, state)
    start = torch.complex(state["real"], state["imag"])
    rows = [_loop(mixer, inputs[row], start[row]) for row in range(2)]
    expected, last = (torch.stack(parts) for parts in zip(*rows, strict=True))
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.complex(final["real"], final["imag"]), last, rtol=1e-12, atol=1e-12)
    leaves = [*mixer.parameters(), *state.values()]
    ours = torch.autograd.grad((outputs**2).sum() + (final["real"] ** 3 + final["imag"]).sum(), leaves)
    theirs = torch.autograd.grad((expected**2).sum() + (last.real**3 + last.imag).sum(), leaves)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("r_min, r_max, max_phase", [(0.0, 1.0, 6.283), (0.9, 0.999, math.pi / 10), (0.5, 0.6, 0.1)])
def test_eigenvalues_start_uniformly_in_their_ring_with_unit_gain(r_min, r_max, max_phase):
    mixer = _mixer(state_size=4096, r_min=r_min, r_max=r_max, max_phase=max_phase)
    eigenvalues = mixer._eigenvalues().detach()
    squared, phase = eigenvalues.abs().double() ** 2, mixer.theta_log.detach().exp()
    assert r_min - 1e-6 <= eigenvalues.abs().min()
    assert eigenvalues.abs().max() <= min(r_max + 1e-6, 1)
    assert phase.min() > 0
    assert phase.max() <= max_phase * (1 + 1e-6)
    # Quartiles of a uniform law, within five standard errors of 4,096 draws.
    share, error = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), 5 * 0.5 / 4096**0.5
    place = (squared - r_min**2) / (r_max**2 - r_min**2)
    assert (place.quantile(share) - share).abs().max() < error
    assert (phase.double().quantile(share) / max_phase - share).abs().max() < error
    gain = mixer.gamma_log.detach().exp().double() ** 2
    torch.testing.assert_close(gain, -torch.expm1(-2 * mixer.nu_log.detach().double().exp()), rtol=1e-5, atol=1e-6)


def test_weights_start_with_the_variances_of_the_paper():
    mixer = _mixer(state_size=4096)
    assert mixer.B_re.std().item() == pytest.approx((2 * 8) ** -0.5, rel=0.03)
    assert mixer.B_im.std().item() == pytest.approx((2 * 8) ** -0.5, rel=0.03)
    assert mixer.C_re.std().item() == pytest.approx(4096**-0.5, rel=0.03)
    assert mixer.C_im.std().item() == pytest.approx(4096**-0.5, rel=0.03)


def test_the_state_keeps_unit_variance_on_white_inputs():
    mixer = _mixer(state_size=512, glu=False)
    _, final = mixer(torch.randn(64, 400, 8))
    # sum of lambda^2s gamma^2 |B x|^2 = 1 where the inputs have unit variance
    assert (final["real"].square() + final["imag"].square()).mean().item() == pytest.approx(1.0, rel=0.1)


def test_the_spectrum_is_that_of_the_jacobian_of_one_step():
    mixer = _mixer(state_size=4).double()
    inputs = torch.randn(1, 1, 8, dtype=torch.float64)

    def step(state):
        _, final = mixer(inputs, {"real": state[None, :4], "imag": state[None, 4:]})
        return torch.cat((final["real"], final["imag"]), dim=1)[0]

    jacobian = torch.autograd.functional.jacobian(step, torch.randn(8, dtype=torch.float64))
    real = torch.linalg.eigvals(jacobian).real
    expected = torch.stack((real.min(), real.max())).expand(1, 1, 2)
    torch.testing.assert_close(mixer.transition_spectrum(inputs), expected, rtol=1e-10, atol=1e-10)


def test_loading_in_bfloat16_keeps_imaginary_parts_and_exact_eigenvalues(tmp_path):
    model = MemoryLRUModel(MemoryLRUConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, initializer_range=0.3))
    model.save_pretrained(tmp_path)
    mixer = model.layers[0].mixer
    half = MemoryLRUModel.from_pretrained(tmp_path, dtype=torch.bfloat16).layers[0].mixer
    assert (half.B_im.dtype, half.C_im.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(half._eigenvalues(), mixer._eigenvalues())
    inputs = torch.randn(2, 200, 8)
    expected, _ = mixer(inputs)
    outputs, final = half(inputs.bfloat16())
    assert final["imag"].dtype == torch.float32
    assert final["imag"].abs().max() > 0.1
    assert (outputs.float() - expected).abs().max() < 0.03 * expected.abs().max()


def test_the_recurrence_and_its_input_map_train_slowly_and_without_decay():
    model = MemoryLRUModel(MemoryLRUConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1))
    names = {id(parameter): name.split(".")[-1] for name, parameter in model.named_parameters()}
    groups = model.optim_groups(learning_rate=0.01, weight_decay=0.1)
    slow = {names[id(p)] for group in groups if group["lr"] == 1e-3 for p in group["params"]}
    decayed = {names[id(p)] for group in groups if group["weight_decay"] > 0 for p in group["params"]}
    assert slow == {"nu_log", "theta_log", "gamma_log", "B_re", "B_im"}
    assert not decayed & (slow | {"D"})
    assert {group["lr"] for group in model.optim_groups(0.01, 0.1, mode="uniform")} == {0.01}


def test_the_state_holds_two_numbers_per_channel():
    assert _mixer(state_size=5).state_size() == 10
    assert _mixer().state_size() == 16


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"r_min": 0.9, "r_max": 0.5}, "r_min"),
        ({"r_min": -0.1}, "r_min"),
        ({"r_max": 1.1}, "r_max"),
        ({"max_phase": 0.0}, "max_phase"),
        ({"state_size": -1}, "state_size"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryLRUConfig(vocab_size=5, **fields)


@pytest.mark.parametrize("nu_log", [-14.0, -30.0, -100.0])
def test_no_channel_remembers_forever_and_its_gradient_leads_back(nu_log):
    mixer = _mixer(state_size=4096, glu=False)
    with torch.no_grad():
        mixer.nu_log.fill_(nu_log)
    eigenvalues = mixer._eigenvalues()
    assert (eigenvalues.to(torch.complex128).abs() < 1).all()
    assert (eigenvalues.to(torch.complex128).abs() > 1 - 1e-5).all()
    eigenvalues.abs().sum().backward()
    rate = max(math.exp(nu_log), 2.0**-22)
    torch.testing.assert_close(mixer.nu_log.grad, torch.full((4096,), -rate), rtol=1e-3, atol=0)


def test_the_bound_leaves_ordinary_eigenvalues_as_they_are():
    mixer = _mixer(state_size=512)
    expected = torch.polar(torch.exp(-mixer.nu_log.exp()), mixer.theta_log.exp())
    assert torch.equal(mixer._eigenvalues(), expected)
