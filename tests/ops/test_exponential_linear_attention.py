"""Exponential linear attention against the equations without a maximum, and where exponentials overflow."""

import pytest
import torch
from torch.nn import functional as F

from hf_memory.ops.exponential_linear_attention import (
    exponential_linear_attention,
    exponential_linear_attention_chunked,
    exponential_linear_attention_recurrent,
)


def _problem(batch=2, time=9, heads=2, key_dim=3, value_dim=4, size=1.0):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    tensors = {"query": draw(batch, time, heads, key_dim), "key": draw(batch, time, heads, key_dim)}
    tensors |= {"value": draw(batch, time, heads, value_dim)}
    tensors |= {"log_forget": F.logsigmoid(draw(batch, time, heads)), "log_input": size * draw(batch, time, heads)}
    tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    state = draw(batch, heads, key_dim, value_dim), draw(batch, heads, key_dim), draw(batch, heads)
    return tensors, (state[0].requires_grad_(), state[1].requires_grad_(), state[2])


def _plain(query, key, value, log_forget, log_input, initial_state):
    """The sums themselves, one step after the other."""
    state, normaliser, most = initial_state
    state, normaliser = state * most.exp()[..., None, None], normaliser * most.exp()[..., None]
    outputs = []
    for t in range(query.shape[1]):
        forget, add = log_forget[:, t].exp(), log_input[:, t].exp()
        state = forget[..., None, None] * state + add[..., None, None] * key[:, t].unsqueeze(-1) * value[
            :, t
        ].unsqueeze(-2)
        normaliser = forget[..., None] * normaliser + add[..., None] * key[:, t]
        weight = (normaliser * query[:, t]).sum(-1).abs().clamp(min=1)
        outputs.append((query[:, t].unsqueeze(-1) * state).sum(-2) / weight[..., None])
    return torch.stack(outputs, 1), state, normaliser


def _values(output, state):
    """Output and the state without its maximum, on which nothing depends."""
    scale = state[2].exp()
    return output, state[0] * scale[..., None, None], state[1] * scale[..., None]


def _gradients(values, leaves):
    weights = torch.linspace(-1, 1, values[0].numel(), dtype=torch.float64).view(values[0].shape)
    return torch.autograd.grad((values[0] * weights).sum() + values[1].sum() + values[2].pow(2).sum(), leaves)


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 4, 7, 16])
def test_every_form_equals_the_sums_without_a_maximum_in_outputs_state_and_gradients(chunk_size):
    tensors, state = _problem()
    leaves = [*tensors.values(), *state[:2]]
    form, options = exponential_linear_attention_recurrent, {}
    if chunk_size is not None:
        form, options = exponential_linear_attention_chunked, {"chunk_size": chunk_size}
    ours = _values(*form(**tensors, initial_state=state, **options))
    expected = _plain(**tensors, initial_state=state)
    for left, right in zip((*ours, *_gradients(ours, leaves)), (*expected, *_gradients(expected, leaves)), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("time", [1, 2, 3, 33, 70])
def test_padding_keeps_state_and_maximum_at_every_length(time):
    tensors, state = _problem(time=time)
    lengths = torch.tensor([time, time // 2])
    output, final = exponential_linear_attention(**tensors, initial_state=state, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in tensors.items()}
        start = tuple(leaf[row : row + 1] for leaf in state)
        if length == 0:
            expected, last = output[row : row + 1, :0], start
        else:
            expected, last = exponential_linear_attention_recurrent(**alone, initial_state=start)
        torch.testing.assert_close(output[row : row + 1, :length], expected, rtol=1e-11, atol=1e-11)
        for left, right in zip(final, last, strict=True):
            torch.testing.assert_close(left[row : row + 1], right, rtol=1e-11, atol=1e-11)


def test_handing_the_state_on_at_any_split_equals_one_pass():
    tensors, state = _problem()
    whole, final = exponential_linear_attention(**tensors, initial_state=state)
    for cut in range(1, 9):
        pieces = [{n: t[:, part] for n, t in tensors.items()} for part in (slice(0, cut), slice(cut, None))]
        first, middle = exponential_linear_attention(**pieces[0], initial_state=state)
        second, last = exponential_linear_attention(**pieces[1], initial_state=middle)
        torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-11, atol=1e-11)
        for left, right in zip(last, final, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


def test_input_gates_far_beyond_the_range_of_float32_keep_their_digits_forward_and_backward():
    tensors, _ = _problem(time=150, key_dim=8, size=100.0)
    narrow = {name: tensor.detach().float().requires_grad_() for name, tensor in tensors.items()}
    wide = {name: tensor.detach().double().requires_grad_() for name, tensor in narrow.items()}
    output, state = exponential_linear_attention(**narrow)
    exact, exact_state = exponential_linear_attention_recurrent(**wide)
    assert (output - exact).abs().max() < 1e-4 * exact.abs().max()
    assert state[2].max() > 100
    torch.testing.assert_close(state[2].double(), exact_state[2], rtol=1e-5, atol=1e-3)
    ours, theirs = (torch.autograd.grad(o.sum(), list(t.values())) for o, t in ((output, narrow), (exact, wide)))
    for left, right in zip(ours, theirs, strict=True):
        assert torch.isfinite(left).all()
        assert (left - right).abs().max() < 1e-3 * right.abs().max()


def test_outputs_do_not_depend_on_the_first_maximum():
    tensors, (state, normaliser, most) = _problem()
    moved = (state * 0.5, normaliser * 0.5, most + torch.tensor(2.0, dtype=torch.float64).log())
    output, _ = exponential_linear_attention(**tensors, initial_state=(state, normaliser, most))
    again, _ = exponential_linear_attention(**tensors, initial_state=moved)
    torch.testing.assert_close(output, again, rtol=1e-12, atol=1e-12)


def test_a_stack_of_replicas_equals_each_replica_alone():
    tensors, _ = _problem()
    stacked = [torch.stack((tensor.detach(), tensor.detach().flip(0))) for tensor in tensors.values()]

    def loss(*args):
        output, final = exponential_linear_attention(*args)
        return output.pow(2).sum() + final[0].pow(2).sum()

    numbers = tuple(range(len(stacked)))
    together = torch.func.vmap(torch.func.grad(loss, argnums=numbers))(*stacked)
    for index in range(2):
        alone = torch.func.grad(loss, argnums=numbers)(*(tensor[index] for tensor in stacked))
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left[index], right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(dtype):
    tensors = {name: tensor.detach().to(dtype) for name, tensor in _problem(time=20)[0].items()}
    output, state = exponential_linear_attention(**tensors)
    expected, _ = exponential_linear_attention_recurrent(**{n: t.float() for n, t in tensors.items()})
    assert output.dtype == dtype
    assert {leaf.dtype for leaf in state} == {torch.float32}
    torch.testing.assert_close(output, expected.to(dtype))


@pytest.mark.parametrize("name", ["query", "value", "log_forget", "log_input"])
def test_shapes_that_do_not_fit_are_refused_by_name(name):
    tensors, state = _problem()
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        exponential_linear_attention(**{**tensors, name: tensors[name][:, :1]}, initial_state=state)
    with pytest.raises(ValueError, match="maximum must have shape"):
        exponential_linear_attention(**tensors, initial_state=(*state[:2], state[2][:1]))
