"""Rotations as complex numbers, and sums of angles over long inputs."""

import math

import torch

from hf_memory.ops.rotation import running_angles, turn_pairs


def test_pairs_turn_as_complex_numbers_and_the_others_stay():
    vectors, angles = torch.randn(2, 5, 7, dtype=torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)
    turned = turn_pairs(vectors, angles)
    numbers = torch.view_as_complex(vectors[..., :4].unflatten(-1, (2, 2)).contiguous())
    expected = torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    torch.testing.assert_close(turned[..., :4], expected, rtol=0, atol=1e-14)
    assert torch.equal(turned[..., 4:], vectors[..., 4:])
    assert torch.equal(turn_pairs(vectors, angles[..., :0]), vectors)


def test_a_million_half_turns_in_float32_end_where_they_started():
    angles = running_angles(torch.full((1, 1_000_000, 1), math.pi))
    assert angles.dtype == torch.float32
    exact = 1_000_000 * float(torch.tensor(math.pi))  # pi is rounded in float32 itself
    assert abs(math.sin(angles[0, -1, 0].item()) - math.sin(exact)) < 1e-6


def test_the_gradient_of_a_sum_reaches_every_step():
    turns = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(running_angles(5 * turns).sum(), turns)
    torch.testing.assert_close(grad, 5 * torch.arange(9.0, 0, -1).double().view(1, 9, 1).expand(2, 9, 3))
