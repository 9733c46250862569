"""Equal budgets: the width at which a mixer has a given number of parameters, or of numbers in its state.

Parameters are those of blocks (mixer, MLP, norms); embeddings and head do not count. Widths are rounded to what heads
and memories allow, and a budget that is missed by more than 3 per cent is refused.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.experiments.provenance import parameter_counts
from hf_memory.experiments.training import model_for_task
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.tasks.base import Task

TOLERANCE = 0.03
"""Largest deviation from a budget."""

_LARGEST = 1 << 16
_NEIGHBOURS = 64


@dataclasses.dataclass(frozen=True)
class Size:
    """A model that meets a budget.

    Attributes:
        fields: Fields of the config that were chosen.
        by: What was to be equal: ``"hidden"``, ``"params_per_layer"``, ``"params"`` or ``"state"``.
        target: The budget.
        reached: What the model has of it.
        parameters_non_embedding: Parameters of all blocks and of the final norm.
        parameters_per_block: Parameters of one block, averaged over blocks.
        state_numbers: Numbers held for one sequence of the training length.
    """

    fields: dict[str, int]
    by: str
    target: int
    reached: int
    parameters_non_embedding: int
    parameters_per_block: int
    state_numbers: int


def find_size(
    mixer: str,
    task: Task,
    length: int,
    fields: Mapping[str, Any],
    by: str,
    target: int,
    *,
    field: str = "hidden_size",
    mlp_ratio: float | None = None,
) -> Size:
    """Choose the width of a model for a budget.

    Args:
        mixer: Key of the mixer.
        task: The task, which gives vocabulary and head.
        length: Training length, at which the state is counted.
        fields: All other fields of the config.
        by: What the budget counts, see :class:`Size`.
        target: The budget.
        field: Field of the config that is chosen.
        mlp_ratio: Width of the MLP over that of the model; None where ``fields`` says it.

    Raises:
        ValueError: If no value of the field comes within 3 per cent; the nearest is named.
    """
    if not isinstance(target, int) or isinstance(target, bool) or target < 1:
        raise ValueError(f"sizing: value must be an integer of at least 1, got {target!r}")

    def measure(value: int) -> Size | None:
        own = {field: value}
        if mlp_ratio is not None:
            own["intermediate_size"] = round(mlp_ratio * (value if field == "hidden_size" else fields["hidden_size"]))
        return _measure(mixer, task, length, {**fields, **own}, own, by, target)

    if by == "hidden":
        size = measure(target)
        if size is None:
            why = _refusal(mixer, task, {**fields, field: target})
            raise ValueError(f"sizing: {mixer} cannot have {field} {target}: {why}")
        return size
    sizes = _around(functools.cache(measure), target)
    if not sizes:
        raise ValueError(f"sizing: {mixer} has no value of {field} at which it can be built")
    nearest = min(sizes, key=lambda size: abs(size.reached - target))
    deviation = abs(nearest.reached - target) / target
    if deviation > TOLERANCE:
        raise ValueError(
            f"sizing: {mixer} cannot have {target} {by.replace('_', ' ')} within {TOLERANCE:.0%}; the nearest is "
            f"{nearest.reached} at {field} {nearest.fields[field]}, {deviation:.1%} off"
        )
    return nearest


def _around(measure: Callable[[int], Size | None], target: int) -> list[Size]:
    """The smallest size that meets the budget and the largest that does not; sizes grow with the field."""
    low, high = 1, 2
    while high < _LARGEST and not _reaches(measure, high, target):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(measure, middle, target) else (middle, high)
    above = (measure(value) for value in range(high, high + _NEIGHBOURS))
    below = (measure(value) for value in range(high - 1, max(0, high - _NEIGHBOURS), -1))
    found = [next((size for size in sizes if size is not None), None) for sizes in (above, below)]
    return [size for size in found if size is not None]


def _reaches(measure: Callable[[int], Size | None], value: int, target: int) -> bool:
    """Whether the first size that the mixer allows from ``value`` on meets the budget."""
    size = next((size for near in range(value, value + _NEIGHBOURS) if (size := measure(near)) is not None), None)
    return size is None or size.reached >= target


def _measure(
    mixer: str,
    task: Task,
    length: int,
    fields: Mapping[str, Any],
    own: dict[str, int],
    by: str,
    target: int,
) -> Size | None:
    """Sizes of one config; None where the mixer does not allow it."""
    try:
        model = build_on_meta(mixer, task, fields)
    except (ValueError, StrictDataclassError):
        return None
    counts = parameter_counts(model)
    state = model.base_model.state_size(task.row_length(length))
    per_block, blocks = counts["parameters_per_block"], counts["parameters_non_embedding"]
    reached = {
        "hidden": model.config.hidden_size,
        "params_per_layer": per_block,
        "params": blocks,
        "state": state,
    }[by]
    return Size(own, by, target, reached, blocks, per_block, state)


def _refusal(mixer: str, task: Task, fields: Mapping[str, Any]) -> str:
    """What a mixer has against its fields."""
    try:
        build_on_meta(mixer, task, fields)
    except (ValueError, StrictDataclassError) as error:
        return str(error).strip().splitlines()[-1].strip().removeprefix("ValueError: ")
    return "another field does not allow it"


def build_on_meta(mixer: str, task: Task, fields: Mapping[str, Any]) -> MemoryPreTrainedModel:
    """A model without memory for its weights: enough to count."""
    with torch.device("meta"):
        return model_for_task(mixer, task, **fields)
