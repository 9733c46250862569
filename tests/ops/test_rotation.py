"""Rotations as complex numbers, and sums of angles over long inputs."""

import math

import pytest
import torch
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from hf_memory.ops.rotation import rotate, running_angles, turn_pairs

BACKENDS = ("torch", "numba")


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_rotation_is_that_of_llama(backend):
    config = LlamaConfig(hidden_size=24, num_attention_heads=3)
    query, key = torch.randn(2, 9, 3, 8), torch.randn(2, 9, 3, 8)
    positions = torch.arange(5, 14).expand(2, -1)
    cos, sin = LlamaRotaryEmbedding(config)(query, positions)
    theirs = getattr(apply_rotary_pos_emb, "__wrapped__", apply_rotary_pos_emb)(query, key, cos, sin, unsqueeze_dim=2)
    for part, expected in zip((query, key), theirs, strict=True):
        torch.testing.assert_close(rotate(part, positions, 10_000.0, backend), expected, atol=1e-6, rtol=0)


def test_rotation_depends_on_distances_alone_and_leaves_an_odd_channel():
    query, key = torch.randn(2, 1, 1, 1, 5, dtype=torch.float64).unbind(0)

    def score(first, second):
        at = torch.tensor([[first]]), torch.tensor([[second]])
        return (rotate(query, at[0], 10.0) * rotate(key, at[1], 10.0)).sum()

    torch.testing.assert_close(score(7, 3), score(104, 100), atol=1e-5, rtol=0)
    assert rotate(query, torch.tensor([[9]]), 10.0)[..., 4] == query[..., 4]


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_compiled_rotation_is_that_in_torch_with_first_and_second_gradients(size):
    vectors = torch.randn(3, 7, 2, size, dtype=torch.float64, requires_grad=True)
    positions = torch.stack([torch.arange(4, 11), torch.arange(7), torch.tensor([0, 0, 0, 1, 2, 3, 4])])
    weights = torch.randn(3, 7, 2, size, dtype=torch.float64)
    results = []
    for backend in BACKENDS:
        turned = rotate(vectors, positions, 50.0, backend)
        (first,) = torch.autograd.grad((turned**3 * weights).sum(), vectors, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), vectors)
        results.append((turned, first, second))
    for expected, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_stacks_turn_in_torch():
    vectors, positions = torch.randn(4, 2, 3, 1, 6), torch.arange(3).expand(2, -1)
    together = torch.vmap(lambda own: rotate(own, positions, 10.0))(vectors)
    torch.testing.assert_close(together, torch.stack([rotate(own, positions, 10.0, "torch") for own in vectors]))


def test_many_gradients_of_a_rotation_at_once_are_those_one_by_one():
    vectors, positions = torch.randn(1, 2, 1, 4, dtype=torch.float64, requires_grad=True), torch.arange(2)[None]
    turned, basis = rotate(vectors, positions, 10.0, "numba"), torch.eye(8, dtype=torch.float64).view(8, 1, 2, 1, 4)
    (together,) = torch.autograd.grad(turned, vectors, basis, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(turned, vectors, one, retain_graph=True)[0] for one in basis]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-12, atol=1e-12)
