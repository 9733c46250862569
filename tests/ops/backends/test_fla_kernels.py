"""The adapters of flash-linear-attention for gated attention and delta rules, in the conventions of that package.

Stand-ins have the signatures of the real functions, and compute the law twice: by the definitions of this package, and
by the plain ones that come with that package, where it is installed. What could be mistaken shows in either: the order
of arguments, the scale of the query, the sign of decays, what is read before and after them, the axes of the state.
"""

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest
import torch

from hf_memory.mixers.auto import mixer_class, mixer_config
from hf_memory.ops.attention import attention_recurrent
from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.cases import CASES, Size
from hf_memory.ops.backends.trial_process import distance, passes, wide
from hf_memory.ops.forgetting_attention import forgetting_attention
from hf_memory.ops.gated_linear_attention import gated_linear_attention_recurrent
from hf_memory.ops.generalized_delta_rule import generalized_delta_rule, generalized_delta_rule_recurrent
from tests.ops.backends.stand_ins import stand_in_package
from tests.ops.test_published_definitions import published

CALLS: list[str] = []
T = 7


class Own:
    """The laws by the definitions of this package; queries are scaled already."""

    @staticmethod
    def gla(q, k, v, g, state):
        return gated_linear_attention_recurrent(q, k, v, g, initial_state=state)

    @staticmethod
    def rwkv6(q, k, v, w, u, state):
        return gated_linear_attention_recurrent(q, k, v, w, u, "before", initial_state=state)

    @staticmethod
    def rule(q, k, v, g, beta, state):
        return generalized_delta_rule_recurrent(q, beta.unsqueeze(-1) * k, v, None, k, g, initial_state=state)

    @staticmethod
    def dplr(q, k, v, a, b, g, state):
        # There the state is read before it decays.
        return generalized_delta_rule_recurrent(q, k, v, b, -a * (-g).exp(), g, initial_state=state)

    @staticmethod
    def forgetting(q, k, v, g):
        steps = torch.arange(q.shape[1]).expand(len(q), -1)
        return attention_recurrent(q * q.shape[-1] ** 0.5, k, v, steps, steps, decay=g.cumsum(1))


class Published:
    """The laws by the plain files of the package."""

    @staticmethod
    def gla(q, k, v, g, state):
        return published("gla").naive_recurrent_gla(unscaled(q), k, v, g, state, output_final_state=True)

    @staticmethod
    def rwkv6(q, k, v, w, u, state):
        law = published("rwkv6", "recurrent_naive").naive_recurrent_rwkv6
        tensors = (tensor.transpose(1, 2) for tensor in (q, k, v, w))
        output, final = law(*tensors, u, scale=1.0, initial_state=state, output_final_state=True)
        return output.transpose(1, 2), final

    @staticmethod
    def rule(q, k, v, g, beta, state):
        options = {"scale": 1.0, "initial_state": state, "output_final_state": True}
        if k.shape[1] > q.shape[1]:
            law = published("gated_delta_product").naive_recurrent_gated_delta_product
            return law(q, k, v, g, beta, num_householder=k.shape[1] // q.shape[1], **options)
        if g is None:
            tensors = (tensor.transpose(1, 2) for tensor in (unscaled(q), k, v, beta))
            output, final = published("delta_rule").delta_rule_recurrence(*tensors, initial_state=state)
            return output.transpose(1, 2), final
        name = "gated_delta_rule" if g.dim() == 3 else "kda"
        return getattr(published(name), f"naive_recurrent_{name}")(q, k, v, g=g, beta=beta, **options)

    @staticmethod
    def dplr(q, k, v, a, b, g, state):
        tensors = (tensor.transpose(1, 2) for tensor in (unscaled(q), k, v, a, b, g))
        output, final = published("generalized_delta_rule/dplr").dplr_recurrence(*tensors, initial_state=state)
        return output.transpose(1, 2), final

    @staticmethod
    def forgetting(q, k, v, g):
        return published("forgetting_attn").naive_forgetting_attn(unscaled(q), k, v, g)


def unscaled(q):
    """What a plain form scales itself."""
    return q * q.shape[-1] ** 0.5


def begin(name, q, k, v, scale, state):
    """Note the call, check what half precision asks for, and scale the query."""
    CALLS.append(name)
    assert q.dtype == k.dtype == v.dtype
    assert v.shape[-1] % 2 == 0
    assert state is None or state.dtype == torch.float32
    return q * (k.shape[-1] ** -0.5 if scale is None else scale)


def of_attention(law):
    """Functions of attention, by module, with the parameters of the package as far as adapters use them."""

    def chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False):
        q = begin("gla", q, k, v, scale, initial_state)
        assert g.shape == k.shape
        output, final = law.gla(q, k, v, g, initial_state)
        return output, final if output_final_state else None

    def chunk_rwkv6(r, k, v, w, u, scale=None, initial_state=None, output_final_state=False):
        r = begin("rwkv6", r, k, v, scale, initial_state)
        assert w.shape == k.shape
        assert u.shape == k.shape[2:]
        output, final = law.rwkv6(r, k, v, w, u, initial_state)
        return output, final if output_final_state else None

    def parallel_forgetting_attn(q, k, v, g, scale=None):
        q = begin("forgetting_attn", q, k, v, scale, None)
        assert g.shape == k.shape[:3]
        return law.forgetting(q, k, v, g)

    return {
        "fla.ops.gla": {"chunk_gla": chunk_gla},
        "fla.ops.rwkv6": {"chunk_rwkv6": chunk_rwkv6},
        "fla.ops.forgetting_attn": {"parallel_forgetting_attn": parallel_forgetting_attn},
    }


