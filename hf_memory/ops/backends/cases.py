"""How each operation with kernels for a GPU is tried: its small inputs, its calls, and how near a kernel must come.

One table for all who hold a kernel against the definition: the proof before a kernel is used, the tests on a device and
the benchmark. Shapes are in the letters of :mod:`hf_memory.ops`; ``facts`` are those that the operation tells
:func:`hf_memory.ops.backends.dispatch.resolve_backend`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_memory.ops.attention import attention_recurrent
from hf_memory.ops.delta_rule import delta_rule, delta_rule_recurrent
from hf_memory.ops.diagonal_scan import diagonal_scan, diagonal_scan_recurrent
from hf_memory.ops.forgetting_attention import forgetting_attention
from hf_memory.ops.gated_linear_attention import gated_linear_attention, gated_linear_attention_recurrent
from hf_memory.ops.generalized_delta_rule import generalized_delta_rule, generalized_delta_rule_recurrent
from hf_memory.ops.ids4 import ids4_product, ids4_product_recurrent, ids4_state, ids4_state_recurrent
from hf_memory.ops.linear_attention import linear_attention, linear_attention_recurrent
from hf_memory.ops.nru import nru, nru_recurrent
from hf_memory.ops.selective_scan import selective_scan, selective_scan_recurrent
from hf_memory.ops.short_convolution import short_convolution, short_convolution_recurrent
from hf_memory.ops.taylor_attention import taylor_attention, taylor_attention_recurrent
from hf_memory.ops.wkv import wkv, wkv_recurrent

Tensors = dict[str, Tensor]
Facts = Mapping[str, Any]

HEAD = 64
"""Numbers per head where the facts name no other."""

TOLERANCES = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 3e-2,
}
"""Largest difference of a result or gradient, as a share of its largest number, by the dtype of the inputs.

