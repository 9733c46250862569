"""Cross entropy in the cache against its definition and torch's, and the heads that use it."""

import pytest
import torch
from torch.nn import functional as F

from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.models import heads
from hf_memory.ops import linear_cross_entropy as module
from hf_memory.ops.backends.dispatch import use_backend
from hf_memory.ops.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_recurrent, takes


def draw(rows, classes, width=5, bias=True, scale=1.0, dtype=torch.float64):
    shapes = [(rows, width), (classes, width), (classes,)]
    hidden, weight, own = (scale * torch.randn(shape, dtype=dtype) for shape in shapes)
    inputs = [tensor.requires_grad_() for tensor in (hidden, weight, own)]
    return [*inputs[:2], inputs[2] if bias else None], torch.randint(0, classes, (rows,))


def gradients(total, inputs):
    return torch.autograd.grad(0.3 * total, [tensor for tensor in inputs if tensor is not None])


def by_torch(hidden, weight, bias, targets):
    scores = F.linear(hidden, weight, bias)
    losses = F.cross_entropy(scores, targets, reduction="none")
    return losses.sum(), losses, scores.argmax(-1)


@pytest.mark.parametrize("other", [linear_cross_entropy_recurrent, by_torch])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "classes"), [(1, 7), (16, 7), (33, 7), (50, 1)])
def test_values_and_gradients_are_those_of_the_definition_in_any_block(rows, classes, bias, other, monkeypatch):
    monkeypatch.setattr(module, "CACHED", 16 * classes)
    inputs, targets = draw(rows, classes, bias=bias)
    total, losses, predictions = linear_cross_entropy(*inputs, targets)
    expected_total, expected_losses, expected_predictions = other(*inputs, targets)
    torch.testing.assert_close(total, expected_total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(losses, expected_losses.detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(predictions, expected_predictions)
    assert not losses.requires_grad
    for mine, own in zip(gradients(total, inputs), gradients(expected_total, inputs), strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-10, atol=1e-13)


def test_large_scores_neither_overflow_nor_vanish():
    inputs, targets = draw(20, 9, scale=1e3)
    total, losses, _ = linear_cross_entropy(*inputs, targets)
    expected = by_torch(*inputs, targets)
    torch.testing.assert_close(losses, expected[1].detach())
    for mine, own in zip(gradients(total, inputs), gradients(expected[0], inputs), strict=True):
        assert torch.isfinite(mine).all()
        torch.testing.assert_close(mine, own, rtol=1e-9, atol=1e-9)


def test_no_gradient_is_computed_where_none_is_asked_for():
    inputs, targets = draw(20, 9)
    with torch.no_grad():
        total, losses, _ = linear_cross_entropy(*inputs, targets)
    assert total.grad_fn is None
    torch.testing.assert_close(losses, by_torch(*inputs, targets)[1].detach())
    frozen = [tensor.detach() for tensor in inputs]
    assert linear_cross_entropy(*frozen, targets)[0].grad_fn is None
    frozen[0].requires_grad_()
    (mine,) = torch.autograd.grad(linear_cross_entropy(*frozen, targets)[0], frozen[0])
    (own,) = torch.autograd.grad(by_torch(*frozen, targets)[0], frozen[0])
    torch.testing.assert_close(mine, own)


def test_replicas_side_by_side_are_one_after_the_other():
    inputs, targets = draw(6, 4)
    stacked = [torch.stack([tensor, 2 * tensor]) for tensor in inputs]
    totals, losses, _ = torch.vmap(lambda *own: linear_cross_entropy(*own, targets))(*stacked)
    for replica in range(2):
        own = by_torch(*(tensor[replica] for tensor in stacked), targets)
        torch.testing.assert_close(totals[replica], own[0])
        torch.testing.assert_close(losses[replica], own[1])


def test_it_is_taken_for_many_scores_in_full_precision_only():
    hidden, weight = torch.zeros(40, 4), torch.zeros(8192, 4)
    assert takes(hidden, weight)
    assert not takes(hidden[:32], weight)
    assert not takes(hidden.bfloat16(), weight.bfloat16())
    assert not takes(hidden.double(), weight)
    assert not takes(hidden.to("meta"), weight.to("meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not takes(hidden, weight)


@pytest.mark.parametrize("head", ["causal", "token_classification"])
def test_a_model_trains_and_evaluates_alike_on_both_roads(head, monkeypatch):
    config = mixer_config("gru", vocab_size=50, num_labels=50, hidden_size=8, num_hidden_layers=1)
    model = mixer_model(config, head).double()
    ids = torch.randint(0, 50, (4, 9))
    labels = ids.masked_fill(torch.rand(4, 9) < 0.3, -100)
    called = []
    original = heads.linear_cross_entropy
    monkeypatch.setattr(heads, "linear_cross_entropy", lambda *args: called.append(1) or original(*args))
    found = []
    for cached in (10**9, 1):
        monkeypatch.setattr(module, "CACHED", cached)
        model.zero_grad()
        with use_backend("torch"):
            outputs = model.train()(input_ids=ids, labels=labels, num_items_in_batch=7)
            outputs.loss.backward()
            looked = model.eval()(input_ids=ids, labels=labels, return_logits=False)
        gradient = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        found.append([outputs.loss, outputs.token_loss, looked.token_loss, looked.predictions, *gradient])
    assert len(called) == 2
    for plain, cached in zip(*found, strict=True):
        torch.testing.assert_close(cached, plain, rtol=1e-10, atol=1e-12)


def test_a_head_that_is_wrapped_or_hooked_is_called(monkeypatch):
    monkeypatch.setattr(module, "CACHED", 1)
    monkeypatch.setattr(heads, "linear_cross_entropy", lambda *args: pytest.fail("the head was passed by"))
    model = mixer_model(mixer_config("gru", vocab_size=20, hidden_size=8, num_hidden_layers=1), "causal")
    ids = torch.randint(0, 20, (2, 6))
    seen = []
    handle = model.lm_head.register_forward_hook(lambda *args: seen.append(1))
    model(input_ids=ids, labels=ids)
    assert seen
    handle.remove()
    model.lm_head = torch.nn.Sequential(model.lm_head)
    model.lm_head.out_features = 20
    model(input_ids=ids, labels=ids)