def of_rules(law):
    """The same of delta rules."""

    def chunk_delta_rule(q, k, v, beta, scale=None, initial_state=None, output_final_state=False):
        q = begin("delta_rule", q, k, v, scale, initial_state)
        output, final = law.rule(q, k, v, None, beta, initial_state)
        return output, final if output_final_state else None

    def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        q = begin("gated_delta_rule", q, k, v, scale, initial_state)
        assert g.shape == beta.shape == k.shape[:3]
        output, final = law.rule(q, k, v, g, beta, initial_state)
        return output, final if output_final_state else None

    def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        q = begin("kda", q, k, v, scale, initial_state)
        assert g.shape == k.shape
        output, final = law.rule(q, k, v, g, beta, initial_state)
        return output, final if output_final_state else None

    def chunk_gated_delta_product(
        q, k, v, g, beta, num_householder, scale=None, initial_state=None, output_final_state=False
    ):
        q = begin("gated_delta_product", q, k, v, scale, initial_state)
        assert k.shape[1] == v.shape[1] == beta.shape[1] == num_householder * q.shape[1]
        assert g is None or g.shape == q.shape[:3]
        output, final = law.rule(q, k, v, g, beta, initial_state)
        return output, final if output_final_state else None

    def chunk_dplr_delta_rule(q, k, v, a, b, gk, scale=None, initial_state=None, output_final_state=False):
        q = begin("dplr", q, k, v, scale, initial_state)
        assert a.shape == b.shape == gk.shape == k.shape
        output, final = law.dplr(q, k, v, a, b, gk, initial_state)
        return output, final if output_final_state else None

    return {
        "fla.ops.delta_rule": {"chunk_delta_rule": chunk_delta_rule},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": chunk_gated_delta_rule},
        "fla.ops.kda": {"chunk_kda": chunk_kda},
        "fla.ops.gated_delta_product": {"chunk_gated_delta_product": chunk_gated_delta_product},
        "fla.ops.generalized_delta_rule": {"chunk_dplr_delta_rule": chunk_dplr_delta_rule},
    }


def stand_ins(law):
    """All functions of the package, by module."""
    return {**of_attention(law), **of_rules(law)}


@pytest.fixture(params=[Own, pytest.param(Published, marks=pytest.mark.kernels)])
def package(request, monkeypatch):
    """The package, whose kernels run on the CPU by one of the two laws."""
    CALLS.clear()
    if request.param is Published:  # find the files before the package is replaced
        root = importlib.util.find_spec("fla").submodule_search_locations
        monkeypatch.setattr(importlib.util, "find_spec", _finder(importlib.util.find_spec, root))
    with stand_in_package(monkeypatch, "fla-core", "0.6.0", stand_ins(request.param), "fla_"):
        yield


def _finder(find_spec, root):
    """``find_spec``, with the files of the package where they were."""

    class Found:
        submodule_search_locations = root

    return lambda name, *others: Found if name == "fla" else find_spec(name, *others)


