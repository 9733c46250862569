"""The adapter of mamba-ssm, with transformers' scan behind the signature and the limits of that package."""

import logging
import sys

import pytest
import torch
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

from hf_memory.mixers.mamba import MambaMixer, MemoryMambaConfig
from hf_memory.ops.backends import dispatch
from hf_memory.ops.selective_scan import selective_scan, selective_scan_recurrent
from tests.ops.backends.stand_ins import fresh_adapters, stand_in_package

CALLS = []
USUAL = {"device": torch.device("cuda"), "dtype": torch.float32}


def stand_in(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """The law of the package in its layout, time last; the last state is outside of the graph, as it is there."""
    CALLS.append(tuple(u.shape))
    assert u.dtype == delta.dtype == A.dtype == B.dtype == C.dtype == torch.float32
    assert B.shape == C.shape == (u.shape[0], A.shape[1], u.shape[2])
    y, state = mamba_selective_scan.__wrapped__(u, delta, A, B, C, return_last_state=True)
    return (y, state.detach()) if return_last_state else y


@pytest.fixture
def package(monkeypatch):
    """A package ``mamba_ssm`` whose kernel runs on the CPU."""
    CALLS.clear()
    functions = {"mamba_ssm.ops.selective_scan_interface": {"selective_scan_fn": stand_in}, "selective_scan_cuda": {}}
    with stand_in_package(monkeypatch, "mamba-ssm", "2.3.2", functions, "mamba_ssm"):
        yield


@pytest.fixture
def on_cpu(package, monkeypatch):
    monkeypatch.setattr(dispatch.load_kernel("selective_scan", "mamba_ssm"), "DEVICE", "cpu")


def problem(batch=2, steps=7, width=4, size=3):
    draws = torch.randn(3, batch, steps, width)
    x, B, C = draws[0], draws[1, ..., :size], draws[2, ..., :size]
    return [tensor.requires_grad_() for tensor in (x, torch.rand_like(x), -3 * torch.rand(width, size), B, C)]


@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 4])])
@pytest.mark.usefixtures("on_cpu")
def test_outputs_and_gradients_are_those_of_the_definition(lengths):
    inputs, results = problem(), []
    for function, options in ((selective_scan, {"return_final_state": False}), (selective_scan_recurrent, {})):
        with dispatch.use_backend("triton"):
            y, _ = function(*inputs, lengths=lengths, **options)
        if lengths is not None:
            y = y * (torch.arange(7) < lengths[:, None]).unsqueeze(-1)
        loss = (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()
        results.append([y, *torch.autograd.grad(loss, inputs)])
    assert CALLS == [(2, 4, 7)]
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 0])])
@pytest.mark.usefixtures("on_cpu")
def test_without_gradients_the_last_state_is_that_of_the_definition(lengths):
    inputs = [tensor.detach() for tensor in problem()]
    with torch.no_grad():
        _, state = selective_scan(*inputs, lengths=lengths, backend="triton")
    assert len(CALLS) == 1
    torch.testing.assert_close(state, selective_scan_recurrent(*inputs, lengths=lengths)[1], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("on_cpu")
def test_a_layer_trains_on_it_and_leaves_what_it_cannot_do_to_the_next(caplog):
    layer, x = MambaMixer(MemoryMambaConfig(hidden_size=8, num_hidden_layers=1), 0), torch.randn(2, 9, 8)
    layer.reset_parameters()
    expected, _ = layer(x)
    with dispatch.use_backend("triton"), caplog.at_level(logging.WARNING, "hf_memory"):
        y, _ = layer(x, return_state=False)
        assert len(CALLS) == 1
        first, state = layer(x[:, :4])
        second, _ = layer(x[:, 4:], state)
    assert len(CALLS) == 1
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=0, atol=1e-6)
    said = [message for message in caplog.messages if message.startswith("selective_scan runs in triton instead of")]
    assert sorted(message.rsplit(": ")[1] for message in said) == [
        "its kernel gives the last state no gradient",
        "its kernel has no initial state",
    ]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"device": torch.device("cpu")}, "its kernel needs tensors on cuda, not on cpu"),
        ({"dtype": torch.float64}, "its kernel does not take torch.float64"),
        ({"state_size": 257}, "its kernel takes at most 256 states, not 257"),
        ({"negative_eigenvalues": True}, "its kernel has no negative eigenvalues"),
        ({"has_initial_state": True}, "its kernel has no initial state"),
        ({"state_needs_grad": True}, "its kernel gives the last state no gradient"),
    ],
)
@pytest.mark.usefixtures("package")
def test_what_the_kernel_cannot_do_is_said(facts, reason):
    assert dispatch.load_kernel("selective_scan", "mamba_ssm").refusal(**{**USUAL, **facts}) == reason


@pytest.mark.parametrize(("size", "negative"), [(257, False), (3, True)])
@pytest.mark.usefixtures("on_cpu")
def test_states_and_signs_that_the_kernel_lacks_run_elsewhere(size, negative):
    inputs = [tensor.detach() for tensor in problem(width=257, size=size)]
    y, _ = selective_scan(*inputs, negative_eigenvalues=negative, return_final_state=False, backend="triton")
    assert CALLS == []
    expected, _ = selective_scan_recurrent(*inputs, negative_eigenvalues=negative)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("on_cpu")
def test_stacks_stay_with_kernels_that_know_them():
    x, dt, A, B, C = (tensor.detach() for tensor in problem())
    rates = torch.stack([A, 2 * A])
    with dispatch.use_backend("triton"):
        y = torch.vmap(lambda own: selective_scan(x, dt, own, B, C, return_final_state=False)[0])(rates)
    assert CALLS == []
    torch.testing.assert_close(y[1], selective_scan(x, dt, 2 * A, B, C)[0])


@pytest.mark.usefixtures("package")
def test_a_package_without_its_extension_is_passed_over_with_a_line(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "selective_scan_cuda", None)
    inputs = [tensor.detach() for tensor in problem()]
    with caplog.at_level(logging.WARNING, "hf_memory"):
        selective_scan(*inputs, return_final_state=False, backend="triton")
    assert "selective_scan runs in triton instead of mamba_ssm: it cannot be imported" in caplog.text
    assert CALLS == []


def test_nothing_is_said_of_a_package_that_is_not_installed(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "_is_installed", lambda name: name != "mamba_ssm")
    with fresh_adapters(monkeypatch, "mamba_ssm"), caplog.at_level(logging.WARNING, "hf_memory"):
        assert dispatch.resolve_backend("selective_scan", "triton", **USUAL) in ("triton", "torch")
    assert "mamba_ssm" not in caplog.text
