"""The Triton kernel of the input-dependent S4 against the definition; see ``interpreted_scan.py`` for how it is run."""

from functools import partial

import pytest
import torch

from hf_memory.ops import _ids4_loop
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from tests.ops.cell_checks import assert_same, assert_split, assert_vmap
from tests.ops.test_ids4 import FORMS, OPS, OPTIONS, draw, joined, sliced


@pytest.fixture(autouse=True)
def _kernel_runs():
    """The kernel is interpreted and is what runs."""
    assert load_kernel("ids4", "triton").INTERPRETED
    facts = {"device": torch.device("cpu"), "dtype": torch.float64}
    assert resolve_backend("ids4", "triton", **facts, state_size=128) == "triton"
    assert resolve_backend("ids4", "triton", **facts, state_size=129) == "torch"


@FORMS
@OPTIONS
@pytest.mark.parametrize("time, lengths", [(1, None), (7, [0, 7, 3, 1])])
def test_values_and_gradients_equal_the_definition(form, law, norm, time, lengths):
    fast, definition = (partial(op, law=law, norm=norm) for op in OPS[form])
    lengths = None if lengths is None else torch.tensor(lengths)
    assert_same(partial(fast, backend="triton"), definition, *draw(form, time, size=5), lengths)


@FORMS
def test_several_chunks_and_a_size_that_fills_no_tile(form, monkeypatch):
    monkeypatch.setattr(_ids4_loop, "_chunks", lambda x, size: [slice(0, 3), slice(3, 5)])
    fast, definition = OPS[form]
    assert_same(partial(fast, backend="triton"), definition, *draw(form, 5, batch=1, size=33))


@FORMS
def test_single_precision_is_exact_to_rounding(form):
    fast, definition = OPS[form]
    assert_same(partial(fast, backend="triton"), definition, *draw(form, dtype=torch.float32), tolerance=1e-5)


@FORMS
def test_the_state_handed_on_and_stacks_of_replicas(form):
    run = partial(OPS[form][0], backend="triton")
    inputs, state = draw(form, 3, batch=2, size=3)
    assert_split(sliced(form, run), joined(form, inputs), state)
    assert_vmap(run, inputs, state)


@FORMS
def test_more_states_than_a_program_holds_are_left_to_torch(form, monkeypatch):
    kernel, (fast, definition) = load_kernel("ids4", "triton"), OPS[form]
    monkeypatch.setattr(kernel, "MOST_STATES", 3)
    monkeypatch.delattr(kernel, "run")
    monkeypatch.delattr(kernel, "run_back")
    assert_same(partial(fast, backend="triton"), definition, *draw(form, size=4))
