"""Input-dependent transitions: both forms against their definition, and what the row norm promises."""

from functools import partial

import pytest
import torch

from hf_memory.ops.ids4 import (
    ids4_product,
    ids4_product_recurrent,
    ids4_spectrum,
    ids4_state,
    ids4_state_recurrent,
    transitions,
)
from tests.ops.cell_checks import (
    assert_compiles_without_unrolling,
    assert_function_transform,
    assert_half_precision,
    assert_lengths,
    assert_same,
    assert_same_on_gpu,
    assert_split,
    assert_vmap,
    real_parts_along,
)

FORMS = pytest.mark.parametrize("form", ["state", "product"])
OPTIONS = pytest.mark.parametrize("law, norm", [("residual", "row"), ("residual", "none"), ("gelu", "row")])
OPS = {"state": (ids4_state, ids4_state_recurrent), "product": (ids4_product, ids4_product_recurrent)}


def draw(form: str, time: int = 5, batch: int = 4, width: int = 3, size: int = 4, dtype: torch.dtype = torch.float64):
    x, weight = torch.randn(batch, time, width, dtype=dtype), torch.randn(width, size, size, dtype=dtype)
    if form == "state":
        return [x, torch.randn(batch, time, size, dtype=dtype), 0.4 * weight], [torch.randn(batch, size, dtype=dtype)]
    return [x, torch.randn(size, dtype=dtype), 0.4 * weight], [torch.randn(batch, size, size, dtype=dtype)]


def sliced(form: str, op):
    """The op as a function of inputs (B, T, ...) whose first tensor holds all that is cut in time."""
    if form == "product":
        return op

    def run(x, weight, initial_state=None, lengths=None):
        width = weight.shape[0]
        return op(x[..., :width], x[..., width:], weight, initial_state, lengths)

    return run


def joined(form: str, inputs):
    return inputs if form == "product" else [torch.cat(inputs[:2], dim=-1), inputs[2]]


@FORMS
@OPTIONS
@pytest.mark.parametrize("time, lengths", [(1, None), (7, None), (7, [0, 7, 3, 1])])
def test_chunks_match_the_definition_in_values_and_gradients(form, law, norm, time, lengths):
    run, definition = (partial(op, law=law, norm=norm) for op in OPS[form])
    assert_same(run, definition, *draw(form, time), None if lengths is None else torch.tensor(lengths))


@FORMS
def test_float32_stays_close_to_float64_over_several_chunks(form):
    assert_same(*OPS[form], *draw(form, 33, batch=2, size=128, dtype=torch.float32), tolerance=2e-5)


@FORMS
def test_initial_state_is_zero_or_the_identity(form):
    inputs, state = draw(form)
    start = torch.zeros_like(state[0]) if form == "state" else torch.eye(4, dtype=torch.float64).expand(4, 4, 4)
    for op in OPS[form]:
        torch.testing.assert_close(op(*inputs), op(*inputs, initial_state=start), rtol=0, atol=0)


@FORMS
def test_numerical_gradients_agree_for_every_input_and_the_state(form):
    inputs, state = draw(form, 4, batch=2, size=3)
    lengths = torch.tensor([4, 2])
    tensors = [tensor.requires_grad_() for tensor in (*inputs, *state)]
    assert torch.autograd.gradcheck(lambda *args: OPS[form][0](*args, lengths), tensors)


@FORMS
@pytest.mark.parametrize("lengths", [None, [0, 3, 5, 2]])
def test_pieces_continue_where_the_first_one_stopped(form, lengths):
    inputs, state = draw(form)
    lengths = None if lengths is None else torch.tensor(lengths)
    assert_split(sliced(form, OPS[form][0]), joined(form, inputs), state, lengths)


@FORMS
def test_final_state_is_that_of_the_row_cut_to_its_length(form):
    inputs, state = draw(form)
    assert_lengths(sliced(form, OPS[form][0]), joined(form, inputs), state, torch.tensor([0, 3, 5, 2]))


@FORMS
def test_half_precision_is_computed_in_float32(form):
    assert_half_precision(OPS[form][0], *draw(form))


