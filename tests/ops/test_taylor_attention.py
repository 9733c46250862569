"""Taylor attention against its definition, and against the quadratic form of Based."""

import pytest
import torch

from hf_memory.ops.taylor_attention import (
    taylor_attention,
    taylor_attention_chunked,
    taylor_attention_recurrent,
    taylor_features,
)


def _problem(symmetric=True, normalize=True, batch=2, time=9, heads=2, size=3, value_dim=4):
    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    query, key = (draw(batch, time, heads, size) for _ in range(2))
    num_features = taylor_features(query, symmetric).shape[-1]
    # A state that real steps have left, so that its normaliser is positive.
    _, state = taylor_attention_recurrent(
        draw(batch, 5, heads, size), draw(batch, 5, heads, size), draw(batch, 5, heads, value_dim), symmetric, normalize
    )
    assert state.shape == (batch, heads, num_features, value_dim + normalize)
    return [tensor.requires_grad_() for tensor in (query, key, draw(batch, time, heads, value_dim), state)]


@pytest.mark.parametrize("symmetric, number", [(True, 1 + 5 + 15), (False, 1 + 5 + 25)])
def test_features_multiply_to_the_taylor_series_of_the_exponential(symmetric, number):
    query, key = torch.randn(2, 7, 5, dtype=torch.float64)
    features = taylor_features(query, symmetric)
    assert features.shape == (7, number)
    similarity = (query * key).sum(-1) / 5**0.5
    expected = 1 + similarity + similarity**2 / 2
    torch.testing.assert_close((features * taylor_features(key, symmetric)).sum(-1), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("symmetric", [True, False])
def test_output_is_the_quadratic_form_of_the_paper(symmetric):
    query, key, value, _ = _problem()
    scores = torch.einsum("bthf,bshf->bhts", query, key) * 3**-0.5
    weights = torch.tril(1 + scores + scores**2 / 2)
    expected = torch.einsum("bhts,bshv->bthv", weights / weights.sum(-1, keepdim=True), value)
    output, _ = taylor_attention(query, key, value, symmetric)
    torch.testing.assert_close(output, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("symmetric, normalize", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("lengths", [None, (9, 4), (0, 1)])
@pytest.mark.parametrize("chunk_size", [2, 4, 16])
def test_chunks_equal_the_definition_in_output_state_and_gradients(symmetric, normalize, lengths, chunk_size):
    tensors = _problem(symmetric, normalize)
    lengths = None if lengths is None else torch.tensor(lengths)
    results = []
    for function, options in ((taylor_attention_chunked, {"chunk_size": chunk_size}), (taylor_attention_recurrent, {})):
        *inputs, state = tensors
        output, final = function(
            *inputs, symmetric=symmetric, normalize=normalize, initial_state=state, lengths=lengths, **options
        )
        if lengths is not None:
            output = output.masked_fill((torch.arange(9) >= lengths[:, None])[:, :, None, None], 0)
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
        results.append((output, final, *torch.autograd.grad((output * weights).sum() + final.pow(2).sum(), tensors)))
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("lengths", [None, (9, 4), (0, 1)])
@pytest.mark.parametrize("time", [1, 9, 150])
def test_without_a_state_on_either_side_outputs_and_gradients_equal_the_definition(normalize, lengths, time):
    tensors = _problem(normalize=normalize, time=time)[:3]
    lengths = None if lengths is None else torch.tensor(lengths).clamp(max=time)
    padding = torch.arange(time) >= (time if lengths is None else lengths[:, None])
    results = []
    for function, options in ((taylor_attention, {"return_final_state": False}), (taylor_attention_recurrent, {})):
        output, final = function(*tensors, normalize=normalize, lengths=lengths, **options)
        output = output.masked_fill(padding.expand(2, time)[:, :, None, None], 0)
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
        results.append((output, *torch.autograd.grad((output * weights).sum(), tensors)))
        assert (final is None) == ("return_final_state" in options)
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("symmetric", [True, False])
def test_first_and_second_derivatives_agree_with_finite_differences(symmetric):
    tensors = _problem(symmetric, batch=1, time=3, heads=1, size=2, value_dim=1)

    def function(query, key, value, state):
        return taylor_attention_chunked(query, key, value, symmetric, initial_state=state, chunk_size=2)

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_handing_the_state_on_at_any_split_equals_one_pass():
    *inputs, initial = (tensor.detach() for tensor in _problem())
    whole, final = taylor_attention(*inputs, initial_state=initial)
    for cut in range(1, 9):
        first, state = taylor_attention(*(tensor[:, :cut] for tensor in inputs), initial_state=initial)
        second, last = taylor_attention(*(tensor[:, cut:] for tensor in inputs), initial_state=state)
        torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(last, final, rtol=1e-11, atol=1e-11)


def test_both_feature_sets_give_the_same_outputs_beyond_one_chunk_in_float32():
    query, key, value = (torch.randn(1, 300, 2, 8) for _ in range(3))
    exact, _ = taylor_attention_recurrent(query.double(), key.double(), value.double())
    for symmetric in (True, False):
        output, _ = taylor_attention(query, key, value, symmetric)
        torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=1e-5)


def test_large_half_precision_scores_stay_finite():
    query = torch.full((1, 6, 1, 16), 60.0, dtype=torch.float16)
    output, state = taylor_attention(query, query, torch.ones_like(query))
    assert (output.dtype, state.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(output, torch.ones_like(output))


@pytest.mark.parametrize("position, name", [(0, "query"), (2, "value"), (3, "initial_state")])
def test_shapes_that_do_not_fit_are_refused_by_name(position, name):
    tensors = [tensor.detach() for tensor in _problem()]
    tensors[position] = tensors[position][:, :1]
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        taylor_attention(*tensors[:3], initial_state=tensors[3])


def test_autocast_does_not_reach_the_state():
    query, key, value, state = (tensor.detach().float() for tensor in _problem())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, final = taylor_attention(query, key, value, initial_state=state)
    expected, expected_state = taylor_attention_recurrent(query, key, value, initial_state=state)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(final, expected_state, rtol=1e-5, atol=1e-5)
