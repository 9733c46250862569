"""The long convolution against its definition and the laws of a recurrence with a growing state."""

import pytest
import torch

from hf_memory.ops.long_convolution import count_tokens, fast_fft_size, long_convolution, long_convolution_recurrent
from tests.ops import recurrence_checks as checks


def problem(batch=3, steps=7, width=2, taps=20, past=4, dtype=torch.float64):
    """Inputs, filters, and a history."""
    x, kernel = torch.randn(batch, steps, width, dtype=dtype), torch.randn(width, taps, dtype=dtype)
    return [x], [kernel], torch.randn(batch, past, width, dtype=dtype)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("taps", [2, 5, 40])
@pytest.mark.parametrize("past", [1, 4, 12])
def test_outputs_history_and_gradients_equal_the_definition(steps, taps, past):
    checks.assert_same(long_convolution, long_convolution_recurrent, *problem(steps=steps, taps=taps, past=past))


def test_float32_stays_within_1e_minus_5_of_a_direct_sum_over_a_thousand_steps():
    (x,), (kernel,), state = problem(batch=2, steps=1000, taps=1100, dtype=torch.float32)
    window = torch.cat([state, x], dim=1).double().mT
    padded = torch.nn.functional.pad(window, (1099, 0))
    expected = torch.nn.functional.conv1d(padded, kernel.double().flip(1).unsqueeze(1), groups=2)
    y, _ = long_convolution(x, kernel, state)
    checks.close(y.double(), expected[..., 4:].mT, 1e-5)


def test_first_and_second_derivatives_agree_with_finite_differences():
    timed, fixed, state = problem(batch=2, steps=4, width=1, taps=3, past=1)
    tensors = [tensor.requires_grad_() for tensor in (*timed, *fixed, state)]

    def function(*inputs):
        return long_convolution(*inputs, lengths=torch.tensor([4, 2]))

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("taps", [5, 9, 40])
def test_any_split_of_time_gives_one_pass(taps):
    checks.assert_split(long_convolution, *problem(taps=taps))


def test_padding_is_inert():
    timed, fixed, state = problem(taps=5)
    checks.assert_padding_is_inert(long_convolution, timed, fixed, state)


def test_padding_gets_no_gradient_at_all():
    (x,), (kernel,), state = problem()
    lengths = torch.tensor([0, 3, 7])
    y, _ = long_convolution(x.requires_grad_(), kernel, state, lengths)
    checks.up_to(lengths, y).square().sum().backward()
    assert checks.up_to(lengths, x.grad).equal(x.grad)
    assert x.grad[2].abs().min() > 0


def test_bfloat16_and_autocast_compute_in_float32():
    checks.assert_half_precision(long_convolution, *problem())


def test_replicas_under_vmap_equal_single_runs():
    checks.assert_vmap(long_convolution, *problem(batch=2, steps=5))


def test_the_history_of_short_rows_begins_with_zeros():
    (x,), (kernel,), _ = problem()
    _, history = long_convolution(x, kernel, lengths=torch.tensor([0, 3, 7]))
    assert history.shape == (3, 7, 2)
    assert history[0].abs().max() == 0
    checks.close(history[1], torch.cat([torch.zeros(4, 2), x[1, :3]]), 0)
    checks.close(history[2], x[2], 0)


def test_the_history_is_no_longer_than_the_filter_can_see_unless_it_is_told():
    (x,), (kernel,), state = problem(taps=5)
    assert long_convolution(x, kernel, state)[1].shape[1] == 4
    assert long_convolution(x, kernel, state, max_history=9)[1].shape[1] == 9
    assert long_convolution(x, kernel, state, max_history=90)[1].shape[1] == 11
    assert long_convolution(x, kernel, state, return_final_state=False)[1] is None


def test_a_filter_of_one_tap_scales_its_input():
    (x,), (kernel,), state = problem(taps=1)
    y, history = long_convolution(x, kernel, state)
    checks.close(y, x * kernel[:, 0])
    assert history.shape == (3, 0, 2)


def test_fft_sizes_are_the_next_even_products_of_two_three_and_five():
    smooth = sorted(2**a * 3**b * 5**c for a in range(1, 11) for b in range(7) for c in range(5))
    for size in range(1, 1000):
        assert fast_fft_size(size) == next(number for number in smooth if number >= size)


def test_tokens_are_counted_per_row_up_to_the_length_of_the_filter():
    counts = torch.tensor([0, 6])
    assert count_tokens(counts, 6, 2, None, 8, "field").tolist() == [2, 8]
    assert count_tokens(counts, 6, 9, torch.tensor([8, 2]), 8, "field").tolist() == [8, 8]
    for steps, lengths in ((3, None), (3, torch.tensor([0, 3])), (9, torch.tensor([9, 0]))):
        with pytest.raises(ValueError, match=r"^field=8 is the length of the filter, and a row has 9 tokens"):
            count_tokens(counts, 6, steps, lengths, 8, "field")
    # A history that is full does not tell how many tokens came before it.
    with pytest.raises(ValueError, match="9 tokens"):
        count_tokens(torch.tensor([8]), 7, 1, None, 8, "field")


@pytest.mark.parametrize(("index", "name"), [(1, "kernel"), (2, "initial_state")])
def test_a_shape_that_does_not_fit_is_named(index, name):
    timed, fixed, state = problem()
    tensors = [*timed, *fixed, state]
    tensors[index] = tensors[index][:-1]
    for function in (long_convolution, long_convolution_recurrent):
        with pytest.raises(ValueError, match=f"^{name} must have the shape"):
            function(*tensors)
