"""The diagonal scan against its definition, and its gradients against finite differences."""

import mambapy.pscan
import pytest
import torch

from hf_memory.ops.diagonal_scan import diagonal_scan, diagonal_scan_recurrent

BACKENDS = ("torch", "numba")
DTYPES = (torch.float64, torch.complex128)


def _problem(dtype, batch=3, time=7, channels=(4,), decay_axes=None):
    generator = torch.Generator().manual_seed(0)
    decay = torch.randn(*(decay_axes or (batch, time)), *channels, dtype=dtype, generator=generator)
    inputs = torch.randn(batch, time, *channels, dtype=dtype, generator=generator)
    initial = torch.randn(batch, *channels, dtype=dtype, generator=generator)
    return tuple(tensor.requires_grad_() for tensor in (decay, inputs, initial))


def _values_and_gradients(function, tensors, **options):
    states, final = function(*tensors, **options)
    weights = torch.linspace(-1, 1, states.numel(), dtype=torch.float64).view(states.shape)
    loss = (states * (weights + weights**2 * (1j if states.is_complex() else 1))).sum() + (final * final).sum()
    return states, final, *torch.autograd.grad(loss.real if loss.is_complex() else loss, tensors)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("time", [1, 2, 7])
@pytest.mark.parametrize("channels", [(), (4,), (3, 2)])
def test_states_final_state_and_every_gradient_equal_the_definition(backend, dtype, time, channels):
    tensors = _problem(dtype, time=time, channels=channels)
    for lengths in (None, torch.tensor([time, 0, (time + 1) // 2])):
        fast = _values_and_gradients(
            lambda *args, lengths=lengths: _only_real_steps(
                diagonal_scan(*args, lengths=lengths, backend=backend), lengths
            ),
            tensors,
        )
        slow = _values_and_gradients(
            lambda *args, lengths=lengths: _only_real_steps(diagonal_scan_recurrent(*args, lengths=lengths), lengths),
            tensors,
        )
        for left, right in zip(fast, slow, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def _only_real_steps(result, lengths):
    states, final = result
    if lengths is not None:
        running = torch.arange(states.shape[1]) < lengths[:, None]
        states = torch.where(running.view(*running.shape, *[1] * (states.ndim - 2)), states, 0)
    return states, final


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axes", [(1, 1), (3, 1), (1, 7)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_decay_shared_by_rows_or_steps_equals_the_repeated_one(backend, axes, dtype):
    tensors = _problem(dtype, decay_axes=axes)
    fast = _values_and_gradients(diagonal_scan, tensors, backend=backend)
    slow = _values_and_gradients(diagonal_scan_recurrent, tensors)
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [None, (1, 1)])
def test_first_and_second_derivatives_agree_with_finite_differences(backend, dtype, axes):
    tensors = _problem(dtype, batch=2, time=3, channels=(2,), decay_axes=axes or (2, 3))
    lengths = torch.tensor([3, 2])

    def function(*args):
        return diagonal_scan(*args, lengths=lengths, backend=backend)

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_handing_the_state_on_at_any_split_equals_one_pass(backend):
    decay, inputs, initial = (tensor.detach() for tensor in _problem(torch.complex128, time=6))
    whole, final = diagonal_scan(decay, inputs, initial, backend=backend)
    for cut in range(1, 6):
        first, state = diagonal_scan(decay[:, :cut], inputs[:, :cut], initial, backend=backend)
        second, last = diagonal_scan(decay[:, cut:], inputs[:, cut:], state, backend=backend)
        torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_equal_those_of_mambapy(backend):
    decay, inputs = torch.rand(2, 16, 3, 4), torch.randn(2, 16, 3, 4)
    states, _ = diagonal_scan(decay, inputs, backend=backend)
    torch.testing.assert_close(states, mambapy.pscan.pscan(decay, inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e-30])
def test_decays_of_zero_one_and_minus_one_are_exact(backend, value):
    inputs = torch.arange(1.0, 65.0).view(1, 64, 1)
    states, _ = diagonal_scan(torch.full((1, 1, 1), value), inputs, backend=backend)
    expected = {0.0: inputs, 1.0: inputs.cumsum(1), 1e-30: inputs}.get(value)
    if expected is None:
        signs = 1 - 2 * (torch.arange(64.0) % 2).view(1, 64, 1)
        expected = signs * (signs * inputs).cumsum(1)
    torch.testing.assert_close(states, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_reaches_later_steps_of_its_own_channel_only(backend):
    inputs = torch.ones(1, 5, 2)
    inputs[0, 2, 0] = torch.nan
    states, final = diagonal_scan(torch.full((1, 1, 2), 0.5), inputs, backend=backend)
    assert states.isnan().nonzero().tolist() == [[0, 2, 0], [0, 3, 0], [0, 4, 0]]
    assert final.isnan().tolist() == [[True, False]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(backend, dtype):
    states, final = diagonal_scan(
        torch.ones(1, 1, 1, dtype=dtype), torch.ones(1, 4096, 1, dtype=dtype), backend=backend
    )
    assert states.dtype == dtype
    assert final.dtype == torch.float32
    assert final.item() == 4096


def test_real_inputs_with_a_complex_decay_give_complex_states():
    decay = torch.polar(torch.tensor(1.0), torch.tensor(torch.pi / 2)).view(1, 1, 1)
    states, final = diagonal_scan(decay, torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1))
    torch.testing.assert_close(states.flatten(), torch.tensor([1, 1j, -1]), rtol=0, atol=1e-6)
    assert final.dtype == torch.complex64


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_are_left_as_they_were(backend):
    tensors = [tensor.detach() for tensor in _problem(torch.float64)]
    copies = [tensor.clone() for tensor in tensors]
    states, final = diagonal_scan(*tensors, backend=backend)
    diagonal_scan(tensors[0], tensors[1], final, backend=backend)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(tensor, copy)
    assert torch.equal(states[:, -1], final)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (None, 1, 0), (0, None, None)])
def test_a_stack_of_replicas_equals_each_replica_alone(backend, in_dims):
    decay, inputs, initial = (tensor.detach() for tensor in _problem(torch.float64))
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    stacked = [
        tensor if axis is None else torch.stack([scale * tensor for scale in scales], axis)
        for tensor, axis in zip((decay, inputs, initial), in_dims, strict=True)
    ]

    def loss(*args):
        states, final = diagonal_scan(*args, backend=backend)
        return (states**2).sum() + (final**3).sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims)(*stacked)
    for index in range(3):
        alone = [
            tensor if axis is None else tensor.select(axis, index)
            for tensor, axis in zip(stacked, in_dims, strict=True)
        ]
        for left, right in zip(gradients, torch.func.grad(loss, argnums=(0, 1, 2))(*alone), strict=True):
            torch.testing.assert_close(left[index], right, rtol=1e-11, atol=1e-11)


def test_shapes_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ValueError, match="decay must have shape"):
        diagonal_scan(torch.ones(2, 5, 3), torch.ones(2, 6, 3))
    with pytest.raises(ValueError, match="initial_state must have shape"):
        diagonal_scan(torch.ones(2, 6, 3), torch.ones(2, 6, 3), torch.ones(2, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_does_not_reach_the_state(backend):
    decay, inputs, initial = (tensor.detach().float() for tensor in _problem(torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, final = diagonal_scan(decay, inputs, initial, backend=backend)
    expected, expected_final = diagonal_scan_recurrent(decay, inputs, initial)
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(final, expected_final, rtol=1e-5, atol=1e-5)
