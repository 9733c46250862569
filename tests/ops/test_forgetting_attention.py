"""Attention with forget gates against its definition, and what becomes of its digits over long inputs."""

import pytest
import torch
from torch.nn import functional as F

from hf_memory.ops.attention import attention_recurrent, attention_weights
from hf_memory.ops.forgetting_attention import forgetting_attention


def _problem(time, history, heads=3, size=4):
    torch.manual_seed(time + history)
    shapes = [(2, time, heads, size), *[(2, history + time, heads, size)] * 2, (2, history + time, heads)]
    query, key, value, gate = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    tensors = [tensor.requires_grad_() for tensor in (query, key, value, F.logsigmoid(gate).cumsum(1))]
    # Gaps between positions, a row whose history starts later, and one that is padded on its right.
    positions = 3 * torch.arange(history + time).expand(2, -1) // 2
    keys = positions.clone()
    keys[0, : history // 2], keys[1, history + 5 :] = -1, -1
    return tensors, positions[:, history:], keys


@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize("size", [None, 1, 2, 3, 7])
@pytest.mark.parametrize(("time", "history"), [(1, 0), (1, 5), (7, 0), (7, 5)])
def test_blocks_match_the_definition_with_gradients(window, size, time, history):
    tensors, queries, keys = _problem(time, history)
    real = torch.ones(2, time, 1, 1, dtype=torch.float64)
    real[1, 5:] = 0
    query, key, value, decay = tensors
    slow = attention_recurrent(query, key, value, queries, keys, None, window, decay=decay)
    fast = forgetting_attention(query, key, value, queries, keys, decay, window, size)
    results = []
    for output in (slow, fast):
        output = output.nan_to_num() * real
        weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
        results.append((output, *torch.autograd.grad((output * weight).sum(), tensors)))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


def test_gates_weigh_values_by_the_product_of_those_that_lie_between():
    gates = torch.sigmoid(torch.randn(1, 6, 1, dtype=torch.float64))
    query = torch.zeros(1, 6, 1, 4, dtype=torch.float64)
    value, steps = torch.randn(1, 6, 1, 4, dtype=torch.float64), torch.arange(6)[None]
    output = forgetting_attention(query, query, value, steps, steps, gates.log().cumsum(1))
    for t in range(6):
        weights = torch.stack([gates[0, s + 1 : t + 1, 0].prod() for s in range(t + 1)])
        expected = (weights[:, None] * value[0, : t + 1, 0]).sum(0) / weights.sum()
        torch.testing.assert_close(output[0, t, 0], expected, atol=1e-14, rtol=0)


def test_the_weights_that_are_looked_at_are_those_that_sum_the_values():
    (query, key, value, decay), queries, keys = _problem(7, 5)
    weights = attention_weights(query, key, queries, keys, None, 4, decay=decay)
    expected = forgetting_attention(query, key, value, queries, keys, decay, 4)
    torch.testing.assert_close(torch.einsum("bhts,bshv->bthv", weights, value), expected, atol=1e-12, rtol=0)


def test_replicas_run_side_by_side():
    tensors, queries, keys = _problem(6, 2)
    stacked = [torch.stack([tensor.detach(), 2 * tensor.detach()]) for tensor in tensors]

    def loss(query, key, value, decay):
        return forgetting_attention(query, key, value, queries, keys, decay, 3, 2).square().sum()

    every = (0, 1, 2, 3)
    together = torch.vmap(torch.func.grad(loss, argnums=every))(*stacked)
    for replica in range(2):
        alone = torch.func.grad(loss, argnums=every)(*[tensor[replica] for tensor in stacked])
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[replica], theirs, atol=1e-12, rtol=0)


def test_digits_of_float32_are_kept_where_thousands_of_gates_lie_before():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 8, 1, 4) for _ in range(3))
    gates, steps = F.logsigmoid(torch.randn(1, 8, 1)).double(), torch.arange(8)[None]
    start = forgetting_attention(query, key, value, steps, steps, gates.cumsum(1))
    late = forgetting_attention(query, key, value, steps, steps, gates.cumsum(1) - 50_000)
    torch.testing.assert_close(late, start, atol=1e-6, rtol=0)


def test_sums_of_another_shape_are_refused():
    (query, key, value, decay), queries, keys = _problem(7, 5)
    with pytest.raises(ValueError, match="decay must have the shape"):
        forgetting_attention(query, key, value, queries, keys, decay[:, 1:])
