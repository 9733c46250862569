"""The short convolution against its definition, and the adapter of causal-conv1d with a stand-in for its kernel."""

import pytest
import torch
from torch.nn import functional as F

from hf_memory.models.layers import ShortConvolution
from hf_memory.ops.backends import dispatch
from hf_memory.ops.short_convolution import short_convolution, short_convolution_recurrent
from tests.ops.backends.stand_ins import stand_in_package

CALLS = []


def draw(width, time=6, channels=8, dtype=torch.float64):
    shapes = ((2, width - 1 + time, channels), (channels, width), (channels,))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def compare(tensors, activation, with_bias, tolerance=1e-12, **options):
    window, weight, bias = tensors
    inputs = tensors if with_bias else tensors[:2]
    results = []
    for function, further in ((short_convolution, options), (short_convolution_recurrent, {})):
        output = function(window, weight, bias if with_bias else None, activation, **further)
        loss = (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)).sum()
        results.append([output, *torch.autograd.grad(loss, inputs)])
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, rtol=0, atol=tolerance)
    return results[0][0]


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(("width", "time"), [(1, 3), (2, 1), (4, 1), (4, 7), (9, 5)])
def test_values_and_gradients_are_those_of_the_definition(width, time, activation, with_bias, backend):
    output = compare(draw(width, time, channels=3), activation, with_bias, backend=backend)
    assert output.shape == (2, time, 3)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_second_gradients_of_the_compiled_loops_are_those_of_the_definition(activation, with_bias):
    tensors = draw(4, channels=3)
    window, weight, bias = tensors
    inputs = tensors if with_bias else tensors[:2]
    results = []
    for function, further in ((short_convolution, {"backend": "numba"}), (short_convolution_recurrent, {})):
        output = function(window, weight, bias if with_bias else None, activation, **further)
        first = torch.autograd.grad((output**3).sum(), inputs, create_graph=True)
        results.append(torch.autograd.grad(sum((grad**2).sum() for grad in first), inputs))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [1.0, 40.0, 1e4])
def test_compiled_loops_keep_the_digits_of_float32_also_where_the_activation_saturates(scale):
    window, weight, bias = (tensor.detach() for tensor in draw(4, time=9, channels=70, dtype=torch.float32))
    results = []
    for function, dtype, further in (
        (short_convolution, torch.float32, {"backend": "numba"}),
        (short_convolution_recurrent, torch.float64, {}),
    ):
        inputs = [tensor.to(dtype).requires_grad_() for tensor in (window * scale, weight, bias)]
        output = function(*inputs, "silu", **further)
        results.append([output, *torch.autograd.grad(output.sum(), inputs)])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-6 * exact.abs().max().item())


def test_many_gradients_at_once_are_those_one_by_one():
    tensors = draw(3, time=2, channels=2)
    output = short_convolution(*tensors, activation="silu", backend="numba")
    basis = torch.eye(8, dtype=torch.float64).view(8, 2, 2, 2)
    together = torch.autograd.grad(output, tensors, basis, is_grads_batched=True, retain_graph=True)
    for index, one in enumerate(basis):
        alone = torch.autograd.grad(output, tensors, one, retain_graph=True)
        torch.testing.assert_close([grads[index] for grads in together], list(alone), rtol=1e-12, atol=1e-12)


def test_a_frozen_filter_and_its_window_need_no_gradient():
    window, weight, bias = draw(3)
    expected = torch.autograd.grad(short_convolution_recurrent(window, weight, bias).square().sum(), bias)[0]
    output = short_convolution(window.detach(), weight.detach(), bias, backend="numba")
    (grad,) = torch.autograd.grad(output.square().sum(), bias, create_graph=True)
    torch.testing.assert_close(grad, expected)


def test_an_unknown_activation_is_named():
    with pytest.raises(ValueError, match="activation must be one of None, 'silu', got 'gelu'"):
        short_convolution(*draw(2), activation="gelu")


def stand_in(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
             final_states_out=None, activation=None):  # fmt: skip
    """The law of the package in its layout (B, D, T), zeros before the first step, as 1.7 checks its arguments."""
    CALLS.append(tuple(x.shape))
    assert x.stride(1) == 1
    assert x.stride(0) % 8 == 0
    assert x.stride(2) % 8 == 0
    assert 2 <= weight.shape[1] <= 4
    assert activation in (None, "silu", "swish")
    padded = F.pad(x, (weight.shape[1] - 1, 0))
    output = F.conv1d(padded, weight.unsqueeze(1), bias, groups=weight.shape[0])
    return output if activation is None else F.silu(output)


@pytest.fixture
def package(monkeypatch):
    """A package ``causal_conv1d`` whose kernel runs on the CPU."""
    CALLS.clear()
    modules = {"causal_conv1d": {"causal_conv1d_fn": stand_in}}
    with stand_in_package(monkeypatch, "causal-conv1d", "1.7.0", modules, "causal_conv1d"):
        yield dispatch.load_kernel("short_convolution", "triton")


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_the_adapter_gives_the_definition_with_the_gradient_of_the_history(
    width, activation, with_bias, package, monkeypatch
):
    monkeypatch.setattr(package, "DEVICE", "cpu")
    compare(draw(width, dtype=torch.float32), activation, with_bias, tolerance=1e-5, backend="triton")
    assert [(2, 8, width - 1 + 6)] == CALLS


def test_a_layer_runs_on_it_and_splits_anywhere(package, monkeypatch):
    monkeypatch.setattr(package, "DEVICE", "cpu")
    layer, x = ShortConvolution(16, 4, activation="silu"), torch.randn(2, 9, 16)
    expected, final = layer(x)
    with dispatch.use_backend("triton"):
        whole, last = layer(x)
        first, middle = layer(x[:, :4])
        second, end = layer(x[:, 4:], middle)
    assert len(CALLS) == 3
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=0, atol=1e-6)
    for state in (last, end):
        torch.testing.assert_close(state["inputs"], final["inputs"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"device": torch.device("cpu")}, "its kernel needs tensors on cuda, not on cpu"),
        ({"dtype": torch.float64}, "its kernel does not take torch.float64"),
        ({"width": 5}, "its kernel takes widths 2 to 4, not 5"),
        ({"width": 1}, "its kernel takes widths 2 to 4, not 1"),
        ({"channels": 12}, "its kernel takes a multiple of 8 channels, not 12"),
    ],
)
def test_what_the_kernel_cannot_do_is_said(facts, reason, package):
    usual = {"device": torch.device("cuda"), "dtype": torch.bfloat16, "width": 4, "channels": 16}
    assert package.refusal(**{**usual, **facts}) == reason


def test_stacks_and_other_transforms_stay_with_torch(package, monkeypatch):
    monkeypatch.setattr(package, "DEVICE", "cpu")
    window, weight, bias = (tensor.detach().float() for tensor in draw(3))
    stacked = torch.stack([weight, 2 * weight])
    with dispatch.use_backend("triton"):
        together = torch.vmap(lambda own: short_convolution(window, own, bias))(stacked)
    assert CALLS == []
    torch.testing.assert_close(together[1], short_convolution(window, 2 * weight, bias))