Rounding leaves a tenth of it: of float32 1e-5 over the lengths that are tried, of bfloat16, with 8 bits, 3e-3 a number.
"""


class Size(NamedTuple):
    """Rows, steps and channels."""

    batch: int
    length: int
    width: int


@dataclasses.dataclass(frozen=True)
class Case:
    """How an operation is tried.

    Attributes:
        call: Calls a form of the operation, the first argument, with tensors, facts and options; results by name. Those
            whose name begins with ``output`` have the axes (B, T, ...).
        function: The operation.
        definition: The same, step by step.
        make: Inputs by the names of the arguments, in float32 or complex64.
        wide: Inputs that stay in float32 where the others are in half precision.
        facts: The facts under which the operation is shown, the dtype among them.
        has_lengths: Whether rows may have lengths of their own.
        optional_state: Whether the final state need not be asked for.
        switches: Options of the operation that follow from the facts and that its definition lacks.
    """

    call: Callable[..., Tensors]
    function: Any
    definition: Any
    make: Callable[[Size, Facts], Tensors]
    wide: frozenset[str] = frozenset()
    facts: Facts = dataclasses.field(default_factory=lambda: {"dtype": torch.float32})
    has_lengths: bool = True
    optional_state: bool = False
    switches: Callable[[Facts], dict[str, Any]] = lambda facts: {}

    def inputs(self, size: Size, facts: Facts) -> Tensors:
        """Random inputs on the CPU in the dtypes in which the operation gets them."""
        tensors = self.make(size, facts)
        if facts.get("has_initial_state") is False:
            tensors.pop("initial_state", None)
        dtype = facts["dtype"]
        wide = torch.promote_types(dtype, torch.float32)
        return {name: tensor.to(wide if name in self.wide else dtype) for name, tensor in tensors.items()}

    def run(self, backend: str, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
        """Results of the operation on one backend."""
        return self.call(self.function, tensors, facts, backend=backend, **self.switches(facts), **options)

    def define(self, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
        """Results of the definition."""
        return self.call(self.definition, tensors, facts, **options)

    def tolerance(self, dtype: torch.dtype) -> float:
        """How far a kernel may be off."""
        return TOLERANCES[dtype]


def _output_and_state(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    output, state = form(**tensors, **options)
    return {"output": output} if state is None else {"output": output, "final state": state}


def _scan_inputs(size: Size, facts: Facts) -> Tensors:
    """Decays just below one in size, of both signs or complex, or forget gates."""
    dtype, shape = facts["dtype"], tuple(size)
    kind = torch.complex64 if dtype.is_complex else torch.float32
    decay = torch.randn(shape, dtype=kind)
    decay = decay / decay.abs() * (1 - 0.1 * torch.rand(shape))
    return {
        "decay": decay.abs() if facts.get("forget_gate") else decay,
        "inputs": torch.randn(shape, dtype=kind),
        "initial_state": torch.randn(size.batch, size.width, dtype=kind),
    }


def _selective_inputs(size: Size, facts: Facts) -> Tensors:
    batch, length, width = size
    states = facts.get("state_size", 16)
    return {
        "x": torch.randn(batch, length, width),
        "dt": 0.1 * torch.rand(batch, length, width),
        "A": -torch.arange(1, states + 1).float().repeat(width, 1),
        "B": torch.randn(batch, length, states),
        "C": torch.randn(batch, length, states),
        "initial_state": torch.randn(batch, width, states),
    }


def _selective(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    negative = facts.get("negative_eigenvalues", False)
    return _output_and_state(form, tensors, facts, negative_eigenvalues=negative, **options)


def _unit_heads(size: Size, key_dim: int) -> Tensors:
    """Unit queries and keys, and values."""
    shape = (size.batch, size.length, max(1, size.width // HEAD))
    query, key = (F.normalize(torch.randn(*shape, key_dim), dim=-1) for _ in range(2))
    return {"query": query, "key": key, "value": torch.randn(*shape, HEAD)}


def _delta_inputs(size: Size, facts: Facts) -> Tensors:
    tensors = _unit_heads(size, facts.get("key_dim", HEAD))
    batch, length, heads, key_dim = tensors["key"].shape
    state = torch.randn(batch, heads, key_dim, HEAD)
    return {**tensors, "beta": torch.rand(batch, length, heads), "initial_state": state}


def _linear_inputs(size: Size, facts: Facts) -> Tensors:
    tensors = _unit_heads(size, facts.get("key_dim", HEAD))
    batch, length, heads, key_dim = tensors["key"].shape
    decay = -0.1 * torch.rand(batch, length, heads)
    return {**tensors, "log_decay": decay, "initial_state": torch.rand(batch, heads, key_dim, HEAD)}


def _linear(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    """With decays, and over positive features without decays and with the normaliser, which has no state to begin."""
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    output, state = form(**tensors, **options)
    normalized, sums = form(query.exp(), key.exp(), value, normalize=True, **options)
    return {"output": output, "final state": state, "output with normaliser": normalized, "its final state": sums}


def _gated_inputs(size: Size, facts: Facts) -> Tensors:
    """Decays for each key, and a bonus where the read comes before the step."""
    tensors = _linear_inputs(size, facts)
    tensors["log_decay"] = -0.1 * torch.rand(tensors["key"].shape)
    if facts.get("read", "after") == "before":
        tensors["bonus"] = torch.randn(tensors["key"].shape[2:])
    return tensors


def _gated(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    return _output_and_state(form, tensors, facts, read=facts.get("read", "after"), **options)


def _rule_inputs(size: Size, facts: Facts) -> Tensors:
    """A probe and its strengths, or a key and what is erased, both mild, and decays of any kind."""
    steps, decay = facts.get("steps", 1), facts.get("decay", "none")
    tensors = _unit_heads(size, facts.get("key_dim", HEAD))
    longer = _unit_heads(size._replace(length=steps * size.length), facts.get("key_dim", HEAD))
    batch, length, heads, key_dim = tensors["query"].shape
    found = {"query": tensors["query"], "probe": longer["key"], "value": longer["value"]}
    strength = torch.rand(batch, steps * length, heads)
    if facts.get("has_beta", False):
        found["beta"] = strength
    else:
        found |= {"key": longer["query"], "erase": 0.5 * strength.unsqueeze(-1) * longer["key"]}
    gates = (batch, length, heads, key_dim)[: 4 if decay == "key" else 3]
    if decay != "none":
        found["log_decay"] = -0.1 * torch.rand(gates)
    return {**found, "initial_state": torch.randn(batch, heads, key_dim, HEAD)}


def _rule(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    """With signs that turn at every third step, where there are signs."""
    given: dict[str, Any] = {"key": None, "erase": None, **tensors}
    if facts.get("has_sign", False):
        gates = tensors["log_decay"].detach()
        turned = torch.arange(gates.shape[1], device=gates.device) % 3 == 1
        given["sign"] = torch.ones_like(gates).masked_fill(turned.view(-1, *[1] * (gates.dim() - 2)), -1)
    return _output_and_state(form, given, facts, **options)


def _rule_by_steps(key: Tensor | None, probe: Tensor, beta: Tensor | None = None, **others: Any) -> Any:
    """The definition, which has no word for the strengths of writes."""
    key = beta.unsqueeze(-1) * probe if beta is not None else key
    return generalized_delta_rule_recurrent(key=key, probe=probe, **others)


def _forgetting_inputs(size: Size, facts: Facts) -> Tensors:
    tensors = _unit_heads(size, facts.get("key_dim", HEAD))
    return {**tensors, "log_forget": F.logsigmoid(torch.randn(tensors["key"].shape[:3]) + 2)}


def _forgetting(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    """Without history: queries and keys are the same columns."""
    inputs = [tensors[name] for name in ("query", "key", "value")]
    steps = torch.arange(inputs[0].shape[1], device=inputs[0].device).expand(len(inputs[0]), -1)
    return {"output": form(*inputs, steps, steps, decay=tensors["log_forget"].double().cumsum(1), **options)}


def _taylor_inputs(size: Size, facts: Facts) -> Tensors:
    tensors = _unit_heads(size, facts.get("key_dim", 16))
    batch, _, heads, inputs = tensors["key"].shape
    features = 1 + inputs + inputs * (inputs + 1) // 2
    return {**tensors, "initial_state": torch.rand(batch, heads, features, HEAD + 1)}


def _wkv_inputs(size: Size, facts: Facts) -> Tensors:
    batch, length, width = size
    key, value = torch.randn(2, batch, length, width).unbind(0)
    state = torch.stack([torch.randn(batch, width), torch.rand(batch, width) + 0.5, torch.randn(batch, width)], dim=1)
    return {
        "key": key,
        "value": value,
        "log_decay": -torch.rand(width),
        "bonus": torch.randn(width),
        "initial_state": state,
    }


def _nru_inputs(size: Size, facts: Facts) -> Tensors:
    """A net with 64 numbers in its state and 64 in its memory, with 4 heads."""
    shapes = {"weight_ih": (64, 64), "bias_ih": (64,), "weight_hh": (64, 128)}
    shapes |= {"weight_memory": (72, 128), "bias_memory": (72,)}
    tensors = {name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}
    inputs = torch.randn(size.batch, size.length, 64)
    return {"hidden_states": inputs, **tensors, "initial_state": torch.randn(size.batch, 128)}


def _nru(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    """The pair of its state as one tensor."""
    others = {name: tensor for name, tensor in tensors.items() if name != "initial_state"}
    output, (hidden, memory) = form(**others, initial_state=tensors["initial_state"].split(64, dim=-1), **options)
    return {"output": output, "final state": hidden, "final memory": memory}


def _ids4_inputs(size: Size, facts: Facts) -> Tensors:
    """Inputs of 16 channels, what is added to a state, small transitions, a state of either form and a readout."""
    batch, length, _ = size
    states = facts.get("state_size", 64)
    product = torch.eye(states) + torch.randn(batch, states, states) / states
    return {
        "hidden_states": torch.randn(batch, length, 16),
        "inputs": torch.randn(batch, length, states),
        "weight": torch.randn(16, states, states) / states,
        "initial_state": torch.randn(batch, states),
        "initial_product": product,
        "readout": torch.randn(states),
    }


def _ids4(forms: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    """Both forms: that of the state and that of the product."""
    x, weight = tensors["hidden_states"], tensors["weight"]
    output, state = forms[0](x, tensors["inputs"], weight, tensors["initial_state"], **options)
    readout, product = forms[1](x, tensors["readout"], weight, tensors["initial_product"], **options)
    return {"output": output, "final state": state, "output of products": readout, "final product": product}


def _convolution_inputs(size: Size, facts: Facts) -> Tensors:
    width = facts.get("width", 4)
    channels = facts.get("channels", size.width)
    window = torch.randn(size.batch, size.length + width - 1, channels)
    return {"window": window, "weight": torch.randn(channels, width), "bias": torch.randn(channels)}


def _convolution(form: Any, tensors: Tensors, facts: Facts, **options: Any) -> Tensors:
    return {
        "output": form(**tensors, activation="silu", **options),
        "output without activation": form(**tensors, **options),
    }


_TRAINING_MAMBA = {
    "dtype": torch.float32,
    "state_size": 16,
    "negative_eigenvalues": False,
    "has_initial_state": False,
    "state_needs_grad": False,
}

CASES: dict[str, Case] = {
    "diagonal_scan": Case(
        _output_and_state,
        diagonal_scan,
        diagonal_scan_recurrent,
        _scan_inputs,
        facts={"dtype": torch.float32, "forget_gate": False},
        switches=lambda facts: {"forget_gate": facts.get("forget_gate", False)},
    ),
    "selective_scan": Case(
        _selective,
        selective_scan,
        selective_scan_recurrent,
        _selective_inputs,
        facts=_TRAINING_MAMBA,
        optional_state=True,
    ),
    "wkv": Case(
        _output_and_state, wkv, wkv_recurrent, _wkv_inputs, facts={"dtype": torch.float32, "has_lengths": False}
    ),
    "nru": Case(_nru, nru, nru_recurrent, _nru_inputs),
    "ids4": Case(
        _ids4,
        (ids4_state, ids4_product),
        (ids4_state_recurrent, ids4_product_recurrent),
        _ids4_inputs,
        facts={"dtype": torch.float32, "state_size": 64},
    ),
    "short_convolution": Case(
        _convolution,
        short_convolution,
        short_convolution_recurrent,
        _convolution_inputs,
        facts={"dtype": torch.bfloat16, "width": 4, "channels": 512},
        has_lengths=False,
    ),
    "delta_rule": Case(
        _output_and_state,
        delta_rule,
        delta_rule_recurrent,
        _delta_inputs,
        wide=frozenset({"initial_state"}),
        facts={"dtype": torch.bfloat16, "key_dim": HEAD},
    ),
    "linear_attention": Case(
        _linear,
        linear_attention,
        linear_attention_recurrent,
        _linear_inputs,
        wide=frozenset({"initial_state", "log_decay"}),
        facts={"dtype": torch.bfloat16, "key_dim": HEAD},
    ),
    "gated_linear_attention": Case(
        _gated,
        gated_linear_attention,
        gated_linear_attention_recurrent,
        _gated_inputs,
        wide=frozenset({"initial_state", "log_decay", "bonus"}),
        facts={"dtype": torch.bfloat16, "key_dim": HEAD, "read": "after"},
    ),
    "generalized_delta_rule": Case(
        _rule,
        generalized_delta_rule,
        _rule_by_steps,
        _rule_inputs,
        wide=frozenset({"initial_state", "log_decay", "sign", "beta"}),
        facts={
            "dtype": torch.bfloat16,
            "key_dim": HEAD,
            "decay": "head",
            "has_beta": True,
            "has_sign": False,
            "steps": 1,
        },
    ),
    "forgetting_attention": Case(
        _forgetting,
        forgetting_attention,
        attention_recurrent,
        _forgetting_inputs,
        wide=frozenset({"log_forget"}),
        facts={"dtype": torch.bfloat16, "key_dim": HEAD, "has_history": False, "has_window": False},
        has_lengths=False,
        switches=lambda facts: {"is_causal": not facts.get("has_history", False)},
    ),
    "taylor_attention": Case(
        _output_and_state,
        taylor_attention,
        taylor_attention_recurrent,
        _taylor_inputs,
        wide=frozenset({"initial_state"}),
        facts={"dtype": torch.bfloat16, "key_dim": 16, "has_initial_state": False},
        optional_state=True,
    ),
}
"""How each operation is tried, by its name in ``KERNELS``."""
