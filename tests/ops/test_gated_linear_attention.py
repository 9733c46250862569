"""Gated linear attention against its definition, the sums written out, and where factors overflow."""

import pytest
import torch

from hf_memory.ops.backends import numba_matrix_memory
from hf_memory.ops.gated_linear_attention import (
    gated_linear_attention,
    gated_linear_attention_chunked,
    gated_linear_attention_recurrent,
)
from tests.ops.core_checks import assert_same, assert_splits, assert_stacks, gradients

DECAYS = ("none", "scalar", "vector")
TIMED = {"query": 1, "key": 1, "value": 1, "log_decay": 1, "sign": 1}


def _problem(decay="vector", bonus=False, batch=2, time=9, heads=2, key_dim=3, value_dim=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    tensors = {name: draw(batch, time, heads, size) for name, size in (("query", key_dim), ("key", key_dim))}
    tensors |= {"value": draw(batch, time, heads, value_dim), "initial_state": draw(batch, heads, key_dim, value_dim)}
    if decay != "none":
        gates = (key_dim,) if decay == "vector" else ()
        tensors["log_decay"] = -draw(batch, time, heads, *gates).exp()
    if bonus:
        tensors["bonus"] = draw(heads, key_dim)
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def _bound(function, **options):
    return lambda **tensors: function(**tensors, **options)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("read", ["after", "before"])
def test_the_definition_is_the_sum_over_the_past(decay, read):
    tensors = {name: tensor.detach() for name, tensor in _problem(decay, bonus=read == "before").items()}
    output, _ = gated_linear_attention_recurrent(**tensors, read=read)
    query, key, value, start = (tensors[name] for name in ("query", "key", "value", "initial_state"))
    log_decay = tensors.get("log_decay", torch.zeros(2, 9, 2, dtype=torch.float64))
    log_decay = log_decay if decay == "vector" else log_decay.unsqueeze(-1).expand_as(key)
    last = 0 if read == "before" else 1
    for t in range(9):
        passed = log_decay[:, : t + last].sum(1).exp()
        expected = ((query[:, t] * passed).unsqueeze(-1) * start).sum(-2)
        for s in range(t + last):
            weight = (query[:, t] * key[:, s] * log_decay[:, s + 1 : t + last].sum(1).exp()).sum(-1)
            expected = expected + weight.unsqueeze(-1) * value[:, s]
        if read == "before":
            expected = expected + (query[:, t] * tensors["bonus"] * key[:, t]).sum(-1, keepdim=True) * value[:, t]
        torch.testing.assert_close(output[:, t], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("lengths", [None, (9, 4), (0, 1)])
@pytest.mark.parametrize("chunk_size", [1, 2, 4, 7, 16])
def test_chunks_of_any_size_equal_the_definition(decay, read, lengths, chunk_size):
    tensors = _problem(decay, bonus=read == "before")
    lengths = None if lengths is None else torch.tensor(lengths)
    fast, slow = (
        _bound(form, read=read) for form in (gated_linear_attention_chunked, gated_linear_attention_recurrent)
    )
    assert_same(fast, slow, tensors, lengths, chunk_size=chunk_size)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("time", [1, 2, 3, 33, 70])
def test_the_public_form_equals_the_definition_at_every_length(decay, time):
    lengths = torch.tensor([time, time // 2])
    assert_same(gated_linear_attention, gated_linear_attention_recurrent, _problem(decay, time=time), lengths)


@pytest.mark.parametrize("decay, read", [("vector", "after"), *((decay, "before") for decay in DECAYS)])
@pytest.mark.parametrize("time", [1, 16, 37])
def test_compiled_loops_equal_the_definition(decay, read, time, monkeypatch):
    monkeypatch.setattr(numba_matrix_memory, "refusal", lambda **_: None)  # also where products are faster
    forms = gated_linear_attention, gated_linear_attention_recurrent
    tensors, lengths = _problem(decay, bonus=read == "before", time=time), torch.tensor([time, time // 2])
    fast, slow = (_bound(form, read=read) for form in forms)
    assert_same(fast, slow, tensors, lengths, backend="numba")
    assert_splits(_bound(gated_linear_attention, read=read, backend="numba"), tensors, TIMED)
    if decay != "none":
        sign = 1 - 2 * torch.randint(0, 2, tensors["log_decay"].shape).double()
        assert_same(*(_bound(form, read=read, sign=sign) for form in forms), tensors, lengths, backend="numba")


@pytest.mark.parametrize("read", ["after", "before"])
def test_second_derivatives_of_the_compiled_loops_are_those_in_torch(read):
    tensors, found = _problem(bonus=read == "before"), []
    for backend in ("numba", "torch"):
        output, final = gated_linear_attention(**tensors, read=read, backend=backend)
        first = torch.autograd.grad(output.pow(3).sum() + final.sum(), list(tensors.values()), create_graph=True)
        found.append(torch.autograd.grad(sum(grad.pow(2).sum() for grad in first), list(tensors.values())))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decay", ["scalar", "vector"])
@pytest.mark.parametrize("read", ["after", "before"])
def test_decays_of_any_sign_equal_the_definition(decay, read):
    tensors = _problem(decay, time=21)
    sign = 1 - 2 * torch.randint(0, 2, tensors["log_decay"].shape).double()
    fast, slow = (
        _bound(form, read=read, sign=sign) for form in (gated_linear_attention, gated_linear_attention_recurrent)
    )
    assert_same(fast, slow, tensors, torch.tensor([21, 8]))
    assert_splits(_bound(gated_linear_attention, read=read), {**tensors, "sign": sign}, TIMED)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("read", ["after", "before"])
def test_handing_the_state_on_at_any_split_equals_one_pass(decay, read):
    assert_splits(_bound(gated_linear_attention, read=read), _problem(decay, bonus=read == "before"), TIMED)


@pytest.mark.parametrize("decay", ["scalar", "vector"])
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("strong", [-20.0, -88.0, -1e4])
def test_decays_near_the_limits_keep_their_digits_in_float32_forward_and_backward(decay, read, strong):
    tensors = {n: t.detach().float() for n, t in _problem(decay, time=150, key_dim=8).items()}
    where = torch.rand(tensors["log_decay"].shape) < 0.3
    tensors["log_decay"] = torch.where(where, strong, -0.01 * torch.rand(where.shape))
    wide = {name: tensor.double().requires_grad_() for name, tensor in tensors.items()}
    tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    output, ours = gradients(*gated_linear_attention(**tensors, read=read), tensors)
    expected, theirs = gradients(*gated_linear_attention_recurrent(**wide, read=read), wide)
    for actual, exact in zip((output, *ours), (expected, *theirs), strict=True):
        assert torch.isfinite(actual).all()
        assert (actual - exact).abs().max() < 2e-6 * exact.abs().max()


@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("least", [-0.1, -0.6, -3.0, -30.0])
def test_blocks_that_decay_mildly_equal_the_definition(read, least):
    tensors = _problem(time=37, bonus=read == "before")
    tensors["log_decay"] = (least * torch.rand_like(tensors["log_decay"])).detach().requires_grad_()
    fast, slow = (
        _bound(form, read=read) for form in (gated_linear_attention_chunked, gated_linear_attention_recurrent)
    )
    for chunk_size in (4, 32):
        assert_same(fast, slow, tensors, torch.tensor([37, 20]), tolerance=1e-10, chunk_size=chunk_size)


def test_first_and_second_derivatives_agree_with_finite_differences():
    tensors = _problem(bonus=True, batch=1, time=3, heads=1, key_dim=2, value_dim=1)

    def function(*values):
        named = dict(zip(tensors, values, strict=True))
        return gated_linear_attention_chunked(**named, read="before", chunk_size=2)

    assert torch.autograd.gradcheck(function, tuple(tensors.values()))
    assert torch.autograd.gradgradcheck(function, tuple(tensors.values()))


@pytest.mark.parametrize("decay", DECAYS)
def test_a_stack_of_replicas_equals_each_replica_alone(decay):
    assert_stacks(gated_linear_attention, _problem(decay))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(dtype):
    tensors = {name: tensor.detach().to(dtype) for name, tensor in _problem(time=20).items()}
    output, state = gated_linear_attention(**tensors)
    expected, exact = gated_linear_attention_recurrent(**{n: t.float() for n, t in tensors.items()})
    assert (output.dtype, state.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(output, expected.to(dtype))
    torch.testing.assert_close(state, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["query", "value", "log_decay", "initial_state", "bonus"])
def test_shapes_that_do_not_fit_are_refused_by_name(name):
    tensors = {name: tensor.detach() for name, tensor in _problem(bonus=True).items()}
    tensors[name] = tensors[name][:, :1]
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        gated_linear_attention(**tensors, read="before")


def test_a_read_that_is_unknown_or_has_no_use_for_a_bonus_is_refused():
    tensors = _problem(bonus=True)
    with pytest.raises(ValueError, match="read must be 'after' or 'before'"):
        gated_linear_attention(**tensors, read="during")
    with pytest.raises(ValueError, match="bonus must be None"):
        gated_linear_attention(**tensors)