@FORMS
def test_replicas_side_by_side_equal_one_after_the_other(form):
    inputs, state = draw(form)
    if form == "state":
        added = inputs.pop(1)
        run = lambda x, weight, initial_state: ids4_state(x, added, weight, initial_state)  # noqa: E731
    else:
        run = ids4_product
    assert_vmap(run, inputs, state)


@FORMS
def test_function_transforms_give_the_gradients_of_the_backward_pass(form):
    assert_function_transform(OPS[form][0], *draw(form))


def test_a_compiled_caller_does_not_unroll_the_loop():
    assert_compiles_without_unrolling(ids4_product, draw("product")[0])


@pytest.mark.gpu
@FORMS
def test_gpu_matches_the_definition_in_values_and_gradients(form):
    assert_same_on_gpu(*OPS[form], *draw(form), torch.tensor([0, 5, 3, 1]))


def test_row_norm_bounds_every_product_and_leaves_permutations():
    weight = torch.randn(1, 3, 6, 6, dtype=torch.float64)
    for law in ("residual", "gelu"):
        matrices = transitions(torch.randn(1, 200, 3, dtype=torch.float64), weight, law, "row")
        assert (matrices.abs().sum(-1) <= 1 + 1e-12).all()
    permutation = torch.eye(6, dtype=torch.float64)[torch.randperm(6)]
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    made = transitions(one, (permutation - torch.eye(6, dtype=torch.float64))[None, None], "residual", "row")
    assert torch.equal(made[0, 0], permutation)


def test_published_law_overflows_where_the_row_norm_stays_finite_over_512_steps():
    width, size = 64, 16
    x = torch.randn(2, 512, width)
    weight = torch.eye(size) + torch.randn(width, size, size) / size**0.5
    output, final = ids4_product(x, torch.randn(size), weight, law="gelu", norm="row")
    assert output.isfinite().all()
    assert final.abs().max() <= 1
    unbounded, _ = ids4_product(x, torch.randn(size), weight, law="gelu", norm="none")
    assert not unbounded.isfinite().all()


@OPTIONS
def test_spectrum_equals_the_jacobian_by_automatic_differentiation(law, norm):
    (x, added, weight), _ = draw("state", 6, batch=1)
    options = {"law": law, "norm": norm}
    got = ids4_spectrum(x, weight, **options)
    expected = real_parts_along(
        lambda column, h: ids4_state_recurrent(column, added[:, :1], weight, h[None], **options)[1][0],
        x,
        torch.zeros(4, dtype=torch.float64),
    )
    torch.testing.assert_close(got, expected[None], rtol=0, atol=1e-8)
    product = real_parts_along(
        lambda column, p: ids4_product_recurrent(column, added[0, 0], weight, p.view(1, 4, 4), **options)[1].flatten(),
        x[:, :1],
        torch.eye(4, dtype=torch.float64).flatten(),
    )
    torch.testing.assert_close(got[:, :1], product[None], rtol=0, atol=1e-4)


@FORMS
def test_memory_of_the_backward_pass_is_far_below_one_matrix_per_step(form):
    inputs, _ = draw(form, time=256, batch=2, size=64, dtype=torch.float32)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        OPS[form][0](*[tensor.requires_grad_() for tensor in inputs])
    assert sum(saved) < 256 * 2 * 64 * 64 / 4


@FORMS
def test_nan_in_the_input_reaches_the_later_outputs_of_its_row_only(form):
    inputs, _ = draw(form)
    inputs[0][1, 2, 0] = float("nan")
    output, final = OPS[form][0](*inputs)
    assert output[1, 2:].isnan().all()
    assert final[1].isnan().all()
    assert output[1, :2].isfinite().all()
    assert output[[0, 2, 3]].isfinite().all()


@FORMS
def test_unknown_options_raise(form):
    inputs, _ = draw(form)
    for field in ("law", "norm", "backend"):
        with pytest.raises(ValueError, match=f"{field} must be"):
            OPS[form][0](*inputs, **{field: "spectral"})
