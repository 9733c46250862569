"""The diagonal state space against its definition, the kernel of the paper, and the laws of a recurrence."""

import math

import pytest
import torch

from hf_memory.ops import diagonal_ssm as module
from hf_memory.ops.diagonal_ssm import diagonal_ssm, diagonal_ssm_recurrent, discretize
from tests.ops import recurrence_checks as checks


def problem(batch=3, steps=7, width=2, pairs=3, dtype=torch.float64):
    """Inputs, eigenvalues and output weights, and a state."""
    complex_dtype = torch.promote_types(dtype, torch.complex64)
    eigenvalues = torch.polar(torch.rand(width, pairs, dtype=dtype), 3 * torch.randn(width, pairs, dtype=dtype))
    weights = torch.randn(width, pairs, dtype=complex_dtype)
    state = torch.randn(batch, width, pairs, dtype=complex_dtype)
    return [torch.randn(batch, steps, width, dtype=dtype)], [eigenvalues, weights], state


@pytest.fixture(params=[1, 3, 32])
def chunk(request, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", request.param)


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.usefixtures("chunk")
def test_outputs_final_state_and_gradients_equal_the_definition(steps):
    checks.assert_same(diagonal_ssm, diagonal_ssm_recurrent, *problem(steps=steps))


def test_float32_stays_within_1e_minus_5_over_a_thousand_steps():
    (x,), (_, weights), state = problem(batch=2, steps=1000, dtype=torch.float32)
    step = torch.log(torch.tensor([1e-3, 0.1]))
    eigenvalues, factor = discretize(step, torch.full((2, 3), math.log(0.5)), math.pi * torch.arange(3.0).expand(2, 3))
    checks.assert_same(diagonal_ssm, diagonal_ssm_recurrent, [x], [eigenvalues, weights * factor], state, 1e-5)


@pytest.mark.usefixtures("chunk")
def test_first_and_second_derivatives_agree_with_finite_differences():
    timed, fixed, state = problem(batch=2, steps=4, width=1, pairs=2)
    tensors = [tensor.requires_grad_() for tensor in (*timed, *fixed, state)]

    def function(*inputs):
        return diagonal_ssm(*inputs, lengths=torch.tensor([4, 2]))

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.usefixtures("chunk")
def test_any_split_of_time_gives_one_pass():
    checks.assert_split(diagonal_ssm, *problem())


@pytest.mark.usefixtures("chunk")
def test_padding_is_inert():
    checks.assert_padding_is_inert(diagonal_ssm, *problem())


def test_bfloat16_and_autocast_compute_in_float32():
    checks.assert_half_precision(diagonal_ssm, *problem())


def test_replicas_under_vmap_equal_single_runs():
    checks.assert_vmap(diagonal_ssm, *problem(batch=2, steps=5))


def test_equals_the_convolution_with_the_vandermonde_kernel():
    (x,), (eigenvalues, weights), _ = problem(steps=40)
    powers = eigenvalues.unsqueeze(-1) ** torch.arange(40)
    kernel = 2 * (weights.unsqueeze(-1) * powers).sum(1).real
    y, _ = diagonal_ssm(x, eigenvalues, weights)
    for t in range(40):
        checks.close(y[:, t], (x[:, : t + 1].flip(1) * kernel[:, : t + 1].t()).sum(1))


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_discretisation_follows_the_differential_equation(method):
    step, rate = torch.rand(4, dtype=torch.float64) * 1e-3, torch.randn(4, 2, dtype=torch.float64)
    frequency = torch.randn(4, 2, dtype=torch.float64)
    eigenvalues, factor = discretize(step.log(), rate, frequency, method)
    A, dt = torch.complex(-rate.exp(), frequency), step.unsqueeze(-1)
    checks.close(eigenvalues, torch.exp(dt * A), 1e-7)
    checks.close(factor / dt, torch.exp(dt * A / 2), 1e-4)
    if method == "zoh":
        checks.close(factor, (torch.exp(dt * A) - 1) / A, 1e-12)
    else:
        checks.close(eigenvalues * (1 - dt * A / 2), 1 + dt * A / 2, 1e-14)


def test_the_hold_keeps_its_digits_for_short_steps_in_float32():
    _, factor = discretize(torch.tensor([-20.0]), torch.tensor([[math.log(0.5)]]), torch.tensor([[1.0]]))
    expected = math.exp(-20.0)
    assert abs(factor.item().real / expected - 1) < 1e-6


def test_another_discretisation_is_refused():
    with pytest.raises(ValueError, match=r"^method must be 'zoh' or 'bilinear', got 'euler'"):
        discretize(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1), "euler")


def test_an_eigenvalue_of_zero_has_values_and_gradients():
    (x,), (eigenvalues, weights), state = problem()
    eigenvalues[0, 0] = 0
    checks.assert_same(diagonal_ssm, diagonal_ssm_recurrent, [x], [eigenvalues, weights], state)


def test_the_final_state_can_be_left_out():
    timed, fixed, state = problem()
    y, final = diagonal_ssm(*timed, *fixed, state, return_final_state=False)
    assert final is None
    assert torch.equal(y, diagonal_ssm(*timed, *fixed, state)[0])


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.usefixtures("chunk")
def test_without_a_state_on_either_side_values_and_gradients_equal_the_definition(steps):
    timed, fixed, _ = problem(steps=steps)
    tensors = [tensor.requires_grad_() for tensor in (*timed, *fixed)]
    weights = torch.randn_like(timed[0])
    y, _ = diagonal_ssm(*tensors, return_final_state=False)
    expected, _ = diagonal_ssm_recurrent(*tensors)
    checks.close(y, expected, 1e-12)
    gradients, right = (torch.autograd.grad((out * weights).sum(), tensors) for out in (y, expected))
    for gradient, definition in zip(gradients, right, strict=True):
        checks.close(gradient, definition, 1e-11)


@pytest.mark.parametrize(("index", "name"), [(1, "eigenvalues"), (2, "output_weights"), (3, "initial_state")])
def test_a_shape_that_does_not_fit_is_named(index, name):
    timed, fixed, state = problem()
    tensors = [*timed, *fixed, state]
    tensors[index] = tensors[index][:-1]
    for function in (diagonal_ssm, diagonal_ssm_recurrent):
        with pytest.raises(ValueError, match=f"^{name} must have the shape"):
            function(*tensors)
