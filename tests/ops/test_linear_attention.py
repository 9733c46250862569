"""Linear attention against its definition and against the quadratic sums written out."""

import pytest
import torch

from hf_memory.ops.linear_attention import (
    linear_attention,
    linear_attention_chunked,
    linear_attention_recurrent,
)

FORMS = [(False, False), (True, False), (False, True), (True, True)]  # normalize, decays


def _problem(normalize, decays, batch=2, time=9, heads=2, key_dim=3, value_dim=4):
    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    query, key = (draw(batch, time, heads, key_dim).exp() for _ in range(2))
    state = draw(batch, heads, key_dim, value_dim + normalize).exp()
    tensors = {"query": query, "key": key, "value": draw(batch, time, heads, value_dim), "initial_state": state}
    if decays:
        tensors["log_decay"] = -draw(batch, time, heads).exp()
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def _values_and_gradients(function, tensors, lengths, **options):
    output, final = function(**tensors, lengths=lengths, **options)
    if lengths is not None:
        output = output.masked_fill((torch.arange(output.shape[1]) >= lengths[:, None])[:, :, None, None], 0)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    gradients = torch.autograd.grad((output * weights).sum() + final.pow(2).sum(), list(tensors.values()))
    return output, final, *gradients


@pytest.mark.parametrize("normalize, decays", FORMS)
def test_the_definition_is_the_quadratic_sum(normalize, decays):
    tensors = _problem(normalize, decays)
    del tensors["initial_state"]
    output, _ = linear_attention_recurrent(**tensors, normalize=normalize, eps=0.1)
    decay = tensors["log_decay"].exp() if decays else torch.ones(2, 9, 2, dtype=torch.float64)
    for t in range(9):
        weights = torch.stack(
            [
                (tensors["query"][:, t] * tensors["key"][:, s]).sum(-1) * decay[:, s + 1 : t + 1].prod(1)
                for s in range(t + 1)
            ],
            dim=1,
        )
        expected = (weights.unsqueeze(-1) * tensors["value"][:, : t + 1]).sum(1)
        if normalize:
            expected = expected / (weights.sum(1).unsqueeze(-1) + 0.1)
        torch.testing.assert_close(output[:, t], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("normalize, decays", FORMS)
@pytest.mark.parametrize("lengths", [None, (9, 4), (0, 1)])
@pytest.mark.parametrize("chunk_size", [1, 2, 4, 16])
def test_chunks_of_any_size_equal_the_definition_in_output_state_and_gradients(normalize, decays, lengths, chunk_size):
    tensors, lengths = _problem(normalize, decays), None if lengths is None else torch.tensor(lengths)
    fast = _values_and_gradients(linear_attention_chunked, tensors, lengths, normalize=normalize, chunk_size=chunk_size)
    slow = _values_and_gradients(linear_attention_recurrent, tensors, lengths, normalize=normalize)
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("normalize, decays", FORMS)
def test_first_and_second_derivatives_agree_with_finite_differences(normalize, decays):
    tensors = _problem(normalize, decays, batch=1, time=3, heads=1, key_dim=2, value_dim=1)

    def function(*values):
        named = dict(zip(tensors, values, strict=True))
        return linear_attention_chunked(**named, normalize=normalize, chunk_size=2)

    assert torch.autograd.gradcheck(function, tuple(tensors.values()))
    assert torch.autograd.gradgradcheck(function, tuple(tensors.values()))


@pytest.mark.parametrize("normalize, decays", FORMS)
def test_handing_the_state_on_at_any_split_equals_one_pass(normalize, decays):
    tensors = {name: tensor.detach() for name, tensor in _problem(normalize, decays).items()}
    initial = tensors.pop("initial_state")
    whole, final = linear_attention(**tensors, normalize=normalize, initial_state=initial)
    for cut in range(1, 9):
        pieces = [{n: t[:, part] for n, t in tensors.items()} for part in (slice(0, cut), slice(cut, None))]
        first, state = linear_attention(**pieces[0], normalize=normalize, initial_state=initial)
        second, last = linear_attention(**pieces[1], normalize=normalize, initial_state=state)
        torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=1e-12, atol=1e-12)


def test_a_strong_decay_over_a_long_chunk_neither_overflows_nor_loses_digits():
    query, key, value = (torch.randn(1, 300, 1, 4) for _ in range(3))
    log_decay = torch.full((1, 300, 1), -20.0)
    output, state = linear_attention(query, key, value, log_decay)
    exact, exact_state = linear_attention_recurrent(query.double(), key.double(), value.double(), log_decay.double())
    torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.double(), exact_state, rtol=1e-5, atol=1e-5)


def test_the_normaliser_does_not_count_padding_and_padding_gets_no_gradient():
    tensors = _problem(normalize=True, decays=False)
    lengths = torch.tensor([9, 5])
    output, final = linear_attention(**tensors, normalize=True, lengths=lengths)
    short = {name: tensor[1:, :5] if tensor.shape[1] == 9 else tensor[1:] for name, tensor in tensors.items()}
    expected, state = linear_attention(**short, normalize=True)
    torch.testing.assert_close(output[1:, :5], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(final[1:], state, rtol=1e-12, atol=1e-12)
    for name in ("query", "key", "value"):
        gradient = torch.autograd.grad(output[1, :5].sum() + final[1].sum(), tensors[name], retain_graph=True)[0]
        assert torch.equal(gradient[1, 5:], torch.zeros_like(gradient[1, 5:]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(dtype):
    ones = torch.ones(1, 4096, 1, 1, dtype=dtype)
    output, state = linear_attention(ones, ones, ones, normalize=True)
    assert (output.dtype, state.dtype) == (dtype, torch.float32)
    assert state.flatten().tolist() == [4096.0, 4096.0]
    assert torch.equal(output, ones)


def test_a_stack_of_replicas_equals_each_replica_alone():
    tensors = [torch.stack((tensor.detach(), tensor.detach().flip(0))) for tensor in _problem(True, True).values()]

    def loss(query, key, value, state, log_decay):
        output, final = linear_attention(query, key, value, log_decay, True, initial_state=state)
        return output.pow(2).sum() + final.pow(3).sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3, 4)))(*tensors)
    for index in range(2):
        alone = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))(*(tensor[index] for tensor in tensors))
        for left, right in zip(gradients, alone, strict=True):
            torch.testing.assert_close(left[index], right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["query", "value", "log_decay", "initial_state"])
def test_shapes_that_do_not_fit_are_refused_by_name(name):
    tensors = {name: tensor.detach() for name, tensor in _problem(True, True).items()}
    tensors[name] = tensors[name][:, :1]
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        linear_attention(**tensors, normalize=True)


def test_autocast_does_not_reach_the_state():
    tensors = {name: tensor.detach().float() for name, tensor in _problem(True, True).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = linear_attention(**tensors, normalize=True)
    expected, expected_state = linear_attention_recurrent(**tensors, normalize=True)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected_state, rtol=1e-5, atol=1e-5)
