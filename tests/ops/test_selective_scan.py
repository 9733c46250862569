"""The selective scan against its definition, other code, and the laws of a recurrence."""

import pytest
import torch
from mambapy.pscan import pscan
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

from hf_memory.ops import selective_scan as module
from hf_memory.ops.selective_scan import selective_scan, selective_scan_recurrent
from tests.ops import recurrence_checks as checks

SIGNS = pytest.mark.parametrize("negative", [False, True])


def problem(batch=3, steps=7, width=4, size=3, dtype=torch.float64):
    """Timed inputs x, dt, B and C, the rates A, and a state."""
    draws = torch.randn(3, batch, steps, max(width, size), dtype=dtype)
    x, B, C = draws[0, ..., :width], draws[1, ..., :size], draws[2, ..., :size]
    dt = torch.rand(batch, steps, width, dtype=dtype)
    A = -3 * torch.rand(width, size, dtype=dtype) - 0.1
    return [x, dt, B, C], [A], torch.randn(batch, width, size, dtype=dtype)


def ordered(function, negative=False):
    """The function with its rates after the timed inputs."""
    return lambda x, dt, B, C, A, **options: function(x, dt, A, B, C, negative_eigenvalues=negative, **options)


@pytest.fixture(params=[(1, 2), (1 << 18, 16)], ids=["short blocks", "one block"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_NUMEL", request.param[0])
    monkeypatch.setattr(module, "_BLOCK_STEPS", request.param[1])


@SIGNS
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.usefixtures("blocks")
def test_outputs_final_state_and_gradients_equal_the_definition(negative, steps):
    fast, slow = ordered(selective_scan, negative), ordered(selective_scan_recurrent, negative)
    checks.assert_same(fast, slow, *problem(steps=steps))


@SIGNS
def test_float32_stays_within_1e_minus_5_over_a_thousand_steps(negative):
    timed, fixed, state = problem(batch=2, steps=1000, dtype=torch.float32)
    fast, slow = ordered(selective_scan, negative), ordered(selective_scan_recurrent, negative)
    checks.assert_same(fast, slow, timed, fixed, state, 1e-5)


@SIGNS
def test_gradients_agree_with_finite_differences(negative):
    timed, fixed, state = problem(batch=2, steps=3, width=2, size=2)
    tensors = [tensor.requires_grad_() for tensor in (*timed, *fixed, state)]

    def function(*inputs):
        return ordered(selective_scan, negative)(*inputs[:5], initial_state=inputs[5], lengths=torch.tensor([3, 2]))

    assert torch.autograd.gradcheck(function, tensors)


@SIGNS
@pytest.mark.usefixtures("blocks")
def test_any_split_of_time_gives_one_pass(negative):
    checks.assert_split(ordered(selective_scan, negative), *problem())


@SIGNS
def test_padding_is_inert(negative):
    checks.assert_padding_is_inert(ordered(selective_scan, negative), *problem())


def test_bfloat16_and_autocast_compute_in_float32():
    checks.assert_half_precision(ordered(selective_scan), *problem())


@pytest.mark.usefixtures("blocks")
def test_replicas_under_vmap_equal_single_runs():
    checks.assert_vmap(ordered(selective_scan), *problem(batch=2, steps=5))


def test_equals_the_scan_of_transformers():
    (x, dt, B, C), (A,), _ = problem(dtype=torch.float32)
    expected, expected_state = mamba_selective_scan(x.mT, dt.mT, A, B.mT, C.mT, return_last_state=True)
    y, state = selective_scan(x, dt, A, B, C)
    checks.close(y, expected.mT, 1e-6)
    checks.close(state, expected_state, 1e-6)


def test_signed_decays_equal_the_parallel_scan_of_mambapy():
    (x, dt, B, C), (A,), _ = problem(steps=13)
    decay = 2 * torch.exp(dt.unsqueeze(-1) * A) - 1
    states = pscan(decay, (dt * x).unsqueeze(-1) * B.unsqueeze(2))
    y, state = selective_scan(x, dt, A, B, C, negative_eigenvalues=True)
    checks.close(y, (states * C.unsqueeze(2)).sum(-1))
    checks.close(state, states[:, -1])


@SIGNS
def test_a_step_of_zero_length_is_the_identity(negative):
    (x, dt, B, C), (A,), state = problem()
    _, final = selective_scan(x, 0 * dt, A, B, C, state, negative_eigenvalues=negative)
    checks.close(final, state, 0)


def test_a_long_negative_step_flips_the_sign_of_the_state():
    (x, dt, B, C), (A,), state = problem(steps=1)
    _, final = selective_scan(0 * x, dt + 1e3, A, B, C, state, negative_eigenvalues=True)
    checks.close(final, -state, 0)


def test_nan_propagates_to_later_steps_only():
    (x, dt, B, C), (A,), _ = problem()
    x[0, 3, 1] = torch.nan
    y, state = selective_scan(x, dt, A, B, C)
    assert y[:, :3].isfinite().all()
    assert y[0, 3:, 1].isnan().all()
    assert state[0, 1].isnan().all()
    assert state[1:].isfinite().all()


def test_a_second_derivative_is_refused_by_name():
    timed, fixed, state = problem()
    x = timed[0].requires_grad_()
    y, _ = ordered(selective_scan)(x, *timed[1:], *fixed, initial_state=state)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="selective_scan_recurrent"):
        grad.sum().backward()


@pytest.mark.parametrize(("index", "name"), [(1, "dt"), (2, "A"), (3, "B"), (4, "C"), (5, "initial_state")])
def test_a_shape_that_does_not_fit_is_named(index, name):
    (x, dt, B, C), (A,), state = problem()
    tensors = [x, dt, A, B, C, state]
    tensors[index] = tensors[index][:, :-1] if name != "A" else A[:-1]
    for function in (selective_scan, selective_scan_recurrent):
        with pytest.raises(ValueError, match=f"^{name} must have the shape"):
            function(*tensors)


def test_inputs_are_left_as_they_were():
    timed, fixed, state = problem()
    before = [tensor.clone() for tensor in (*timed, *fixed, state)]
    ordered(selective_scan)(*timed, *fixed, initial_state=state, lengths=torch.tensor([0, 3, 7]))
    assert all(torch.equal(a, b) for a, b in zip((*timed, *fixed, state), before, strict=True))


def test_what_is_kept_for_the_backward_pass_is_a_small_part_of_all_states():
    timed, fixed, state = problem(batch=2, steps=512, width=8, size=16, dtype=torch.float32)
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ordered(selective_scan)(timed[0].requires_grad_(), *timed[1:], *fixed, initial_state=state)
    assert 0 < sum(kept.values()) < 2 * 512 * 8 * 16 / 2
