"""The delta rule against its definition, against transformers, and where series expansions break."""

import pytest
import torch
from torch.nn import functional as F
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from hf_memory.ops.delta_rule import delta_rule, delta_rule_chunked, delta_rule_recurrent


def _problem(batch=2, time=9, heads=2, key_dim=3, value_dim=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    key = F.normalize(draw(batch, time, heads, key_dim), dim=-1)
    beta = 2 * torch.sigmoid(draw(batch, time, heads))
    tensors = (draw(batch, time, heads, key_dim), key, draw(batch, time, heads, value_dim), beta)
    return tuple(tensor.requires_grad_() for tensor in (*tensors, draw(batch, heads, key_dim, value_dim)))


def _values_and_gradients(function, tensors, lengths, **options):
    output, final = function(*tensors, lengths=lengths, **options)
    if lengths is not None:
        running = torch.arange(output.shape[1]) < lengths[:, None]
        output = output.masked_fill(~running[:, :, None, None], 0)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return output, final, *torch.autograd.grad((output * weights).sum() + final.pow(2).sum(), tensors)


def test_one_step_is_the_equation_written_out():
    query, key, value, beta, state = (tensor.detach()[:1] for tensor in _problem(time=1, heads=1))
    q, k, v, b, s = query[0, 0, 0], key[0, 0, 0], value[0, 0, 0], beta[0, 0, 0], state[0, 0]
    expected = (torch.eye(3, dtype=torch.float64) - b * torch.outer(k, k)) @ s + b * torch.outer(k, v)
    output, final = delta_rule_recurrent(query, key, value, beta, state)
    torch.testing.assert_close(final[0, 0], expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(output[0, 0, 0], expected.T @ q, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("lengths", [None, (9, 4), (0, 1)])
@pytest.mark.parametrize("chunk_size", [1, 2, 4, 9, 16])
def test_chunks_of_any_size_equal_the_definition_in_output_state_and_gradients(chunk_size, lengths):
    tensors, lengths = _problem(), None if lengths is None else torch.tensor(lengths)
    fast = _values_and_gradients(delta_rule_chunked, tensors, lengths, chunk_size=chunk_size)
    slow = _values_and_gradients(delta_rule_recurrent, tensors, lengths)
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 33])
def test_the_public_form_equals_the_definition_at_every_length(time):
    tensors = _problem(time=time)
    lengths = torch.tensor([time, time // 2])
    fast = _values_and_gradients(delta_rule, tensors, lengths)
    slow = _values_and_gradients(delta_rule_recurrent, tensors, lengths)
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


def test_first_and_second_derivatives_agree_with_finite_differences():
    tensors = _problem(batch=1, time=3, heads=1, key_dim=2, value_dim=2)

    def function(*args):
        return delta_rule_chunked(*args, chunk_size=2)

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_handing_the_state_on_at_any_split_equals_one_pass():
    *inputs, initial = (tensor.detach() for tensor in _problem())
    whole, final = delta_rule(*inputs, initial)
    for cut in range(1, 9):
        first, state = delta_rule(*(tensor[:, :cut] for tensor in inputs), initial)
        second, last = delta_rule(*(tensor[:, cut:] for tensor in inputs), state)
        torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(last, final, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [delta_rule_recurrent, delta_rule_chunked])
def test_output_and_state_equal_those_of_transformers(function):
    query, key, value, beta, initial = (tensor.detach().float() for tensor in _problem(time=37, key_dim=8, value_dim=8))
    reference = qwen3_next.torch_recurrent_gated_delta_rule
    reference = getattr(reference, "__wrapped__", reference)
    expected, state = reference(
        query, key, value, torch.zeros_like(beta), beta, initial_state=initial, output_final_state=True
    )
    output, final = function(query / 8**0.5, key, value, beta, initial)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(final, state, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "strength, chunk_size, tolerance", [(1.0, 16, 2e-6), (1.0, 64, 3e-6), (2.0, 16, 2e-5), (2.0, 64, 1e-4)]
)
def test_nearly_parallel_keys_cost_few_digits_in_float32(strength, chunk_size, tolerance):
    generator = torch.Generator().manual_seed(0)
    base, noise = (torch.randn(1, size, 2, 16, generator=generator) for size in (1, 512))
    key = F.normalize(base + 0.05 * noise, dim=-1)
    query, value = (torch.randn(1, 512, 2, 16, generator=generator) for _ in range(2))
    beta = torch.full((1, 512, 2), strength)
    exact, exact_state = delta_rule_recurrent(query.double(), key.double(), value.double(), beta.double())
    output, state = delta_rule_chunked(query, key, value, beta, chunk_size=chunk_size)
    assert (output - exact).abs().max() < tolerance * exact.abs().max()
    assert (state - exact_state).abs().max() < tolerance * exact_state.abs().max()


def test_a_unit_key_with_full_strength_returns_what_was_stored_last():
    key = torch.eye(3).repeat(2, 1).view(1, 6, 1, 3)
    value = torch.arange(12.0).view(1, 6, 1, 2)
    output, state = delta_rule(key, key, value, torch.ones(1, 6, 1))
    torch.testing.assert_close(output, value)
    torch.testing.assert_close(state[0, 0], value[0, 3:, 0])


def test_a_strength_of_two_reflects_the_state():
    key = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    initial = torch.tensor([[3.0], [5.0]]).view(1, 1, 2, 1)
    _, state = delta_rule(key, key, torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1), 2.0), initial)
    assert state.flatten().tolist() == [-3.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_float32(dtype):
    tensors = [tensor.detach().to(dtype) for tensor in _problem(time=20)]
    output, state = delta_rule(*tensors)
    expected, expected_state = delta_rule_recurrent(*(tensor.float() for tensor in tensors))
    assert (output.dtype, state.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(output, expected.to(dtype))
    torch.testing.assert_close(state, expected_state, rtol=1e-5, atol=1e-5)


def test_a_stack_of_replicas_equals_each_replica_alone():
    tensors = [torch.stack((tensor.detach(), tensor.detach().flip(0))) for tensor in _problem()]

    def loss(*args):
        output, final = delta_rule(*args)
        return output.pow(2).sum() + final.pow(3).sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3, 4)))(*tensors)
    for index in range(2):
        alone = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))(*(tensor[index] for tensor in tensors))
        for left, right in zip(gradients, alone, strict=True):
            torch.testing.assert_close(left[index], right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("position, name", [(0, "query"), (2, "value"), (3, "beta"), (4, "initial_state")])
def test_shapes_that_do_not_fit_are_refused_by_name(position, name):
    tensors = [tensor.detach() for tensor in _problem()]
    tensors[position] = tensors[position][:, :1]
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        delta_rule(*tensors)


@pytest.mark.parametrize("time", [2, 20])
def test_autocast_does_not_reach_the_state(time):
    tensors = [tensor.detach().float() for tensor in _problem(time=time)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = delta_rule(*tensors)
    expected, expected_state = delta_rule_recurrent(*tensors)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected_state, rtol=1e-5, atol=1e-5)
