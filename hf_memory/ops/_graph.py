"""An operation as one node of a compiled graph.

A compiler would unroll a loop over time or chunks, and make a graph for every length. So while one traces, an operation
is a node of two custom operators, ``hf_memory::run`` and ``hf_memory::back``, that know how large its results are for
any length, and run it as it is: with its backends, and computed once more for the gradients. An export sees the
operation itself, since what it writes has to load where this package is not installed.
"""

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Operation = TypeVar("Operation", bound=Callable[..., Any])

_OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {}


def graph_node(*timed: str) -> Callable[[Operation], Operation]:
    """Let an operation be one node while a graph is compiled.

    The operation takes tensors, tuples of tensors and plain values. The sizes of its results are linear in the steps.

    Args:
        *timed: Names of the arguments whose second axis is time; it may have length 1 in all but the first.
    """

    def decorate(operation: Operation) -> Operation:
        name = operation.__name__
        _OPERATIONS[name] = operation, timed
        signature = inspect.signature(operation)

        @functools.wraps(operation)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
                return operation(*args, **kwargs)
            return _as_node(name, signature.bind(*args, **kwargs).arguments)

        return torch.compiler.allow_in_graph(run)

    return decorate


def _as_node(name: str, arguments: dict[str, Any]) -> Any:
    """Call the operator, and give its results the form of the operation's."""
    leaves, form = pytree.tree_flatten(arguments)
    plain = [None if isinstance(leaf, Tensor) else [leaf] for leaf in leaves]
    call = json.dumps({"name": name, "form": pytree.treespec_dumps(form), "plain": plain})
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    are_tensors, form = _form_of_results(call, tensors)
    results = iter(torch.ops.hf_memory.run(call, tensors))
    return pytree.tree_unflatten([next(results) if is_tensor else None for is_tensor in are_tensors], form)


def _arguments(call: str, tensors: Sequence[Tensor]) -> tuple[str, dict[str, Any]]:
    """The operation and its arguments."""
    parts, waiting = json.loads(call), iter(tensors)
    leaves = [next(waiting) if leaf is None else leaf[0] for leaf in parts["plain"]]
    return parts["name"], pytree.tree_unflatten(leaves, pytree.treespec_loads(parts["form"]))


def _results(call: str, tensors: Sequence[Tensor]) -> list[Any]:
    """Results of the operation, side by side; one may be None."""
    name, arguments = _arguments(call, tensors)
    return pytree.tree_leaves(_OPERATIONS[name][0](**arguments))


def _of_steps(call: str, tensors: Sequence[Tensor], steps: int, make: Callable[[Tensor, list[Any]], Tensor]) -> Any:
    """Results of the operation on so many steps; ``make`` gives a tensor of another's kind with some sizes."""
    name, arguments = _arguments(call, tensors)
    operation, timed = _OPERATIONS[name]
    own_steps = arguments[timed[0]].shape[1]

    def cut(tensor: Tensor, key: str) -> Tensor:
        if key not in timed or (tensor.shape[1] == 1 and own_steps != 1):
            return make(tensor, list(tensor.shape))
        per_step = int(tensor.shape[1] // own_steps)  # several steps of a recurrence in a token
        return make(tensor, [tensor.shape[0], per_step * steps, *tensor.shape[2:]])

    cut_arguments = {
        key: pytree.tree_map_only(Tensor, functools.partial(cut, key=key), value) for key, value in arguments.items()
    }
    with torch.no_grad():
        return operation(**cut_arguments)


def _form_of_results(call: str, tensors: Sequence[Tensor]) -> tuple[list[bool], Any]:
    """Which results are tensors, and how they are nested: asked of tensors without values, whose open sizes are 2."""

    def empty(tensor: Tensor, shape: list[Any]) -> Tensor:
        return torch.empty([n if isinstance(n, int) else 2 for n in shape], dtype=tensor.dtype, device="meta")

    with torch.utils._python_dispatch._disable_current_modes():
        leaves, form = pytree.tree_flatten(_of_steps(call, tensors, 1, empty))
    return [isinstance(leaf, Tensor) for leaf in leaves], form


@torch.library.custom_op("hf_memory::run", mutates_args=())
def _run(call: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [_own(result) for result in _results(call, tensors) if isinstance(result, Tensor)]


def _own(result: Tensor) -> Tensor:
    """A result as a tensor of its own, laid out as was announced; an operation may hand on a state as it is."""
    return result.clone(memory_format=torch.contiguous_format)


@_run.register_fake
def _(call: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sizes for any number of steps, from those for one and for two."""
    name, arguments = _arguments(call, tensors)
    steps = arguments[_OPERATIONS[name][1][0]].shape[1]
    one, two = (pytree.tree_leaves(_of_steps(call, tensors, n, lambda t, shape: t.new_empty(shape))) for n in (1, 2))
    return [
        a.new_empty(
            [n if n is m or n == m else n + (m - n) * (steps - 1) for n, m in zip(a.shape, b.shape, strict=True)]
        )
        for a, b in zip(one, two, strict=True)
        if isinstance(a, Tensor)
    ]


@contextlib.contextmanager
def _recorded() -> Iterator[None]:
    """Let autograd record inside an operator, which runs below it."""
    kept = torch._C._dispatch_tls_local_exclude_set()
    for name, key in torch._C.DispatchKey.__members__.items():
        if name.startswith(("Autograd", "ADInplace")) and kept.has(key):
            kept = kept.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), kept), torch.enable_grad():
        yield


@torch.library.custom_op("hf_memory::back", mutates_args=())
def _back(call: str, tensors: Sequence[Tensor], gradients: Sequence[Tensor], wanted: Sequence[int]) -> list[Tensor]:
    own = [tensor.detach().requires_grad_(index in wanted) for index, tensor in enumerate(tensors)]
    inputs = [own[index] for index in wanted]
    with _recorded():
        results = [result for result in _results(call, own) if isinstance(result, Tensor)]
        used = [(result, given) for result, given in zip(results, gradients, strict=True) if result.requires_grad]
        found = torch.autograd.grad([r for r, _ in used], inputs, [g for _, g in used], allow_unused=True)
    return [i.new_zeros(i.shape) if grad is None else _own(grad) for i, grad in zip(inputs, found, strict=True)]


@_back.register_fake
def _(call: str, tensors: Sequence[Tensor], gradients: Sequence[Tensor], wanted: Sequence[int]) -> list[Tensor]:
    return [tensors[index].new_empty(tensors[index].shape) for index in wanted]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.call, ctx.tensors = inputs
    ctx.like = [(result.shape, result.dtype) for result in output]


def _backward(ctx: Any, gradients: list[Tensor | None]) -> tuple[None, list[Tensor | None]]:
    wanted = [index for index, tensor in enumerate(ctx.tensors) if tensor.requires_grad]
    like = ctx.tensors[wanted[0]]
    given = [
        like.new_zeros(shape, dtype=dtype) if gradient is None else gradient
        for gradient, (shape, dtype) in zip(gradients, ctx.like, strict=True)
    ]
    found = dict(zip(wanted, torch.ops.hf_memory.back(ctx.call, ctx.tensors, given, wanted), strict=True))
    return None, [found.get(index) for index in range(len(ctx.tensors))]


_run.register_autograd(_backward, setup_context=_keep)
