"""The gated recurrent unit: fast loop against definition, torch's own kernel, and automatic differentiation."""

import pytest
import torch

from hf_memory.ops._cells import native_rnn, one_block
from hf_memory.ops.gru import gru, gru_recurrent, gru_spectrum
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


def draw(time: int = 5, batch: int = 4, width: int = 3, size: int = 6, dtype: torch.dtype = torch.float64):
    shapes = [(batch, time, width), (3 * size, width), (3 * size, size), (3 * size,), (3 * size,)]
    inputs = [0.7 * torch.randn(shape, dtype=dtype) for shape in shapes]
    return inputs, [torch.randn(batch, size, dtype=dtype)]


@pytest.mark.parametrize("time", [1, 2, 7])
@pytest.mark.parametrize("lengths", [None, [0, 1, 1, 1]])
def test_loop_matches_the_definition_in_values_and_gradients(time, lengths):
    inputs, state = draw(time)
    lengths = None if lengths is None else torch.tensor(lengths) * torch.tensor([0, 1, max(1, time - 1), time])
    assert_same(gru, gru_recurrent, inputs, state, lengths)


def test_float32_stays_close_to_float64():
    inputs, state = draw(33, size=16, dtype=torch.float32)
    inputs[2] *= 0.3
    assert_same(gru, gru_recurrent, inputs, state, tolerance=1e-5)


def test_numerical_gradients_agree_for_every_input_and_the_state():
    inputs, state = draw(4, batch=2, size=3)
    tensors = [tensor.requires_grad_() for tensor in (*inputs, *state)]
    assert torch.autograd.gradcheck(gru, tensors)


def test_equals_torch_gru_with_the_same_weights(float64):
    reference = torch.nn.GRU(3, 6, batch_first=True)
    x, h = torch.randn(4, 9, 3, requires_grad=True), torch.randn(4, 6)
    expected, expected_final = reference(x, h[None])
    output, final = gru(x, *reference.parameters(), initial_state=h)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(final, expected_final[0], rtol=0, atol=1e-12)
    weights = [x, *reference.parameters()]
    for a, b in zip(
        torch.autograd.grad(output.sin().sum(), weights),
        torch.autograd.grad(expected.sin().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_kernel_for_gpus_takes_the_same_arguments_in_the_same_order():
    (x, *weights), (h,) = draw()
    output, final = native_rnn("gru", x, (h,), one_block(weights))
    expected, expected_final = gru_recurrent(x, *weights, h)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(final, expected_final, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, [0, 3, 5, 2]])
def test_pieces_continue_where_the_first_one_stopped(lengths):
    assert_split(gru, *draw(), None if lengths is None else torch.tensor(lengths))


def test_final_state_is_that_of_the_row_cut_to_its_length():
    assert_lengths(gru, *draw(), torch.tensor([0, 3, 5, 2]))


def test_half_precision_is_computed_in_float32():
    assert_half_precision(gru, *draw())


def test_replicas_side_by_side_equal_one_after_the_other():
    assert_vmap(gru, *draw())


def test_spectrum_equals_the_jacobian_by_automatic_differentiation():
    (x, *weights), _ = draw(6, batch=1)
    expected = real_parts_along(
        lambda column, h: gru_recurrent(column, *weights, h[None])[1][0],
        x,
        torch.zeros(6, dtype=torch.float64),
    )
    got = gru_spectrum(x, *weights)
    torch.testing.assert_close(got, expected[None], rtol=0, atol=1e-9)


def test_function_transforms_give_the_gradients_of_the_backward_pass():
    assert_function_transform(gru, *draw())


def test_a_compiled_caller_does_not_unroll_the_loop():
    assert_compiles_without_unrolling(gru, draw()[0])


@pytest.mark.gpu
def test_gpu_matches_the_definition_in_values_and_gradients():
    assert_same_on_gpu(gru, gru_recurrent, *draw(7, size=8), torch.tensor([0, 7, 3, 1]))


def test_arguments_are_left_as_they_were():
    inputs, state = draw()
    copies = [tensor.clone() for tensor in (*inputs, *state)]
    gru(*inputs, initial_state=state[0], lengths=torch.tensor([0, 3, 5, 2]))
    assert all(torch.equal(a, b) for a, b in zip((*inputs, *state), copies, strict=True))


def test_nan_in_the_input_reaches_the_later_outputs_of_its_row_only():
    inputs, _ = draw()
    inputs[0][1, 2, 0] = float("nan")
    output, _ = gru(*inputs)
    assert output[1, 2:].isnan().all()
    assert output[1, :2].isfinite().all()
    assert output[[0, 2, 3]].isfinite().all()


def test_unknown_backend_raises():
    inputs, _ = draw()
    with pytest.raises(ValueError, match="backend must be one of"):
        gru(*inputs, backend="cuda")
