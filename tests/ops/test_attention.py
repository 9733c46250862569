"""The fused attention against its definition, and position codes against published code."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from hf_memory.ops._attention_blocks import BLOCK_NUMBERS, block_size, blocks
from hf_memory.ops.attention import alibi_slopes, attention, attention_recurrent, attention_weights

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


@pytest.mark.parametrize("case", [*CASES, "window of one", "window beyond the sequence"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("history", [0, 5])
def test_blocks_match_the_definition_with_gradients(case, size, history):
    options = {"window of one": {"window": 1}, "window beyond the sequence": {"window": 50}, **CASES}[case]
    tensors, queries, keys = inputs(7, history)
    # Gaps between positions, a row whose history starts later, and one that is padded on its right.
    queries, keys = (3 * positions // 2 for positions in (queries, keys))
    keys = keys.clone()
    keys[0, : history // 2], keys[1, history + 5 :] = -1, -1
    slopes = alibi_slopes(3) if options.get("alibi") else None
    window, normalize = options.get("window"), options.get("normalize", True)
    real = torch.ones(2, 7, 1, 1, dtype=torch.float64)
    real[1, 5:] = 0
    results = []
    for function, extra in ((attention_recurrent, {}), (attention, {"queries_per_block": size})):
        output = function(*tensors, queries, keys, slopes, window, normalize=normalize, **extra)
        weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output) * real
        results.append((output.nan_to_num() * real, torch.autograd.grad((output.nan_to_num() * weight).sum(), tensors)))
    (expected, expected_grads), (actual, grads) = results
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("window", [3, None])
def test_blocks_run_side_by_side_and_under_function_transforms(window):
    tensors, queries, keys = inputs(6, 2)
    stacked = [torch.stack([tensor.detach(), 2 * tensor.detach()]) for tensor in tensors]

    def run(query, key, value, size=2):
        return attention(query, key, value, queries, keys, None, window, queries_per_block=size)

    together = torch.vmap(run)(*stacked)
    for replica in range(2):
        torch.testing.assert_close(together[replica], run(*[tensor[replica] for tensor in stacked]), atol=1e-12, rtol=0)
    fast, slow = (torch.func.jacrev(run)(*[t.detach() for t in tensors], size) for size in (2, 100))
    torch.testing.assert_close(fast, slow, atol=1e-12, rtol=0)


@pytest.mark.parametrize("normalize", [True, False])
def test_dropout_of_blocks_takes_the_same_weights_in_both_passes(normalize):
    tensors, queries, keys = inputs(40, 0)
    output = attention(*tensors, queries, keys, None, 9, False, 0.5, normalize, queries_per_block=8)
    weight = torch.randn_like(output)
    grads = torch.autograd.grad((output * weight).sum(), tensors)
    # The output is linear in the values, so that its gradient gives it back if the same weights were dropped.
    torch.testing.assert_close((grads[2] * tensors[2]).sum(), (output * weight).sum(), atol=1e-10, rtol=0)
    ones = attention(*tensors[:2], torch.ones_like(tensors[2]), queries, keys, None, 9, False, 0.5, True, 8)
    assert ones.mean().item() == pytest.approx(1.0, abs=0.1)
    assert (ones - 1).abs().max() > 0.1


def test_blocks_in_bfloat16_sum_in_float32():
    tensors, queries, keys = inputs(33, 0)
    half = [tensor.detach().bfloat16() for tensor in tensors]
    expected = attention_recurrent(*[tensor.double() for tensor in half], queries, keys, None, 9)
    actual = attention(*half, queries, keys, None, 9, queries_per_block=8)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), expected, atol=1e-2, rtol=1e-2)


def test_long_sequences_take_blocks_whose_weights_fit_and_short_ones_none():
    for window, length in ((64, 8192), (None, 8192), (4096, 16384), (64, 65536)):
        size = block_size(torch.empty(1, 2, length, 1), length, window)
        span = length if window is None else min(length, size + window - 1)
        assert 2 * size * span <= BLOCK_NUMBERS
    first, second, last = blocks(5, 7, 2, 3)
    assert first == (slice(0, 2), slice(0, 4))
    assert second == (slice(2, 4), slice(2, 6))
    assert last == (slice(4, 5), slice(4, 7))
    assert block_size(torch.empty(16, 2, 256, 1), 256, 64) is None


class Largest(TorchDispatchMode):
    """Records the bytes of the largest tensor that any operation returns."""

    nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.nbytes = max(self.nbytes, *sizes, 0)
        return result


@pytest.mark.parametrize("slopes", [None, alibi_slopes(2)])
@pytest.mark.parametrize("window", [64, 4096])
def test_no_matrix_of_all_queries_by_all_keys_is_built(slopes, window):
    tensors = [torch.randn(1, 4096, 2, 4, requires_grad=True) for _ in range(3)]
    positions = torch.arange(4096)[None]
    with Largest() as largest:
        attention(*tensors, positions, positions, slopes, window).sum().backward()
    assert largest.nbytes <= 4 * 2**20  # all by all would take 16 MiB as booleans
