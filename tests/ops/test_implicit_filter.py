"""Implicit filters against a loop over positions written from the equations."""

import cmath
import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from hf_memory.ops.implicit_filter import decay_window, implicit_filter, position_features


def problem(features=5, size=4, width=3, hidden=2):
    shapes = [(size, features), *[(size, size)] * hidden, (width, size)]
    weights = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    biases = [torch.randn(size, dtype=torch.float64) for _ in shapes[:-1]]
    return weights, biases, torch.rand(size, dtype=torch.float64) + 0.5


def layers(weights, biases):
    """The linear layers as functions."""
    return [partial(F.linear, weight=w, bias=b) for w, b in zip(weights, [*biases, None], strict=True)]


def test_taps_equal_a_loop_over_positions():
    (weights, biases, frequency), longest, width = problem(), 11, 3
    taps = implicit_filter(7, longest, 5, layers(weights, biases), frequency)
    assert taps.shape == (width, 7)
    for i in range(7):
        turns = [cmath.exp(-2j * math.pi * band * i / longest) for band in (1e-4, 1.0)]
        features = [i / (longest - 1), *(z.real for z in turns), *(z.imag for z in turns)]
        hidden = torch.tensor(features, dtype=torch.float64)
        for weight, bias in zip(weights[:-1], biases, strict=True):
            hidden = torch.sin(frequency * (weight @ hidden + bias))
        for d in range(width):
            delta = math.log(100) * (1 / 1.5 + (1 / 0.3 - 1 / 1.5) * d / (width - 1))
            expected = (weights[-1] @ hidden)[d] * math.exp(-delta * i / (longest - 1))
            torch.testing.assert_close(taps[d, i], expected, rtol=1e-12, atol=1e-12)


def test_fewer_taps_are_the_first_ones():
    weights, biases, frequency = problem()
    whole = implicit_filter(11, 11, 5, layers(weights, biases), frequency)
    torch.testing.assert_close(implicit_filter(4, 11, 5, layers(weights, biases), frequency), whole[:, :4])


def test_the_window_falls_to_one_hundredth_between_three_tenths_and_one_and_a_half_times_the_length():
    window = decay_window(1001, 1001, 2, "cpu", torch.float64)
    assert window[0].tolist() == [1.0, 1.0]
    assert math.isclose(window[300, 1].item(), 1e-2, rel_tol=1e-9)
    assert math.isclose(window[1000, 0].item(), 1e-2 ** (1 / 1.5), rel_tol=1e-9)


def test_autocast_leaves_the_filter_in_float32():
    weights, biases, frequency = problem()
    weights, biases, frequency = [w.float() for w in weights], [b.float() for b in biases], frequency.float()
    with torch.autocast("cpu", torch.bfloat16):
        taps = implicit_filter(5, 9, 5, layers(weights, biases), frequency)
    assert taps.dtype == torch.float32
    assert torch.equal(taps, implicit_filter(5, 9, 5, layers(weights, biases), frequency))


def test_half_precision_layers_are_called_in_their_precision_and_the_rest_is_computed_in_float32():
    weights, biases, frequency = problem()
    narrow = [[tensor.bfloat16() for tensor in group] for group in (weights, biases, [frequency])]
    wide = [[tensor.float() for tensor in group] for group in narrow]
    taps = implicit_filter(5, 9, 5, layers(*narrow[:2]), narrow[2][0])
    assert taps.dtype == torch.float32
    expected = implicit_filter(5, 9, 5, layers(*wide[:2]), wide[2][0])
    assert 0 < (taps - expected).norm() < 0.05 * expected.norm()


def test_a_filter_for_one_token_is_finite():
    weights, biases, frequency = problem()
    assert implicit_filter(1, 1, 5, layers(weights, biases), frequency).isfinite().all()


def test_more_taps_than_the_filter_has_are_refused():
    weights, biases, frequency = problem()
    with pytest.raises(ValueError, match=r"^num_taps must be at most longest=9, got 10"):
        implicit_filter(10, 9, 5, layers(weights, biases), frequency)


@pytest.mark.parametrize("number", [1, 4])
def test_an_even_or_too_small_number_of_features_is_refused(number):
    with pytest.raises(ValueError, match=rf"^num_features must be odd and at least 3, got {number}"):
        position_features(3, 9, number, "cpu", torch.float64)
