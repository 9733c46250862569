"""The ``vmap`` rule of a hand-written Function whose tensors are all batch first."""

from typing import Any

from torch import Tensor
from torch.autograd import Function


def fold_into_batch(
    function: type[Function], replicas: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Run a Function on all replicas at once, as so many more rows.

    Args:
        function: Takes batch-first tensors and plain values, and returns a tuple of batch-first tensors.
        replicas: How many there are.
        in_dims: Replica axis of each input; None where the replicas share it.
        inputs: Arguments of ``function``.

    Returns:
        Outputs with the replica axis first, and the number of that axis for each, as ``vmap`` expects it.
    """
    folded, batch = [], 0
    for value, dim in zip(inputs, in_dims, strict=True):
        if isinstance(value, Tensor):
            value = value.expand(replicas, *value.shape) if dim is None else value.movedim(dim, 0)
            batch = value.shape[1]
            value = value.flatten(0, 1)
        folded.append(value)
    outputs = function.apply(*folded)
    return tuple(output.unflatten(0, (replicas, batch)) for output in outputs), (0,) * len(outputs)
