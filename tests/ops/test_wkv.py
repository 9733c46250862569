"""The weighted average of RWKV-4 against its definition, other code, and the laws of a recurrence."""

import pytest
import torch
from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu

from hf_memory.ops.wkv import NO_EXPONENT, wkv, wkv_recurrent
from tests.ops import recurrence_checks as checks


def problem(batch=3, steps=7, width=4, dtype=torch.float64):
    """Keys and values, log decay and bonus, and a state with a positive denominator."""
    key, value = torch.randn(2, batch, steps, width, dtype=dtype)
    state = torch.randn(batch, 3, width, dtype=dtype)
    state[:, 1] = state[:, 1].abs() + 0.5
    return [key, value], [-torch.rand(width, dtype=dtype), torch.randn(width, dtype=dtype)], state


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_averages_final_state_and_gradients_equal_the_definition(steps):
    checks.assert_same(wkv, wkv_recurrent, *problem(steps=steps))


def test_float32_stays_within_1e_minus_5_over_a_thousand_steps():
    checks.assert_same(wkv, wkv_recurrent, *problem(batch=2, steps=1000, dtype=torch.float32), 1e-5)


def test_gradients_agree_with_finite_differences():
    timed, fixed, state = problem(batch=2, steps=4, width=2)
    tensors = [tensor.requires_grad_() for tensor in (*timed, *fixed, state)]
    assert torch.autograd.gradcheck(lambda *inputs: wkv(*inputs, lengths=torch.tensor([4, 2])), tensors)


def test_equals_the_sums_that_it_stands_for():
    (key, value), (w, u), _ = problem()
    y, state = wkv(key, value, w, u)
    for t in range(7):
        age = torch.arange(t - 1, -1, -1, dtype=key.dtype).view(-1, 1)
        weights = torch.cat([torch.exp(age * w + key[:, :t]), torch.exp(u + key[:, t : t + 1])], dim=1)
        checks.close(y[:, t], (weights * value[:, : t + 1]).sum(1) / weights.sum(1))
    age = torch.arange(6, -1, -1, dtype=key.dtype).view(-1, 1)
    weights = torch.exp(age * w + key)
    scale = state[:, 2].exp()
    checks.close(state[:, 0] * scale, (weights * value).sum(1))
    checks.close(state[:, 1] * scale, weights.sum(1))


def test_equals_the_loop_of_transformers():
    (key, value), (w, u), state = problem(dtype=torch.float32)
    expected, expected_state = rwkv_linear_attention_cpu(torch.log(-w), u, key, value, [*state.unbind(1)], True)
    y, final = wkv(key, value, w, u, state)
    checks.close(y, expected, 1e-6)
    checks.close(final, torch.stack(expected_state, dim=1), 1e-6)


def test_any_split_of_time_gives_one_pass():
    checks.assert_split(wkv, *problem())


def test_padding_is_inert():
    checks.assert_padding_is_inert(wkv, *problem())


def test_bfloat16_and_autocast_compute_in_float32():
    checks.assert_half_precision(wkv, *problem())


def test_replicas_under_vmap_equal_single_runs():
    checks.assert_vmap(wkv, *problem(batch=2, steps=5))


def test_the_first_average_is_the_first_value():
    (key, value), (w, u), _ = problem()
    y, _ = wkv(key, value, w, u)
    checks.close(y[:, 0], value[:, 0])


def test_no_tokens_leave_the_empty_state():
    (key, value), (w, u), _ = problem()
    _, state = wkv(key, value, w, u, lengths=torch.tensor([0, 1, 7]))
    assert state[0, :2].abs().max() == 0
    assert (state[0, 2] == NO_EXPONENT).all()
    checks.close(state[1], torch.stack([value[1, 0], torch.ones(4), key[1, 0]]))


@pytest.mark.parametrize("size", [100.0, -100.0, 3e4])
def test_large_keys_and_steep_decays_stay_finite_in_float32(size):
    (key, value), (w, u), _ = problem(steps=50, dtype=torch.float32)
    inputs = [tensor.requires_grad_() for tensor in (size * key, value, 20 * w, u)]
    y, state = wkv(*inputs)
    gradients = torch.autograd.grad(y.square().sum() + state[:, :2].sum(), inputs)
    assert y.abs().max() <= value.abs().max()
    assert all(tensor.isfinite().all() for tensor in (y, state, *gradients))


def test_a_second_derivative_is_refused_by_name():
    (key, value), fixed, _ = problem()
    y, _ = wkv(key.requires_grad_(), value, *fixed)
    (grad,) = torch.autograd.grad(y.square().sum(), key, create_graph=True)
    with pytest.raises(RuntimeError, match="wkv_recurrent"):
        grad.sum().backward()


@pytest.mark.parametrize(("index", "name"), [(1, "value"), (2, "log_decay"), (3, "bonus"), (4, "initial_state")])
def test_a_shape_that_does_not_fit_is_named(index, name):
    timed, fixed, state = problem()
    tensors = [*timed, *fixed, state]
    tensors[index] = tensors[index][..., :-1]
    for function in (wkv, wkv_recurrent):
        with pytest.raises(ValueError, match=f"^{name} must have the shape"):
            function(*tensors)


def test_inputs_are_left_as_they_were():
    timed, fixed, state = problem()
    before = [tensor.clone() for tensor in (*timed, *fixed, state)]
    wkv(*timed, *fixed, state, torch.tensor([0, 3, 7]))
    assert all(torch.equal(a, b) for a, b in zip((*timed, *fixed, state), before, strict=True))
