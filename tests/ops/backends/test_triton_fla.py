"""The adapters of flash-linear-attention, with a stand-in that computes the same laws in that package's conventions.

The stand-in keeps what could be mistaken: a query scaled by 1 / sqrt(K) unless told otherwise, a state returned only
where asked for, a decay that is negated and raised to the exponential, an even number of columns. That the real
functions have the parameters used here is checked where the package is installed, in ``tests/test_gpu.py``.
"""

import importlib
import logging
import sys

import pytest
import torch

from hf_memory.mixers.qlstm import MemoryQLSTMConfig, QLSTMMixer
from hf_memory.ops.backends import dispatch
from hf_memory.ops.delta_rule import delta_rule, delta_rule_recurrent
from hf_memory.ops.diagonal_scan import diagonal_scan, diagonal_scan_recurrent
from hf_memory.ops.gated_linear_attention import gated_linear_attention, gated_linear_attention_recurrent
from hf_memory.ops.linear_attention import linear_attention, linear_attention_recurrent
from hf_memory.ops.taylor_attention import taylor_attention, taylor_attention_recurrent
from hf_memory.ops.wkv import wkv, wkv_recurrent
from tests.ops.backends.stand_ins import fresh_adapters, stand_in_package

B, T, H, K, V = 2, 7, 3, 4, 5
CPU = torch.device("cpu")
OPERATIONS = ("delta_rule", "linear_attention", "taylor_attention", "wkv")
CALLS: list[str] = []


def stand_in_delta_rule(q, k, v, beta, scale=None, initial_state=None, output_final_state=False):
    CALLS.append("delta_rule")
    assert q.dtype == k.dtype == v.dtype
    assert v.shape[-1] % 2 == 0
    assert initial_state is None or initial_state.dtype == torch.float32
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    output, final = delta_rule_recurrent(q * scale, k, v, beta, initial_state)
    return output, final.float() if output_final_state else None


def stand_in_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False):
    CALLS.append("linear_attention")
    assert q.dtype == k.dtype == v.dtype
    assert v.shape[-1] % 2 == 0
    assert g_gamma is None
    assert g is None or g.dtype == torch.float32
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    output, final = linear_attention_recurrent(q * scale, k, v, g, initial_state=initial_state)
    return output, final.float() if output_final_state else None


def stand_in_based(q, k, v, scale=None, use_norm=True):
    CALLS.append("taylor_attention")
    assert q.dtype == k.dtype == v.dtype
    assert q.shape[-1] <= 16
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights = torch.einsum("bthk,bshk->bhts", q * scale, k)
    weights = (1 + weights + weights**2 / 2).tril()
    output = torch.einsum("bhts,bshv->bthv", weights, v)
    return output / (weights.sum(-1).transpose(1, 2)[..., None] + 1e-6) if use_norm else output


def stand_in_rwkv4(w, u, k, v, state):
    CALLS.append("wkv")
    assert state.shape == (k.shape[0], 3, 1, k.shape[2])
    assert {tensor.dtype for tensor in (w, u, k, v, state)} == {torch.float32}
    output, final = wkv_recurrent(k, v, -torch.exp(w), u, state.squeeze(2))
    return output, final.unsqueeze(2)


def stand_in_hgrn(x, g, initial_state=None, output_final_state=False):
    CALLS.append("hgrn")
    assert x.shape == g.shape
    assert x.dim() == 3
    assert x.dtype == g.dtype == torch.float32
    assert (g <= 0).all()
    assert initial_state is None  # it would get no gradient
    states, final = diagonal_scan_recurrent(g.exp(), x)
    return states, final if output_final_state else None


@pytest.fixture
def stand_in(monkeypatch):
    """A package ``fla`` whose kernels run on the CPU in float32."""
    CALLS.clear()
    modules = {
        "fla.ops.delta_rule": {"chunk_delta_rule": stand_in_delta_rule},
        "fla.ops.simple_gla": {"chunk_simple_gla": stand_in_simple_gla},
        "fla.ops.based": {"fused_chunk_based": stand_in_based},
        "fla.ops.rwkv4": {"fused_recurrent_rwkv4": stand_in_rwkv4},
        "fla.ops.hgrn": {"chunk_hgrn": stand_in_hgrn},
    }
    with stand_in_package(monkeypatch, "fla-core", "0.6.0", modules, "fla_"):
        yield


