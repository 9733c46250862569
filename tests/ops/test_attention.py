"""The fused attention against its definition, and position codes against published code."""

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from hf_memory.ops.attention import alibi_slopes, attention, attention_recurrent, attention_weights, rotate

CASES = {
    "plain": {},
    "window": {"window": 3},
    "alibi": {"alibi": True},
    "alibi and window": {"alibi": True, "window": 4},
    "no normaliser": {"normalize": False},
    "no normaliser, alibi and window": {"normalize": False, "alibi": True, "window": 4},
}


def inputs(time, history, heads=3, size=4):
    torch.manual_seed(time + history)
    shapes = ((2, time, heads, size), (2, history + time, heads, size), (2, history + time, heads, size))
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    queries = torch.arange(history, history + time).expand(2, -1)
    keys = torch.arange(history + time).expand(2, -1)
    return tensors, queries, keys


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("time", "history"), [(1, 0), (1, 5), (7, 0), (7, 5)])
def test_fused_attention_matches_the_definition_with_gradients(case, time, history):
    options = CASES[case]
    tensors, queries, keys = inputs(time, history)
    slopes = alibi_slopes(3) if options.get("alibi") else None
    window, normalize = options.get("window"), options.get("normalize", True)
    results = []
    for function, extra in ((attention_recurrent, {}), (attention, {"is_causal": history == 0})):
        output = function(*tensors, queries, keys, slopes, window, normalize=normalize, **extra)
        weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
        results.append((output, torch.autograd.grad((output * weight).sum(), tensors)))
    (expected, expected_grads), (actual, grads) = results
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_weights_that_are_looked_at_are_those_that_sum_the_values(case):
    options = CASES[case]
    (query, key, value), queries, keys = inputs(7, 5)
    slopes = alibi_slopes(3) if options.get("alibi") else None
    window, normalize = options.get("window"), options.get("normalize", True)
    weights = attention_weights(query, key, queries, keys, slopes, window, normalize)
    expected = attention_recurrent(query, key, value, queries, keys, slopes, window, normalize)
    torch.testing.assert_close(torch.einsum("bhts,bshv->bthv", weights, value), expected, atol=1e-12, rtol=0)
    hidden = attention_weights(query, key, queries, torch.full_like(keys, -1), slopes, window, normalize)
    assert not hidden.any()


@pytest.mark.parametrize("slopes", [None, alibi_slopes(3)])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_query_that_sees_nothing_stays_finite(slopes, normalize):
    tensors, queries, keys = inputs(4, 0)
    output = attention(*tensors, queries, torch.full_like(keys, -1), slopes, normalize=normalize)
    output.sum().backward()
    assert torch.isfinite(output).all()
    assert all(torch.isfinite(tensor.grad).all() for tensor in tensors)


def test_without_the_normaliser_softmax_differs_by_the_sum_of_the_weights():
    tensors, queries, keys = inputs(6, 0)
    ones = torch.ones_like(tensors[2])
    plain = attention(*tensors, queries, keys, is_causal=True)
    sums = attention(*tensors, queries, keys, normalize=False)
    weights = attention(*tensors[:2], ones, queries, keys, normalize=False)
    torch.testing.assert_close(sums / weights, plain, atol=1e-12, rtol=0)


def test_large_scores_of_the_future_do_not_reach_the_gradient():
    tensors, queries, keys = inputs(4, 0)
    with torch.no_grad():
        tensors[0][:] = 1
        tensors[1][:, :3], tensors[1][:, 3:] = 0.1, 1e4
    output = attention(tensors[0][:, :3], *tensors[1:], queries[:, :3], keys, normalize=False)
    output.sum().backward()
    assert torch.isfinite(output).all()
    assert all(torch.isfinite(tensor.grad).all() for tensor in tensors)


def test_rotation_is_that_of_llama():
    config = LlamaConfig(hidden_size=24, num_attention_heads=3)
    query, key = torch.randn(2, 9, 3, 8), torch.randn(2, 9, 3, 8)
    positions = torch.arange(5, 14).expand(2, -1)
    cos, sin = LlamaRotaryEmbedding(config)(query, positions)
    theirs = getattr(apply_rotary_pos_emb, "__wrapped__", apply_rotary_pos_emb)(query, key, cos, sin, unsqueeze_dim=2)
    for ours, expected in zip(
        (rotate(query, positions, 10_000.0), rotate(key, positions, 10_000.0)), theirs, strict=True
    ):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)


def test_rotation_depends_on_distances_alone_and_leaves_an_odd_channel():
    query, key = torch.randn(2, 1, 1, 1, 5, dtype=torch.float64).unbind(0)

    def score(first, second):
        at = torch.tensor([[first]]), torch.tensor([[second]])
        return (rotate(query, at[0], 10.0) * rotate(key, at[1], 10.0)).sum()

    torch.testing.assert_close(score(7, 3), score(104, 100), atol=1e-5, rtol=0)
    assert rotate(query, torch.tensor([[9]]), 10.0)[..., 4] == query[..., 4]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12])
def test_slopes_are_those_of_bloom_and_mpt(heads):
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), bloom, atol=1e-7, rtol=0)
    if heads & (heads - 1) == 0:
        mpt = build_mpt_alibi_tensor(heads, 2)[..., 1].flatten() - build_mpt_alibi_tensor(heads, 2)[..., 0].flatten()
        torch.testing.assert_close(alibi_slopes(heads), mpt, atol=1e-7, rtol=0)


def test_alibi_attention_is_that_of_bloom():
    (query, key, value), queries, keys = inputs(6, 0, heads=4)
    bias = build_alibi_tensor(torch.ones(2, 6), 4, torch.float64).view(2, 4, 1, 6)
    scores = torch.einsum("bthk,bshk->bhts", query, key) / math.sqrt(4) + bias
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    expected = torch.einsum("bhts,bshv->bthv", scores.softmax(-1), value)
    torch.testing.assert_close(
        attention(query, key, value, queries, keys, alibi_slopes(4)), expected, atol=1e-10, rtol=0
    )
