"""The non-saturating recurrent unit: factored loop against the definition, and what its heads do."""

import math
from functools import partial

import pytest
import torch

from hf_memory.ops.backends.dispatch import resolve_backend, use_backend
from hf_memory.ops.nru import nru, nru_recurrent, nru_spectrum
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
    values_and_gradients,
)

OPTIONS = [
    {"num_heads": 2},
    {"num_heads": 2, "reduce": "sum"},
    {"num_heads": 2, "relu_gains": True},
    {"num_heads": 2, "relu_directions": True},
    {"num_heads": 1},
    {"num_heads": 4},
]
LOOPS = pytest.mark.usefixtures("loop")
MEMORY = {1: 9, 2: 8, 4: 9}  # 4 * 9 is a square whose side 6 is no multiple of 4


@pytest.fixture(params=["torch", "numba"])
def loop(request):
    with use_backend(request.param):
        assert resolve_backend("nru", "auto", device=torch.device("cpu"), dtype=torch.float64) == request.param
        yield


def draw(num_heads=2, time=5, batch=4, width=3, size=5, memory=None, norm=False, dtype=torch.float64):
    memory = memory or MEMORY[num_heads]
    gates = 2 * num_heads + 4 * math.isqrt(num_heads * memory)
    shapes = [(batch, time, width), (size, width), (size,), (size, size + memory), (gates, size + memory), (gates,)]
    inputs = [0.5 * torch.randn(shape, dtype=dtype) for shape in shapes + [(size,)] * (2 * norm)]
    return inputs, [torch.rand(batch, size, dtype=dtype), torch.randn(batch, memory, dtype=dtype)]


@LOOPS
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("time, lengths", [(1, None), (6, [0, 6, 3, 1])])
def test_loop_matches_the_definition_in_values_and_gradients(options, norm, time, lengths):
    inputs, state = draw(options["num_heads"], time, norm=norm)
    lengths = None if lengths is None else torch.tensor(lengths)
    assert_same(partial(nru, **options), partial(nru_recurrent, **options), inputs, state, lengths)


@LOOPS
def test_float32_stays_close_to_float64():
    inputs, state = draw(4, 17, size=16, memory=16, norm=True, dtype=torch.float32)
    # Larger weights make the net chaotic: the definition in float32 is then as far from float64 as the loop.
    inputs[3:6] = [0.1 * weight for weight in inputs[3:6]]
    assert_same(nru, nru_recurrent, inputs, state, tolerance=1e-5)


@LOOPS
@pytest.mark.parametrize("norm", [False, True])
def test_numerical_gradients_agree_for_every_input_and_both_parts_of_the_state(norm):
    inputs, state = draw(1, 3, batch=2, width=2, size=3, memory=4, norm=norm)
    lengths = torch.tensor([3, 1])
    tensors = [tensor.requires_grad_() for tensor in (*inputs, *state)]

    def run(*args):
        output, final = nru(*args[:-2], initial_state=args[-2:], lengths=lengths, num_heads=1)
        return output, *final

    assert torch.autograd.gradcheck(run, tensors)


@LOOPS
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_one_step_equals_the_equations_written_out_head_by_head(reduce):
    (x, w, b, u, g, b_g), (h, m) = draw(2, time=1, batch=1)
    _, (new_h, new_m) = nru(x, w, b, u, g, b_g, initial_state=(h, m), num_heads=2, reduce=reduce)
    hidden = (w @ x[0, 0] + b + u @ torch.cat([h[0], m[0]])).clamp(min=0)
    gates = g @ torch.cat([hidden, m[0]]) + b_g
    change = torch.zeros(8, dtype=torch.float64)
    for sign, gains, p, q in ((1, gates[:2], gates[4:8], gates[12:16]), (-1, gates[2:4], gates[8:12], gates[16:20])):
        rows = torch.outer(p, q).reshape(2, 8)
        for head in range(2):
            change += sign * gains[head] * rows[head] / (rows[head].abs() ** 5).sum() ** 0.2
    torch.testing.assert_close(new_h[0], hidden, rtol=0, atol=1e-12)
    torch.testing.assert_close(new_m[0], m[0] + (change / 2 if reduce == "mean" else change), rtol=0, atol=1e-12)


@LOOPS
@pytest.mark.parametrize("lengths", [None, [0, 3, 5, 2]])
def test_pieces_continue_where_the_first_one_stopped(lengths):
    assert_split(partial(nru, num_heads=2), *draw(), None if lengths is None else torch.tensor(lengths))