@pytest.fixture
def without_package(monkeypatch):
    """No package ``fla``."""
    monkeypatch.setitem(sys.modules, "fla", None)
    with fresh_adapters(monkeypatch, "fla_"):
        yield


@pytest.fixture
def on_cpu(stand_in, monkeypatch):
    """Let the adapters take float32 on the CPU, where results can be compared to rounding."""
    monkeypatch.setattr(importlib.import_module("hf_memory.ops.backends.fla_common"), "DEVICE", "cpu")
    for op in OPERATIONS:
        monkeypatch.setattr(dispatch.load_kernel(op, "triton"), "DTYPES", (torch.float32,))


def tensors(*shapes):
    """Standard normal numbers of these shapes that take gradients."""
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def compare(fast, slow, inputs, lengths, tolerance=1e-5):
    """Outputs up to each length, final state and every gradient."""
    results = []
    for function in (fast, slow):
        output, state = function(*inputs)
        if lengths is not None:
            real = torch.arange(T) < lengths[:, None]
            output = output * real.view(B, T, *[1] * (output.dim() - 2))
        weights = [torch.linspace(-1, 1, part.numel()).view(part.shape) for part in (output, state)]
        loss = (output * weights[0]).sum() + (state * weights[1]).sum()
        results.append([output, state, *torch.autograd.grad(loss, inputs)])
    for actual, expected in zip(*results, strict=True):
        assert actual.shape == expected.shape
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


LENGTHS = [None, torch.tensor([T, 0]), torch.tensor([3, T])]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("columns", [V, V + 1])
def test_the_delta_rule_of_the_package_is_the_definition(has_state, lengths, columns):
    query, key, value, beta, *state = tensors(
        (B, T, H, K), (B, T, H, K), (B, T, H, columns), (B, T, H), *[(B, H, K, columns)] * has_state
    )

    def run(function, **options):
        def call(q, k, v, b, *initial):
            return function(q, k / k.norm(dim=-1, keepdim=True), v, b.sigmoid(), *initial, lengths=lengths, **options)

        return call

    compare(run(delta_rule, backend="triton"), run(delta_rule_recurrent), [query, key, value, beta, *state], lengths)
    assert CALLS == ["delta_rule"]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("has_decay", "has_state"), [(False, False), (True, True)])
def test_the_linear_attention_of_the_package_is_the_definition(normalize, has_decay, has_state, lengths):
    shapes = [(B, T, H, K), (B, T, H, K), (B, T, H, V)]
    inputs = tensors(*shapes, *[(B, T, H)] * has_decay, *[(B, H, K, V + normalize)] * has_state)

    def run(function, **options):
        def call(q, k, v, *rest):
            decay = -rest[0].exp() if has_decay else None
            state = rest[-1].exp() if has_state else None
            features = q.exp(), k.exp()
            return function(*features, v, decay, normalize=normalize, initial_state=state, lengths=lengths, **options)

        return call

    compare(run(linear_attention, backend="triton"), run(linear_attention_recurrent), inputs, lengths, 2e-5)
    assert CALLS == ["linear_attention"]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("per_key", "calls"), [(False, ["linear_attention"]), (True, [])])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_gated_linear_attention_takes_the_kernel_of_the_package_where_one_number_decays_all_keys(
    per_key, calls, lengths
):
    inputs = tensors((B, T, H, K), (B, T, H, K), (B, T, H, V), (B, T, H, K) if per_key else (B, T, H), (B, H, K, V))

    def run(function, **options):
        def call(q, k, v, gate, state):
            return function(q, k, v, -gate.exp(), initial_state=state, lengths=lengths, **options)

        return call

    compare(run(gated_linear_attention, backend="triton"), run(gated_linear_attention_recurrent), inputs, lengths, 2e-5)
    assert calls == CALLS


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_taylor_attention_of_the_package_is_the_definition(symmetric, normalize, lengths):
    inputs = tensors((B, T, H, K), (B, T, H, K), (B, T, H, V))

    def run(function, **options):
        return lambda *args: function(*args, symmetric=symmetric, normalize=normalize, lengths=lengths, **options)

    compare(run(taylor_attention, backend="triton"), run(taylor_attention_recurrent), inputs, lengths)
    assert CALLS == ["taylor_attention"]
    alone, state = run(taylor_attention, backend="triton", return_final_state=False)(*inputs)
    assert state is None
    assert torch.equal(alone, run(taylor_attention, backend="triton")(*inputs)[0])
    assert CALLS == ["taylor_attention"] * 3


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("has_state", [False, True])
def test_the_wkv_of_the_package_is_the_definition(has_state):
    inputs = tensors((B, T, K), (B, T, K), (K,), (K,), *[(B, 3, K)] * has_state)

    def run(function, **options):
        def call(k, v, w, u, *state):
            # The denominator of a state is positive.
            state = [torch.stack([s[:, 0], s[:, 1].exp(), s[:, 2]], 1) for s in state]
            return function(k, v, -w.exp(), u, *state, **options)

        return call

    compare(run(wkv, backend="triton"), run(wkv_recurrent), inputs, None)
    assert CALLS == ["wkv"]