@pytest.fixture
def on_cpu(package, monkeypatch):
    """Let the adapters take float32 on the CPU, where results can be compared to rounding."""
    monkeypatch.setattr(importlib.import_module("hf_memory.ops.backends.fla_common"), "DEVICE", "cpu")
    for op, kernel in PLACES:
        monkeypatch.setattr(dispatch.load_kernel(op, kernel), "DTYPES", (torch.float32,))


PLACES = (
    ("gated_linear_attention", "triton"),
    ("generalized_delta_rule", "triton"),
    ("generalized_delta_rule", "fla"),
    ("forgetting_attention", "triton"),
)
WANTED = [
    ("gated_linear_attention", {"read": "after"}, "gla"),
    ("gated_linear_attention", {"read": "before"}, "rwkv6"),
    ("generalized_delta_rule", {"has_beta": True, "decay": "none"}, "delta_rule"),
    ("generalized_delta_rule", {"has_beta": True, "decay": "head"}, "gated_delta_rule"),
    ("generalized_delta_rule", {"has_beta": True, "decay": "key"}, "kda"),
    ("generalized_delta_rule", {"has_beta": True, "decay": "key", "has_sign": True}, "kda"),
    ("generalized_delta_rule", {"has_beta": True, "decay": "none", "steps": 3}, "gated_delta_product"),
    ("generalized_delta_rule", {"has_beta": True, "decay": "head", "steps": 2}, "gated_delta_product"),
    ("generalized_delta_rule", {"has_beta": True, "decay": "key", "steps": 2}, "dplr"),
    ("generalized_delta_rule", {"has_beta": False, "decay": "none"}, "dplr"),
    ("generalized_delta_rule", {"has_beta": False, "decay": "head", "has_sign": True}, "dplr"),
    ("generalized_delta_rule", {"has_beta": False, "decay": "key", "steps": 2}, "dplr"),
    ("forgetting_attention", {}, "forgetting_attn"),
]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("op", "facts", "function"), WANTED, ids=lambda value: value if isinstance(value, str) else "")
def test_the_function_of_the_package_is_the_definition(op, facts, function, ragged):
    case = CASES[op]
    if ragged and not case.has_lengths:
        ragged = False
    facts = {**case.facts, **facts, "dtype": torch.float32, "key_dim": 6}
    tensors = case.inputs(Size(3, T, 128), facts)
    for name in ("value", "initial_state"):  # an odd number of columns, which half precision does not take
        if name in tensors:
            tensors[name] = tensors[name][..., :5]
    lengths = torch.tensor([T, 0, 3]) if ragged else None
    expected = passes(case, "torch", facts, wide(tensors), lengths)
    found = passes(case, "triton", facts, tensors, lengths)
    assert set(CALLS) == {function}
    for name in expected:
        assert distance(found[name], expected[name]) < 2e-5, name


@pytest.mark.usefixtures("on_cpu")
def test_scalar_decays_and_reads_without_a_bonus_are_given_in_full():
    query, key, value, log_decay = *torch.randn(3, 2, T, 2, 4), -torch.rand(2, T, 2)
    for decay in (log_decay, None):
        options = {"log_decay": decay, "read": "before", "initial_state": torch.randn(2, 2, 4, 4)}
        run = importlib.import_module("hf_memory.ops.gated_linear_attention").gated_linear_attention
        found = run(query, key, value, backend="triton", **options)
        for actual, wanted in zip(found, gated_linear_attention_recurrent(query, key, value, **options), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)
    assert CALLS == ["rwkv6"] * 2


KEYS = {
    "gla": ["gla"],
    "hgrn2": ["gla"],
    "rwkv6": ["rwkv6"],
    "gated_delta_net": ["gated_delta_rule"],
    "kda": ["kda"],
    "gated_delta_product": ["gated_delta_product"],
    "rwkv7": ["dplr"],
    "forgetting_attention": ["forgetting_attn"],
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("key", KEYS)
def test_a_layer_trains_on_its_function(key):
    config = mixer_config(key, vocab_size=8, hidden_size=16, num_hidden_layers=1)
    layer, inputs = mixer_class(key)(config, 0), torch.randn(2, 9, 16)
    layer.reset_parameters()
    expected = gradients_of(layer, inputs)
    assert CALLS == []
    with dispatch.use_backend("triton"):
        found = gradients_of(layer, inputs)
    assert KEYS[key] == CALLS
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def gradients_of(layer, inputs):
    output, _ = layer(inputs, return_state=False)
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape)
    used = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    found = torch.autograd.grad((output * weights).sum(), used, allow_unused=True, materialize_grads=True)
    return [output.detach(), *found]


