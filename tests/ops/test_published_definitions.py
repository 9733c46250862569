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
from hf_memory.ops.forgetting_attention import forgetting_attention
from hf_memory.ops.gated_linear_attention import gated_linear_attention
from hf_memory.ops.generalized_delta_rule import generalized_delta_rule
from hf_memory.ops.linear_attention import linear_attention
from hf_memory.ops.taylor_attention import taylor_attention

pytestmark = pytest.mark.kernels

B, T, H, K, V = 2, 64, 3, 8, 5


def published(operation: str, file: str = "naive"):
    """The module ``fla/ops/<operation>/<file>.py``."""
    (root,) = importlib.util.find_spec("fla").submodule_search_locations
    path = Path(root) / "ops" / operation / f"{file}.py"
    spec = importlib.util.spec_from_file_location(f"published_{Path(operation).name}", path)
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


@pytest.mark.parametrize("operation", ["gla", "simple_gla"])
def test_linear_attention_with_a_decay_for_each_key_or_for_each_head(operation):
    query, key, value, gate = inputs(K, K, V, K)
    log_decay = F.logsigmoid(gate if operation == "gla" else gate.sum(-1))
    form = getattr(published(operation), f"naive_recurrent_{operation}")
    start = torch.randn(B, H, K, V)
    output, state = form(query, key, value, log_decay, initial_state=start, output_final_state=True)
    ours = gated_linear_attention(query * K**-0.5, key, value, log_decay, initial_state=start)
    assert_same(ours, (output, state), [query, key, value, gate])


def test_the_read_before_the_step_with_a_bonus():
    query, key, value, gate = inputs(K, K, V, K)
    bonus, log_decay = torch.randn(H, K), -gate.exp()
    form = published("rwkv6", "recurrent_naive").naive_recurrent_rwkv6
    output, state = form(*head_first((query, key, value, log_decay)), bonus, scale=1.0, output_final_state=True)
    ours = gated_linear_attention(query, key, value, log_decay, bonus, "before")
    assert_same(ours, (output.transpose(1, 2), state), [query, key, value, gate])


@pytest.mark.parametrize(
    "operation, form", [("gated_delta_rule", "recurrent"), ("gated_delta_rule", "chunk"), ("kda", "recurrent")]
)
def test_the_delta_rule_with_a_decay_for_each_head_or_for_each_key(operation, form):
    query, key, value, gate = inputs(K, K, V, K)
    beta, probe = 2 * gate[..., 0].sigmoid(), F.normalize(key, dim=-1)
    log_decay = F.logsigmoid(gate if operation == "kda" else gate.sum(-1))
    function = getattr(published(operation), f"naive_{form}_{operation}")
    output, state = function(query, probe, value, g=log_decay, beta=beta, output_final_state=True)
    ours = generalized_delta_rule(query * K**-0.5, beta.unsqueeze(-1) * probe, value, None, probe, log_decay)
    assert_same(ours, (output, state), [query, key, value, gate])


def test_several_steps_of_the_delta_rule_in_a_token():
    query, gate = inputs(K, 1)
    key, value, strength = (torch.randn(B, 3 * T, H, width, requires_grad=True) for width in (K, V, 1))
    beta, probe = 2 * strength.sigmoid(), F.normalize(key, dim=-1)
    log_decay = F.logsigmoid(gate).squeeze(-1)
    form = published("gated_delta_product").naive_recurrent_gated_delta_product
    theirs = form(query, probe, value, log_decay, beta.squeeze(-1), scale=1.0, num_householder=3)
    ours = generalized_delta_rule(query, beta * probe, value, None, probe, log_decay)
    assert_same(ours, theirs, [query, key, value, strength, gate])


def test_a_diagonal_transition_and_a_product_of_its_own():
    query, key, value, gate, strength = inputs(K, K, V, K, K)
    unit, rate = F.normalize(key, dim=-1), strength.sigmoid()
    log_decay = -0.6 * gate.sigmoid()
    form = published("generalized_delta_rule/dplr").dplr_recurrence
    arguments = (query, key, value, -unit, unit * rate, log_decay)
    output, state = form(*head_first(arguments))
    ours = generalized_delta_rule(query * K**-0.5, key, value, unit * rate, unit * (-log_decay).exp(), log_decay)
    assert_same(ours, (output.transpose(1, 2), state), [query, key, value, gate, strength])


@pytest.mark.parametrize("window", [None, 9])
def test_attention_with_forget_gates(window):
    query, key, value, gate = inputs(K, K, K, 1)
    log_forget, steps = F.logsigmoid(gate).squeeze(-1), torch.arange(T).expand(B, -1)
    theirs = published("forgetting_attn").naive_forgetting_attn(query, key, value, log_forget, window_size=window)
    ours = forgetting_attention(query, key, value, steps, steps, log_forget.double().cumsum(1), window)
    assert_same((ours,), (theirs,), [query, key, value, gate])