@LOOPS
def test_final_state_is_that_of_the_row_cut_to_its_length():
    assert_lengths(partial(nru, num_heads=2), *draw(), torch.tensor([0, 3, 5, 2]))


@LOOPS
@pytest.mark.parametrize("norm", [False, True])
def test_half_precision_is_computed_in_float32(norm):
    assert_half_precision(partial(nru, num_heads=2), *draw(norm=norm))


@LOOPS
@pytest.mark.parametrize("norm", [False, True])
def test_replicas_side_by_side_equal_one_after_the_other(norm):
    assert_vmap(partial(nru, num_heads=2), *draw(norm=norm))


@pytest.mark.parametrize("norm", [False, True])
def test_spectrum_equals_the_jacobian_by_automatic_differentiation(norm):
    (x, *weights), _ = draw(batch=1, norm=norm)
    if not norm:
        weights += [None, None]

    def step(column, state):
        pair = nru_recurrent(column, *weights, (state[None, :5], state[None, 5:]), num_heads=2)[1]
        return torch.cat(pair, dim=-1)[0]

    expected = real_parts_along(step, x, torch.zeros(13, dtype=torch.float64))
    torch.testing.assert_close(nru_spectrum(x, *weights, num_heads=2), expected[None], rtol=0, atol=1e-8)


@LOOPS
@pytest.mark.parametrize("options", [{}, {"relu_directions": True}])
def test_vanishing_directions_give_no_update_and_finite_gradients(options):
    inputs, state = draw()
    inputs[4][4:] = 0
    inputs[5][4:] = 0
    for op in (nru, nru_recurrent):
        _, (_, memory) = op(*inputs, initial_state=tuple(state), num_heads=2, **options)
        assert torch.equal(memory, state[1])
        results = values_and_gradients(partial(op, num_heads=2, **options), inputs, state, None)
        assert all(result.isfinite().all() for result in results)


@LOOPS
def test_directions_whose_fifth_power_leaves_float32_keep_their_meaning():
    inputs, state = draw(dtype=torch.float32)
    inputs[4][4:] *= 1e9
    inputs[5][4:] *= 1e9
    assert_same(
        partial(nru, num_heads=2), partial(nru_recurrent, num_heads=2), inputs[:1] + inputs[1:], state, None, 1e-4
    )


@LOOPS
def test_function_transforms_give_the_gradients_of_the_backward_pass():
    assert_function_transform(partial(nru, num_heads=2), *draw(norm=True))


@LOOPS
def test_a_compiled_caller_does_not_unroll_the_loop():
    assert_compiles_without_unrolling(partial(nru, num_heads=2), draw()[0])


@pytest.mark.gpu
@pytest.mark.parametrize("norm", [False, True])
def test_gpu_matches_the_definition_in_values_and_gradients(norm):
    run, definition = (partial(op, num_heads=2) for op in (nru, nru_recurrent))
    assert_same_on_gpu(run, definition, *draw(norm=norm), torch.tensor([0, 5, 3, 1]))


@LOOPS
def test_arguments_are_left_as_they_were():
    inputs, state = draw(norm=True)
    copies = [tensor.clone() for tensor in (*inputs, *state)]
    nru(*inputs, initial_state=tuple(state), lengths=torch.tensor([0, 3, 5, 2]), num_heads=2)
    assert all(torch.equal(a, b) for a, b in zip((*inputs, *state), copies, strict=True))


@LOOPS
def test_nan_in_the_input_reaches_the_later_outputs_of_its_row_only():
    inputs, _ = draw()
    inputs[0][1, 2, 0] = float("nan")
    output, (_, memory) = nru(*inputs, num_heads=2)
    assert output[1, 2:].isnan().all()
    assert memory[1].isnan().all()
    assert output[1, :2].isfinite().all()
    assert output[[0, 2, 3]].isfinite().all()


def test_bad_arguments_raise():
    inputs, _ = draw()
    with pytest.raises(ValueError, match="must be a square, got 3 \\* 8"):
        nru(*inputs, num_heads=3)
    with pytest.raises(ValueError, match="weight_memory must have 20 rows, got 19"):
        nru(*inputs[:4], inputs[4][:-1], inputs[5], num_heads=2)
    with pytest.raises(ValueError, match="reduce must be"):
        nru(*inputs, num_heads=2, reduce="max")
    with pytest.raises(ValueError, match="backend must be one of"):
        nru(*inputs, num_heads=2, backend="cuda")
