"""The root mean square norm against its definition."""

import pytest
import torch

from hf_memory.mixers._gates import GroupedNorm
from hf_memory.models.layers import RMSNorm
from hf_memory.ops.rms_norm import rms_norm, rms_norm_recurrent

BACKENDS = ("torch", "numba")


def draw(shape, with_weight, dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    return x, torch.randn(shape[-1], dtype=dtype, requires_grad=True) if with_weight else None


def results(function, x, weight, **options):
    """Outputs, first gradients and second gradients."""
    inputs = [tensor for tensor in (x, weight) if tensor is not None]
    output = function(x, weight, 1e-3, **options)
    first = torch.autograd.grad((output**3).sum(), inputs, create_graph=True)
    return output, *first, *torch.autograd.grad(sum((grad**2).sum() for grad in first), inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("with_weight", [False, True])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 1), (2, 3, 4), (129, 7), (3, 2, 70)])
def test_outputs_and_two_orders_of_gradients_are_those_of_the_definition(shape, with_weight, backend):
    tensors = draw(shape, with_weight)
    both = results(rms_norm, *tensors, backend=backend), results(rms_norm_recurrent, *tensors)
    for ours, expected in zip(*both, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("with_weight", [False, True])
def test_compiled_gradients_without_a_graph_are_those_of_the_definition(with_weight):
    tensors = draw((200, 33), with_weight)
    wanted = [tensor for tensor in tensors if tensor is not None]
    ours, expected = (
        torch.autograd.grad((function(*tensors, 1e-3, **options) ** 3).sum(), wanted)
        for function, options in ((rms_norm, {"backend": "numba"}), (rms_norm_recurrent, {}))
    )
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_compiled_loops_are_as_exact_as_torch_in_float32(scale):
    x, weight = draw((64, 8, 96), True, torch.float32)
    x = (x.detach() * scale).requires_grad_()
    exact = rms_norm(x.detach().double(), weight.detach().double(), 1e-5, "torch")
    ours = rms_norm(x, weight, 1e-5, "numba")
    torch.testing.assert_close(ours.double(), exact, rtol=2e-6, atol=2e-6 * exact.abs().max().item())
    grads = [torch.autograd.grad(rms_norm(x, weight, 1e-5, b).sin().sum(), (x, weight)) for b in BACKENDS]
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_rows_without_columns_in_memory_order_and_no_rows_at_all():
    x = torch.randn(6, 5).T
    torch.testing.assert_close(rms_norm(x, backend="numba"), rms_norm(x, backend="torch"))
    assert rms_norm(torch.zeros(0, 3, 4), backend="numba").shape == (0, 3, 4)
    assert not rms_norm(torch.zeros(2, 4), backend="numba").any()


def test_many_gradients_at_once_are_those_one_by_one():
    x, weight = draw((4, 3), True)
    output = rms_norm(x, weight, backend="numba")
    basis = torch.eye(12, dtype=torch.float64).view(12, 4, 3)
    together = torch.autograd.grad(output, (x, weight), basis, is_grads_batched=True, retain_graph=True)
    for index, one in enumerate(basis):
        alone = torch.autograd.grad(output, (x, weight), one, retain_graph=True)
        torch.testing.assert_close([grads[index] for grads in together], list(alone), rtol=1e-12, atol=1e-12)


def test_half_precision_and_stacks_stay_with_torch():
    norm, x = RMSNorm(8), torch.randn(3, 8)
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    gains = torch.randn(2, 8)
    together = torch.vmap(lambda own: rms_norm(x, own))(gains)
    torch.testing.assert_close(together, torch.stack([rms_norm(x, own, backend="torch") for own in gains]))


def test_groups_are_normalised_on_their_own():
    norm, x = GroupedNorm(12, 1e-5, 3), torch.randn(4, 12)
    torch.testing.assert_close(norm(x), torch.cat([rms_norm_recurrent(part) for part in x.split(4, 1)], 1))
