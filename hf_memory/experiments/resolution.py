"""Rows in which a state has grown until it rounds an input away, so that what a model answers there means nothing."""

import logging

import numpy as np
import torch
from torch import nn

from hf_memory.models.cache import MemoryCache
from hf_memory.models.layers import bare, split_state
from hf_memory.models.modeling import MemoryPreTrainedModel, Mixer

logger = logging.getLogger(__name__)


def tells_resolution(model: nn.Module) -> bool:
    """Whether any mixer of a model tells which rows its state resolves."""
    mixers = (module for module in model.modules() if isinstance(module, Mixer))
    return any(mixer.unresolved_rows is not Mixer.unresolved_rows for mixer in mixers)


def unresolved_rows(model: MemoryPreTrainedModel, cache: MemoryCache | None) -> torch.Tensor | None:
    """Rows (B,), on the CPU, whose state no longer resolves an input in some layer; None where no layer tells."""
    if cache is None or not tells_resolution(model):
        return None
    mixers = [bare(layer.mixer) for layer in model.base_model.layers]
    told = [
        mixer.unresolved_rows(split_state(state, "mixer")) for mixer, state in zip(mixers, cache.states, strict=True)
    ]
    return torch.stack([rows.cpu() for rows in told if rows is not None]).any(0)


def warn_unresolved(name: str, rows: np.ndarray | None) -> None:
    """Log how many rows (n,) of a split are unresolved, and what can be done; nothing where none is."""
    if rows is None or not rows.any():
        return
    logger.warning(
        "%s: %d of %d rows end with a state so large that it rounds inputs away, so that their results mean nothing; "
        "leave out rows as long as these, or evaluate the model in float64 (`model.double()`), which reaches further",
        name,
        rows.sum(),
        len(rows),
    )