@pytest.mark.usefixtures("on_cpu")
def test_a_wkv_that_forgets_nothing_has_the_gradient_of_its_decay():
    key, value, bonus = torch.randn(B, T, K), torch.randn(B, T, K), torch.zeros(K)
    gradients = []
    for function, options in ((wkv, {"backend": "triton"}), (wkv_recurrent, {})):
        decay = torch.zeros(K, requires_grad=True)
        function(key, value, decay, bonus, **options)[0].square().sum().backward()
        gradients.append(decay.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
    assert CALLS == ["wkv"]


def half_precision_arguments(op):
    """Arguments of an operation in the dtype that its kernel takes, as a model would give them."""
    query, key, value = torch.randn(B, T, H, K), torch.randn(B, T, H, K), torch.randn(B, T, H, V).bfloat16()
    if op == "wkv":
        return (torch.randn(B, T, K).bfloat16(), torch.randn(B, T, K).bfloat16(), -torch.ones(K), torch.zeros(K))
    if op == "delta_rule":
        return (query, key / key.norm(dim=-1, keepdim=True), value, torch.rand(B, T, H))
    return (query.exp(), key.exp(), value)


FUNCTIONS = {
    "delta_rule": delta_rule,
    "linear_attention": linear_attention,
    "taylor_attention": taylor_attention,
    "wkv": wkv,
}


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("op", OPERATIONS)
def test_half_precision_gives_outputs_of_its_dtype_and_a_state_in_float32(op, monkeypatch):
    monkeypatch.setattr(importlib.import_module("hf_memory.ops.backends.fla_common"), "DEVICE", "cpu")
    arguments = half_precision_arguments(op)
    output, state = FUNCTIONS[op](*arguments, backend="triton")
    expected, expected_state = FUNCTIONS[op](*arguments, backend="torch")
    assert [op] == CALLS
    assert (output.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    # The kernels take every input in half precision; the torch forms keep queries and keys in float32.
    for actual, wanted in ((output.float(), expected.float()), (state, expected_state)):
        assert (actual - wanted).norm() < 2e-2 * wanted.norm()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("op", "facts", "reason"),
    [
        ("delta_rule", {"dtype": torch.bfloat16, "device": CPU}, "need tensors on cuda, not on cpu"),
        ("delta_rule", {"dtype": torch.float32}, "used for bfloat16 and float16, not for torch.float32"),
        ("delta_rule", {"dtype": torch.float16, "key_dim": 258}, "at most 256 dimensions, not 258"),
        ("delta_rule", {"dtype": torch.float16, "key_dim": 5}, "an even number of at most 256 dimensions, not 5"),
        ("linear_attention", {"dtype": torch.float16}, "used for bfloat16, not for torch.float16"),
        ("linear_attention", {"dtype": torch.bfloat16, "key_dim": 33}, "an even number of dimensions, not 33"),
        ("taylor_attention", {"dtype": torch.bfloat16, "key_dim": 17}, "at most 16 dimensions, not 17"),
        ("taylor_attention", {"dtype": torch.bfloat16, "has_initial_state": True}, "no initial state"),
        ("wkv", {"dtype": torch.float64}, "used for float32, not for torch.float64"),
        ("wkv", {"dtype": torch.float32, "has_lengths": True}, "no lengths"),
    ],
)
def test_each_limit_is_named_once_and_left_to_torch(op, facts, reason, caplog):
    facts = {"device": torch.device("cuda"), **facts}
    with caplog.at_level(logging.WARNING, logger=dispatch.__name__):
        assert [dispatch.resolve_backend(op, "triton", **facts) for _ in range(3)] == ["torch"] * 3
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{op} runs in torch instead of triton: ")
    assert reason in record.getMessage()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_kernel_runs_where_it_is_asked_for_by_name_and_never_by_itself(op, monkeypatch):
    facts = {"device": torch.device("cuda"), "dtype": torch.float32 if op == "wkv" else torch.bfloat16}
    assert dispatch.resolve_backend(op, **facts) == "torch"
    assert dispatch.resolve_backend(op, "triton", **facts) == "triton"
    with dispatch.use_backend("triton"):
        assert dispatch.resolve_backend(op, **facts) == "triton"
    monkeypatch.setenv("HF_MEMORY_BACKEND", "triton")
    assert dispatch.resolve_backend(op, **facts) == "triton"


@pytest.mark.usefixtures("on_cpu")
def test_stacked_replicas_are_left_to_torch():
    query, key, value, beta = torch.rand(2, B, T, H, K), torch.rand(2, B, T, H, K), torch.rand(2, B, T, H, V), 0.5
    strength = torch.full((2, B, T, H), beta)
    with dispatch.use_backend("triton"):
        output, _ = torch.func.vmap(delta_rule)(query, key, value, strength)
    assert CALLS == []
    alone, _ = delta_rule_recurrent(query[1], key[1], value[1], strength[1])
    torch.testing.assert_close(output[1], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("without_package")
@pytest.mark.parametrize("op", OPERATIONS)
def test_without_the_package_torch_does_the_work_and_says_why(op, caplog):
    arguments = half_precision_arguments(op)
    with caplog.at_level(logging.WARNING, logger=dispatch.__name__):
        output, _ = FUNCTIONS[op](*arguments, backend="triton")
    assert torch.equal(output, FUNCTIONS[op](*arguments, backend="torch")[0])
    assert f"{op} runs in torch instead of triton: it cannot be imported" in caplog.text


@pytest.mark.usefixtures("stand_in")
def test_the_package_is_reported_under_its_own_name(caplog):
    with caplog.at_level(logging.INFO, logger=dispatch.__name__):
        dispatch.load_kernel("wkv", "triton")
    assert [record.getMessage() for record in caplog.records] == ["wkv can run on fla-core 0.6.0"]


@pytest.fixture
def hgrn_on_cpu(stand_in, monkeypatch):
    monkeypatch.setattr(importlib.import_module("hf_memory.ops.backends.fla_common"), "DEVICE", "cpu")
    return dispatch.load_kernel("diagonal_scan", "fla")


@pytest.mark.usefixtures("hgrn_on_cpu")
@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 0])])
@pytest.mark.parametrize("trailing", [(K,), (H, K)])
def test_the_scan_gives_states_and_gradients_of_the_definition(trailing, lengths):
    gate = torch.rand(B, T, *trailing)
    gate[0, 2:4] = 0  # what came before is gone
    inputs = [gate.requires_grad_(), *tensors((B, T, *trailing), (B, *trailing))]
    options = {"lengths": lengths, "forget_gate": True, "backend": "triton"}
    compare(
        lambda *args: diagonal_scan(*args, **options),
        lambda *args: diagonal_scan_recurrent(*args, lengths=lengths),
        inputs,
        lengths,
    )
    assert CALLS == ["hgrn"]


@pytest.mark.usefixtures("hgrn_on_cpu")
def test_a_quasi_lstm_runs_on_the_scan_and_splits_anywhere():
    layer, x = QLSTMMixer(MemoryQLSTMConfig(hidden_size=8, num_hidden_layers=1), 0), torch.randn(2, 9, 8)
    expected, final = layer(x)
    with dispatch.use_backend("triton"):
        first, state = layer(x[:, :4])
        second, last = layer(x[:, 4:], state)
    assert CALLS == ["hgrn", "hgrn"]
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(last["cell"], final["cell"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"forget_gate": True}, None),
        ({}, "its kernel takes the logarithm of decays, which must be forget gates"),
        ({"forget_gate": True, "dtype": torch.complex64}, "its kernel is used for float32, not for torch.complex64"),
        ({"forget_gate": True, "device": CPU}, "its kernels need tensors on cuda, not on cpu"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_the_scan_refuses_what_is_no_forget_gate(facts, reason):
    usual = {"device": torch.device("cuda"), "dtype": torch.float32}
    assert dispatch.load_kernel("diagonal_scan", "fla").refusal(**{**usual, **facts}) == reason
