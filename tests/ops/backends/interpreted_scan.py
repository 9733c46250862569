"""The Triton kernels of the diagonal scan against the definition; run by ``test_triton_scan.py`` under interpretation.

The interpreter must be on when Triton is imported, so these tests have a process of their own. They call the kernels
through the public function, and so include its gradients, its lengths and its rule for replicas.
"""

import pytest
import torch

from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.diagonal_scan import diagonal_scan, diagonal_scan_recurrent

WIDE = (torch.float64, torch.complex128)


def problem(dtype, time, channels, axes=None, batch=2):
    """Decays of any sign and size, inputs and an initial state, all with gradients."""
    shapes = ((*(axes or (batch, time)), *channels), (batch, time, *channels), (batch, *channels))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def values_and_gradients(function, tensors, lengths=None, **options):
    states, final = function(*tensors, lengths=lengths, **options)
    if lengths is not None:
        real = torch.arange(states.shape[1]) < lengths[:, None]
        states = states * real.view(*real.shape, *[1] * (states.ndim - 2))
    weights = torch.linspace(-1, 1, states.numel()).view(states.shape).to(states.dtype)
    weights = weights * (1 + 2j) if states.is_complex() else weights
    loss = (states * weights).sum() + (final * final).sum()
    loss = loss.real if loss.is_complex() else loss
    return [states, final, *torch.autograd.grad(loss, tensors)]


def compare(tensors, lengths=None, tolerance=1e-12):
    fast = values_and_gradients(diagonal_scan, tensors, lengths, backend="triton")
    slow = values_and_gradients(diagonal_scan_recurrent, tensors, lengths)
    for actual, expected in zip(fast, slow, strict=True):
        scale = expected.abs().max().clamp_min(1)
        torch.testing.assert_close(actual / scale, expected / scale, rtol=0, atol=tolerance)


@pytest.fixture(autouse=True)
def _kernels_run():
    """The kernels are interpreted and are those that run."""
    kernel = load_kernel("diagonal_scan", "triton")
    assert kernel.INTERPRETED
    assert resolve_backend("diagonal_scan", "triton", device=torch.device("cpu"), dtype=torch.float64) == "triton"


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("time", [1, 2, 5])
@pytest.mark.parametrize("channels", [(), (3,), (5, 14)])
def test_states_final_state_and_gradients_equal_the_definition(dtype, time, channels):
    compare(problem(dtype, time, channels))


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("axes", [(1, 1), (2, 1), (1, 5)])
def test_a_decay_shared_by_rows_or_steps_equals_the_repeated_one(dtype, axes):
    compare(problem(dtype, 5, (3,), axes))


@pytest.mark.parametrize("dtype", WIDE)
def test_rows_end_at_their_own_length(dtype):
    compare(problem(dtype, 5, (3,), batch=3), torch.tensor([5, 0, 2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_single_precision_is_exact_to_rounding(dtype):
    compare(problem(dtype, 9, (3,)), tolerance=1e-6)


@pytest.mark.parametrize("dtype", WIDE)
def test_first_and_second_derivatives_agree_with_finite_differences(dtype):
    tensors = problem(dtype, 2, (1,), batch=1)

    def function(*inputs):
        return diagonal_scan(*inputs, backend="triton")

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_decays_above_one_do_not_overflow_where_the_states_do_not():
    decay, inputs = torch.full((1, 1, 1), 1e30), torch.zeros(1, 5, 1)
    inputs[:, -1] = 1
    states, final = diagonal_scan(decay, inputs, backend="triton")
    assert states.flatten().tolist() == [0, 0, 0, 0, 1]
    assert final.item() == 1


def test_half_precision_accumulates_in_float32():
    ones = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    states, final = diagonal_scan(ones, ones.expand(1, 300, 1), backend="triton")
    assert (states.dtype, final.dtype, final.item()) == (torch.bfloat16, torch.float32, 300)


def test_conjugated_and_strided_arguments_are_read_as_they_stand():
    decay, inputs, initial = (tensor.detach() for tensor in problem(torch.complex128, 4, (3,)))
    strided = inputs.transpose(0, 1).contiguous().transpose(0, 1)
    states, _ = diagonal_scan(decay.conj(), strided, initial.conj(), backend="triton")
    expected, _ = diagonal_scan_recurrent(decay.conj().resolve_conj(), inputs, initial.conj().resolve_conj())
    torch.testing.assert_close(states, expected, rtol=1e-12, atol=1e-12)


def test_a_stack_of_replicas_equals_each_replica_alone():
    tensors = [tensor.detach() for tensor in problem(torch.float64, 4, (3,))]
    stacked = [torch.stack([tensor, -0.5 * tensor]) for tensor in tensors]

    def loss(*inputs):
        states, final = diagonal_scan(*inputs, backend="triton")
        return states.square().sum() + final.pow(3).sum()

    together = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*stacked)
    for replica in range(2):
        alone = torch.func.grad(loss, argnums=(0, 1, 2))(*(tensor[replica] for tensor in stacked))
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left[replica], right, rtol=1e-11, atol=1e-11)
