"""The long short-term memory: native kernel against definition, torch's own kernel, and automatic differentiation."""

import pytest
import torch

from hf_memory.ops.lstm import lstm, lstm_recurrent, lstm_spectrum
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
    shapes = [(batch, time, width), (4 * size, width), (4 * size, size), (4 * size,), (4 * size,)]
    return [0.7 * torch.randn(shape, dtype=dtype) for shape in shapes], [
        torch.randn(batch, size, dtype=dtype) for _ in "hc"
    ]


@pytest.mark.parametrize("time", [1, 2, 7])
@pytest.mark.parametrize("lengths", [None, [0, 1, 1, 1]])
def test_kernel_matches_the_definition_in_values_and_gradients(time, lengths):
    inputs, state = draw(time)
    lengths = None if lengths is None else torch.tensor(lengths) * torch.tensor([0, 1, max(1, time - 1), time])
    assert_same(lstm, lstm_recurrent, inputs, state, lengths)


def test_float32_stays_close_to_float64():
    inputs, state = draw(33, size=16, dtype=torch.float32)
    inputs[2] *= 0.3
    assert_same(lstm, lstm_recurrent, inputs, state, tolerance=1e-5)


@pytest.mark.parametrize("length", [1, 17])
def test_float32_holds_the_cells_past_a_length_exactly(length):
    inputs, state = draw(17, size=16, dtype=torch.float32)
    lengths = torch.tensor([0, length, 3, 17])
    assert_same(lstm, lstm_recurrent, inputs, state, lengths, tolerance=1e-5)
    _, (h, c) = lstm(*inputs, initial_state=tuple(state), lengths=lengths)
    assert torch.equal(h[0], state[0][0])
    assert torch.equal(c[0], state[1][0])


def test_numerical_gradients_agree_for_every_input_and_both_parts_of_the_state():
    inputs, state = draw(4, batch=2, size=3)
    lengths = torch.tensor([4, 2])
    tensors = [tensor.requires_grad_() for tensor in (*inputs, *state)]

    def run(*args):
        output, final = lstm(*args[:5], initial_state=args[5:], lengths=lengths)
        return output[0], output[1, :2], *final

    assert torch.autograd.gradcheck(run, tensors)


def test_equals_torch_lstm_with_the_same_weights(float64):
    reference = torch.nn.LSTM(3, 6, batch_first=True)
    x, h, c = torch.randn(4, 9, 3, requires_grad=True), torch.randn(4, 6), torch.randn(4, 6)
    expected, (expected_h, expected_c) = reference(x, (h[None], c[None]))
    output, final = lstm(x, *reference.parameters(), initial_state=(h, c))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(final, (expected_h[0], expected_c[0]), rtol=0, atol=1e-12)
    weights = [x, *reference.parameters()]
    for a, b in zip(
        torch.autograd.grad(output.sin().sum(), weights),
        torch.autograd.grad(expected.sin().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_float32_on_a_cpu_runs_in_one_kernel_for_all_steps():
    inputs, state = draw(12, dtype=torch.float32)
    with torch.profiler.profile() as profile:
        lstm(*inputs, initial_state=tuple(state), lengths=torch.tensor([0, 3, 5, 12]))
    names = [event.name for event in profile.events()]
    expected = "aten::mkldnn_rnn_layer" if torch.backends.mkldnn.is_available() else "aten::lstm"
    assert names.count(expected) == 1
    assert "aten::lstm_cell" not in names


@pytest.mark.parametrize("lengths", [None, [0, 3, 5, 2]])
def test_pieces_continue_where_the_first_one_stopped(lengths):
    assert_split(lstm, *draw(), None if lengths is None else torch.tensor(lengths))


def test_final_state_is_that_of_the_row_cut_to_its_length():
    assert_lengths(lstm, *draw(), torch.tensor([0, 3, 5, 2]))


def test_half_precision_is_computed_in_float32():
    assert_half_precision(lstm, *draw())


def test_replicas_side_by_side_equal_one_after_the_other():
    assert_vmap(lstm, *draw())


def test_spectrum_equals_the_jacobian_by_automatic_differentiation():
    (x, *weights), _ = draw(6, batch=1)
    expected = real_parts_along(
        lambda column, hc: torch.cat(lstm_recurrent(column, *weights, hc.view(2, 1, 6).unbind())[1], dim=1)[0],
        x,
        torch.zeros(12, dtype=torch.float64),
    )
    got = lstm_spectrum(x, *weights)
    torch.testing.assert_close(got, expected[None], rtol=0, atol=1e-9)


def test_bits_are_the_same_with_and_without_a_graph():
    inputs, state = draw(12, batch=3, width=16, size=16, dtype=torch.float32)
    output, final = lstm(*[tensor.requires_grad_() for tensor in inputs], initial_state=tuple(state))
    with torch.no_grad():
        again, again_final = lstm(*inputs, initial_state=tuple(state))
    assert torch.equal(output, again)
    assert all(torch.equal(a, b) for a, b in zip(final, again_final, strict=True))


def test_function_transforms_give_the_gradients_of_the_backward_pass():
    assert_function_transform(lstm, *draw())


def test_a_compiled_caller_does_not_unroll_the_loop():
    assert_compiles_without_unrolling(lstm, draw()[0])


@pytest.mark.gpu
def test_gpu_matches_the_definition_in_values_and_gradients():
    assert_same_on_gpu(lstm, lstm_recurrent, *draw(7, size=8), torch.tensor([0, 7, 3, 1]))


def test_arguments_are_left_as_they_were():
    inputs, state = draw()
    copies = [tensor.clone() for tensor in (*inputs, *state)]
    lstm(*inputs, initial_state=tuple(state), lengths=torch.tensor([0, 3, 5, 2]))
    assert all(torch.equal(a, b) for a, b in zip((*inputs, *state), copies, strict=True))


def test_nan_in_the_input_reaches_the_later_outputs_of_its_row_only():
    inputs, _ = draw()
    inputs[0][1, 2, 0] = float("nan")
    output, _ = lstm(*inputs)
    assert output[1, 2:].isnan().all()
    assert output[1, :2].isfinite().all()
    assert output[[0, 2, 3]].isfinite().all()


def test_unknown_backend_raises():
    inputs, _ = draw()
    with pytest.raises(ValueError, match="backend must be one of"):
        lstm(*inputs, backend="cuda")
