"""The Triton kernels of the NRU against the definition; see ``interpreted_scan.py`` for how they are run."""

from functools import partial

import pytest
import torch

from hf_memory.ops._nru_loop import NORM_FLOOR
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.nru import nru, nru_recurrent
from tests.ops.cell_checks import assert_same, assert_split, assert_vmap
from tests.ops.test_nru import draw

OPTIONS = [
    {"num_heads": 2},
    {"num_heads": 2, "reduce": "sum"},
    {"num_heads": 2, "relu_gains": True},
    {"num_heads": 1},
    {"num_heads": 3, "memory": 27},
]


@pytest.fixture(autouse=True)
def _kernels_run():
    """The kernels are interpreted and are those that run."""
    assert load_kernel("nru", "triton").INTERPRETED
    facts = {"device": torch.device("cpu"), "dtype": torch.float64}
    assert resolve_backend("nru", "triton", **facts) == "triton"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("norm", [False, True])
def test_values_and_gradients_equal_the_definition(options, norm):
    options = dict(options)
    inputs, state = draw(options["num_heads"], 4, memory=options.pop("memory", None), norm=norm)
    lengths = torch.tensor([4, 0, 3, 1])
    fast, slow = partial(nru, backend="triton", **options), partial(nru_recurrent, **options)
    assert_same(fast, slow, inputs, state, lengths)


def test_the_memory_of_the_published_size_fills_one_tile():
    inputs, state = draw(4, 2, batch=2, memory=64, norm=True)
    fast, slow = partial(nru, backend="triton"), nru_recurrent
    assert_same(fast, slow, inputs, state)


def test_single_precision_is_exact_to_rounding():
    inputs, state = draw(2, 5, dtype=torch.float32)
    assert_same(partial(nru, backend="triton", num_heads=2), partial(nru_recurrent, num_heads=2), inputs, state,
                tolerance=1e-5)  # fmt: skip


@pytest.mark.parametrize("length", [0.0, 1e-4 * NORM_FLOOR, 1e10])
def test_directions_that_vanish_or_are_huge_keep_finite_gradients(length):
    inputs, state = draw(2, 3)
    inputs[4] = torch.zeros_like(inputs[4])
    inputs[5] = torch.full_like(inputs[5], length)
    inputs[5][:4] = 1.0
    fast, slow = partial(nru, backend="triton", num_heads=2), partial(nru_recurrent, num_heads=2)
    outputs = fast(*[tensor.requires_grad_() for tensor in inputs], initial_state=tuple(state))
    gradients = torch.autograd.grad(outputs[0].sum() + outputs[1][1].sum(), inputs, allow_unused=True)
    expected = slow(*inputs, initial_state=tuple(state))
    torch.testing.assert_close(outputs[1], expected[1], rtol=1e-10, atol=1e-10)
    assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)


def test_batches_of_gradients_read_what_belongs_to_them():
    inputs, state = draw(2, 2, batch=1, size=2, memory=8)

    def outputs(weight, backend):
        changed = [*inputs[:4], weight, *inputs[5:]]
        return nru(*changed, initial_state=tuple(state), backend=backend, num_heads=2)[0]

    fast, slow = (torch.func.jacrev(outputs)(inputs[4], backend) for backend in ("triton", "torch"))
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)


def test_the_state_handed_on_and_stacks_of_replicas():
    inputs, state = draw(2, 3, batch=1, size=3, memory=18)
    assert_split(partial(nru, backend="triton", num_heads=2), inputs, state)
    assert_vmap(partial(nru, backend="triton", num_heads=2), inputs, state)