USUAL = {"device": torch.device("cuda"), "dtype": torch.bfloat16}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("place", "facts", "reason"),
    [
        (0, {"read": "before"}, None),
        (0, {"dtype": torch.float16}, "its kernel is used for bfloat16, not for torch.float16"),
        (0, {"key_dim": 7}, "its keys have an even number of dimensions, not 7"),
        (1, {"has_sign": True, "steps": 3, "decay": "key"}, None),
        (1, {"key_dim": 258}, "its keys have an even number of at most 256 dimensions, not 258"),
        (1, {"device": torch.device("cpu")}, "its kernels need tensors on cuda, not on cpu"),
        (2, {"has_beta": True, "has_sign": True}, None),
        (2, {}, "its kernels write what they erase, with a strength that the caller names"),
        (2, {"has_beta": True, "steps": 2, "decay": "key"}, "its kernel of several steps in a token has no decay for each key"),  # noqa: E501
        (2, {"has_beta": True, "steps": 2, "has_sign": True}, "its kernel of several steps in a token has no signs"),
        (3, {}, None),
        (3, {"dtype": torch.float32}, "its kernel is used for bfloat16 and float16, not for torch.float32"),
        (3, {"has_history": True}, "its kernel has no columns before the first query"),
        (3, {"has_window": True}, "its kernel counts columns and not positions in a window"),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_do_is_said(place, facts, reason):
    assert dispatch.load_kernel(*PLACES[place]).refusal(**{**USUAL, **facts}) == reason


@pytest.mark.usefixtures("on_cpu")
def test_attention_with_a_history_is_left_to_torch():
    layer = mixer_class("forgetting_attention")(mixer_config("forgetting_attention", hidden_size=16, vocab_size=8), 0)
    layer.reset_parameters()
    inputs = torch.randn(2, 9, 16)
    expected, _ = layer(inputs)
    with dispatch.use_backend("triton"):
        first, state = layer(inputs[:, :5])
        second, _ = layer(inputs[:, 5:], state)
    assert CALLS == ["forgetting_attn"]
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_cpu")
def test_a_window_is_left_to_torch():
    query, steps = torch.randn(1, T, 2, 4), torch.arange(T)[None]
    inputs = (query, query, query, steps, steps, torch.zeros(1, T, 2))
    found = forgetting_attention(*inputs, window=3, is_causal=True, backend="triton")
    assert torch.equal(found, forgetting_attention(*inputs, window=3))
    assert CALLS == []


def test_strengths_stand_in_the_place_of_a_key():
    query, probe, value = torch.randn(3, 2, T, 1, 4)
    beta = torch.rand(2, T, 1)
    found = generalized_delta_rule(query, None, value, None, probe, beta=beta)
    expected = generalized_delta_rule(query, beta.unsqueeze(-1) * probe, value, None, probe)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    for key, erase, strength, name in (
        (probe, None, beta, "key"),
        (None, None, None, "key"),
        (None, probe, beta, "erase"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be None where there is a beta"):
            generalized_delta_rule(query, key, value, erase, probe, beta=strength)  # fmt: skip
    with pytest.raises(ValueError, match="beta must have shape"):
        generalized_delta_rule(query, None, value, None, probe, beta=beta[:, 1:])


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("module", "name", "function"),
    [(module, *pair) for module, functions in stand_ins(Own).items() for pair in functions.items()],
)
def test_stand_ins_have_the_parameters_of_the_package(module, name, function):
    """Read from the source: to import it makes transformers call its kernels."""
    (root,) = importlib.util.find_spec("fla").submodule_search_locations
    folder = Path(root, *module.split(".")[1:])
    exported = ast.parse((folder / "__init__.py").read_text())
    (source,) = [
        node.module
        for node in exported.body
        if isinstance(node, ast.ImportFrom) and name in [n.name for n in node.names]
    ]
    places = [folder / f"{source}.py", folder / source / "chunk.py"]
    (file,) = [place for place in places if place.exists()]
    (real,) = [node for node in ast.parse(file.read_text()).body if getattr(node, "name", None) == name]
    theirs, own = [argument.arg for argument in real.args.args], inspect.signature(function).parameters
    given = [parameter.name for parameter in own.values() if parameter.default is parameter.empty]
    assert theirs[: len(given)] == given
    assert set(own) <= set(theirs)
