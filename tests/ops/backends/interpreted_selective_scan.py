"""The Triton kernels of the selective scan against the definition; see ``interpreted_scan.py`` for how they are run."""

import pytest
import torch

from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.selective_scan import selective_scan, selective_scan_recurrent

ROWS = 2


def problem(time, channels, size, dtype=torch.float64):
    """x, dt, A, B, C and an initial state."""
    wide, narrow = (ROWS, time, channels), (ROWS, time, size)
    x, B, C, state = (torch.randn(shape, dtype=dtype) for shape in (wide, narrow, narrow, (ROWS, channels, size)))
    dt, A = torch.rand(wide, dtype=dtype), -torch.rand(channels, size, dtype=dtype)
    return [tensor.requires_grad_() for tensor in (x, dt, A, B, C, state)]


def values_and_gradients(function, tensors, lengths, **options):
    y, state = function(*tensors, lengths=lengths, **options)
    if lengths is not None:
        y = y * (torch.arange(y.shape[1]) < lengths[:, None]).unsqueeze(-1)
    weights = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
    return [y, state, *torch.autograd.grad((y * weights).sum() + state.square().sum(), tensors)]


def compare(tensors, lengths=None, tolerance=1e-12, **options):
    fast = values_and_gradients(selective_scan, tensors, lengths, backend="triton", **options)
    slow = values_and_gradients(selective_scan_recurrent, tensors, lengths, **options)
    for actual, expected in zip(fast, slow, strict=True):
        scale = expected.abs().max().clamp_min(1)
        torch.testing.assert_close(actual / scale, expected / scale, rtol=0, atol=tolerance)


@pytest.fixture(autouse=True)
def _kernels_run():
    """The kernels are interpreted and are those that run."""
    assert load_kernel("selective_scan", "triton").INTERPRETED
    facts = {"device": torch.device("cpu"), "dtype": torch.float64}
    assert resolve_backend("selective_scan", "triton", **facts) == "triton"


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("time", [1, 16, 33])
def test_outputs_final_state_and_gradients_equal_the_definition(time, negative):
    compare(problem(time, 3, 5), negative_eigenvalues=negative)


def test_channels_and_states_fill_several_programs():
    compare(problem(5, 40, 16))
    compare(problem(3, 3, 1))


def test_rows_end_at_their_own_length():
    compare(problem(18, 3, 4), torch.tensor([18, 0]))
    compare(problem(18, 3, 4), torch.tensor([5, 17]))


def test_single_precision_is_exact_to_rounding():
    compare(problem(9, 3, 4, torch.float32), tolerance=2e-6)


def test_the_state_handed_on_at_a_split_gives_one_pass():
    x, dt, A, B, C, state = (tensor.detach() for tensor in problem(20, 3, 4))
    whole, final = selective_scan(x, dt, A, B, C, state, backend="triton")
    for cut in (1, 16, 17):
        pieces = []
        carried = state
        for span in (slice(0, cut), slice(cut, None)):
            y, carried = selective_scan(x[:, span], dt[:, span], A, B[:, span], C[:, span], carried, backend="triton")
            pieces.append(y)
        torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(carried, final, rtol=1e-12, atol=1e-12)


def test_a_stack_of_replicas_equals_each_replica_alone():
    tensors = [tensor.detach() for tensor in problem(4, 3, 2)]
    stacked = [torch.stack([tensor, 0.5 * tensor]) for tensor in tensors]

    def loss(*inputs):
        y, state = selective_scan(*inputs, backend="triton")
        return y.square().sum() + state.square().sum()

    arguments = tuple(range(len(tensors)))
    together = torch.func.vmap(torch.func.grad(loss, argnums=arguments))(*stacked)
    for replica in range(2):
        alone = torch.func.grad(loss, argnums=arguments)(*(tensor[replica] for tensor in stacked))
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left[replica], right, rtol=1e-11, atol=1e-11)
