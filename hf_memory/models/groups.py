"""Groups of parameters for an optimiser: which of them learn slowly, and which do not decay."""

from typing import Any

from torch import nn

from hf_memory.models.layers import StatefulLayer


def optim_groups(
    model: nn.Module, learning_rate: float, weight_decay: float, mode: str, ssm_learning_rate: float | None
) -> list[dict[str, Any]]:
    """The groups of a model; see :meth:`hf_memory.models.modeling.MemoryPreTrainedModel.optim_groups`."""
    if mode not in ("documented", "uniform"):
        raise ValueError(f"mode must be 'documented' or 'uniform', got {mode!r}")
    slow_rate = min(learning_rate, 1e-3) if ssm_learning_rate is None else ssm_learning_rate
    slow, still = _marked(model)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        rate = slow_rate if mode == "documented" and id(parameter) in slow else learning_rate
        decay = 0.0 if id(parameter) in still or parameter.dim() < 2 else weight_decay
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]


def _marked(model: nn.Module) -> tuple[set[int], set[int]]:
    """Identities of the parameters that their layers mark as slow, and of those that do not decay."""
    slow: set[int] = set()
    still: set[int] = set()
    for layer in model.modules():
        if isinstance(layer, StatefulLayer):
            own = dict(layer.named_parameters())
            slow.update(id(own[name]) for name in layer.slow_parameters if name in own)
            marked = (*layer.fp32_parameters, *layer.no_decay_parameters, *layer.slow_parameters)
            still.update(id(own[name]) for name in marked if name in own)
    return slow, still
