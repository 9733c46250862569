"""What may be asked of tensors whose values may not be there: on another device, in a graph that is traced, in a fake.

Values are read where that costs nothing: eagerly on a CPU. On other devices and while a graph is traced a check becomes
an assertion of the graph, which raises a ``RuntimeError`` with the same words. A shortcut that depends on data is taken
where the data can be seen at all; a branch on them would break an export.
"""

import torch
from torch import Tensor


def check_range(name: str, values: Tensor, low: int, high: int, words: str) -> None:
    """Require ``low <= values <= high``. Raises a ``ValueError`` with the name, the words and what was found."""
    if is_opaque(values):
        return
    smallest, largest = torch.aminmax(values)
    if not _is_readable(values):
        torch._assert_async((smallest >= low) & (largest <= high), f"{name} must be {words}")
    elif int(smallest) < low or int(largest) > high:
        raise ValueError(f"{name} must be {words}; got {int(smallest)} to {int(largest)}")


def require(holds: Tensor, words: str) -> None:
    """Require a boolean (); raises a ``ValueError`` with the words where it is False."""
    if is_opaque(holds):
        return
    if not _is_readable(holds):
        torch._assert_async(holds, words)
    elif not bool(holds):
        raise ValueError(words)


def is_seen(holds: Tensor) -> bool:
    """Whether a boolean () is known to be True; where its value cannot be had, the general road is to be taken."""
    return not is_hidden(holds) and bool(holds)


def is_hidden(values: Tensor) -> bool:
    """Whether nothing may depend on these values: there are none, or a graph is traced."""
    return _is_traced() or is_opaque(values)


def is_opaque(values: Tensor) -> bool:
    """Whether there are no values to look at: on the meta device, in fakes and shards, in replicas of ``vmap``."""
    if torch.compiler.is_compiling():
        return False
    plain = type(values) in (Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(values)
    return values.is_meta or not plain


def _is_readable(values: Tensor) -> bool:
    """Whether a look at the values costs nothing and breaks no graph."""
    return values.device.type == "cpu" and not _is_traced()


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
