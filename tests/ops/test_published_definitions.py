"""Recurrences against the plain definitions that flash-linear-attention ships, which nobody here wrote.

The files are read by their path, without importing the package: importing it makes transformers call its kernels.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from hf_memory.ops.delta_rule import delta_rule
from hf_memory.ops.diagonal_scan import diagonal_scan
from hf_memory.ops.linear_attention import linear_attention
from hf_memory.ops.taylor_attention import taylor_attention

pytestmark = pytest.mark.kernels

B, T, H, K, V = 2, 64, 3, 8, 5


def published(operation: str):
    """The module ``fla/ops/<operation>/naive.py``."""
    (root,) = importlib.util.find_spec("fla").submodule_search_locations
    path = Path(root) / "ops" / operation / "naive.py"
    spec = importlib.util.spec_from_file_location(f"published_{operation}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(*widths: int) -> list[torch.Tensor]:
    return [torch.randn(B, T, H, width, requires_grad=True) for width in widths]


def assert_same(ours, theirs, tensors, tolerance=2e-5):
    """Outputs and states, and the gradients of a weighted sum of the outputs."""
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    weights = torch.randn_like(ours[0])
    gradients = (torch.autograd.grad((out * weights).sum(), tensors, retain_graph=True) for out in (ours[0], theirs[0]))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, atol=10 * tolerance, rtol=10 * tolerance)


def head_first(tensors):
    """(B, T, H, ...) to (B, H, T, ...), the layout of the older files."""
    return [tensor.transpose(1, 2) for tensor in tensors]


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("form", ["delta_rule_recurrence", "delta_rule_chunkwise"])
def test_the_delta_rule(form, scale):
    query, key, value, gate = inputs(K, K, V, 1)
    unit, beta = F.normalize(key, dim=-1), scale * gate.sigmoid().squeeze(-1)
    output, state = getattr(published("delta_rule"), form)(*head_first((query, unit, value, beta)))
    ours = delta_rule(query * K**-0.5, unit, value, beta)
    assert_same(ours, (output.transpose(1, 2), state), [query, key, value, gate])


def test_linear_attention_with_a_state_and_its_normaliser():
    query, key, value = inputs(K, K, V)
    features = F.elu(query) + 1, F.elu(key) + 1
    start, norm = torch.rand(B, H, K, V), torch.rand(B, 1, H, K)
    output, (state, sums) = published("linear_attn").naive_recurrent_linear_attn(
        *features, value, scale=1.0, initial_state=(start, norm), output_final_state=True, normalize=True
    )
    joined = torch.cat([state, sums.squeeze(1).unsqueeze(-1)], dim=-1)
    first = torch.cat([start, norm.squeeze(1).unsqueeze(-1)], dim=-1)
    ours = linear_attention(*features, value, normalize=True, eps=1e-10, initial_state=first)
    assert_same(ours, (output, joined), [query, key, value], 5e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_taylor_layer_of_based(normalize):
    query, key, value = inputs(K, K, V)
    output = published("based").naive_parallel_based(*head_first((query, key, value)), use_norm=normalize)
    ours, _ = taylor_attention(query, key, value, normalize=normalize, eps=1e-6)
    assert_same((ours,), (output.transpose(1, 2),), [query, key, value], 5e-5)


def test_the_elementwise_scan():
    values, gates = (torch.randn(B, T, K, requires_grad=True) for _ in range(2))
    log_decay, start = F.logsigmoid(gates + 1), torch.randn(B, K)
    theirs = published("hgrn").naive_recurrent_hgrn(values, log_decay, start, output_final_state=True)
    assert_same(diagonal_scan(log_decay.exp(), values, start), theirs, [values, gates])
