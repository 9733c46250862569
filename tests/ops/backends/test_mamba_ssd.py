"""The adapter of mamba-ssm's chunked scan, with the laws of its three steps in the layout of that package."""

import pytest
import torch

from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.cases import CASES, Size
from hf_memory.ops.backends.trial_process import distance, passes, wide
from tests.ops.backends.stand_ins import stand_in_package

CALLS: list[str] = []


def chunks(tensor, count):
    """(B, T, H, X) to (B, T / c, c, H, X)."""
    return tensor.unflatten(1, (count, -1))


def chunk_state(B, x, dt, dA_cumsum, states_in_fp32=True):
    """States that each chunk adds (B, chunks, H, V, K)."""
    CALLS.append("chunk_state")
    count, size = dt.shape[2:]
    assert x.shape[1] == count * size
    assert dt.shape == dA_cumsum.shape == (x.shape[0], x.shape[2], count, size)
    weights = (dA_cumsum[..., -1:] - dA_cumsum).exp() * dt
    return torch.einsum("bclhn,bhcl,bclhp->bchpn", chunks(B, count), weights, chunks(x, count))


def state_passing(states, dA_chunk_cumsum, initial_states=None):
    """States before each chunk (B, chunks, H, V K), and the last."""
    assert states.dim() == 4
    assert dA_chunk_cumsum.shape == (states.shape[0], states.shape[2], states.shape[1])
    state, before = initial_states, []
    for new, decay in zip(states.unbind(1), dA_chunk_cumsum.exp().unbind(2), strict=True):
        before.append(state)
        state = decay.unsqueeze(-1) * state + new
    return torch.stack(before, 1), state


def chunk_scan(B, C, x, dt, dA_cumsum, prev_states, D=None, z=None):
    """Outputs (B, T, H, V)."""
    assert B.dtype == C.dtype == x.dtype
    count = dt.shape[2]
    keys, queries, values = (chunks(tensor, count) for tensor in (B, C, x))
    decay = (dA_cumsum.unsqueeze(-1) - dA_cumsum.unsqueeze(-2)).tril().exp().tril()
    scores = torch.einsum("bclhn,bcshn->bhcls", queries, keys) * decay * dt.unsqueeze(-2)
    own = torch.einsum("bhcls,bcshp->bclhp", scores, values)
    read = torch.einsum("bclhn,bchpn,bhcl->bclhp", queries, prev_states, dA_cumsum.exp())
    return (own + read).flatten(1, 2)


@pytest.fixture
def on_cpu(monkeypatch):
    """The package, whose kernels run on the CPU in float32, by chunks of 16 steps."""
    CALLS.clear()
    place = "mamba_ssm.ops.triton.ssd_"
    functions = {
        f"{place}{name}": {function.__name__: function}
        for name, function in (
            ("chunk_state", chunk_state),
            ("state_passing", state_passing),
            ("chunk_scan", chunk_scan),
        )
    }
    with stand_in_package(monkeypatch, "mamba-ssm", "2.3.2", functions, "mamba_ss"):
        kernel = dispatch.load_kernel("linear_attention", "mamba_ssm")
        for name, value in {"DEVICE": "cpu", "DTYPES": (torch.float32,), "MOST_CHUNK": 16}.items():
            monkeypatch.setattr(kernel, name, value)
        yield kernel


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("time", [1, 16, 37])
def test_its_three_steps_are_the_definition(time, ragged, monkeypatch):
    monkeypatch.setattr(dispatch, "PACKAGES", {("linear_attention", "triton"): "mamba_ssm"})
    case = CASES["linear_attention"]
    facts = {**case.facts, "dtype": torch.float32, "key_dim": 8}
    tensors = case.inputs(Size(3, time, 128), facts)
    tensors["value"], tensors["initial_state"] = tensors["value"][..., :5], tensors["initial_state"][..., :5]
    lengths = torch.tensor([time, 0, 1]) if ragged else None
    expected = passes(case, "torch", facts, wide(tensors), lengths)
    with dispatch.hold_to_kernel("mamba_ssm"):
        found = passes(case, "auto", facts, tensors, lengths)
    assert CALLS == ["chunk_state"] * 4
    for name in expected:
        assert distance(found[name], expected[name]) < 2e-5, name


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"device": torch.device("cuda")}, "its kernels need tensors on cpu, not on cuda"),
        ({"dtype": torch.float16}, "its kernels are used for bfloat16, not for torch.float16"),
        ({"key_dim": 20}, "its keys have a multiple of 8 and at most 256 dimensions, not 20"),
        ({"key_dim": 264}, "its keys have a multiple of 8 and at most 256 dimensions, not 264"),
    ],
)
def test_what_the_kernels_cannot_do_is_said(facts, reason, on_cpu):
    usual = {"device": torch.device("cpu"), "dtype": torch.float32, "key_dim": 64}
    assert on_cpu.refusal(**{**usual, **facts}) == reason
