"""What a model takes: one check of its arguments for all types, before anything is computed.

Rank, dtype, shape and emptiness are always checked, values as :mod:`hf_memory.models.values` can.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.values import check_range, is_opaque, require

logger = logging.get_logger(__name__)

IGNORE_INDEX = -100
"""Label of a position that is not supervised."""

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def check_inputs(
    config: MemoryConfig, input_ids: Any, inputs_embeds: Any, attention_mask: Any, position_ids: Any
) -> None:
    """Check what :meth:`hf_memory.models.modeling.MemoryModel.forward` reads, but for the cache.

    Raises:
        ValueError: Names the argument, and what it must be.
    """
    batch_size, num_columns = check_columns(config, input_ids, inputs_embeds).shape[:2]
    if inputs_embeds is None:
        check_range("input_ids", input_ids, 0, config.vocab_size - 1, f"in [0, vocab_size={config.vocab_size})")
    if attention_mask is not None:
        _check_mask(attention_mask, batch_size, num_columns)
    if position_ids is not None:
        _check_positions(position_ids, batch_size, num_columns)


def check_columns(config: MemoryConfig, input_ids: Any, inputs_embeds: Any) -> Tensor:
    """The one of ids (B, T) and embeddings (B, T, D) that was given, checked but for its values.

    Raises:
        ValueError: Names the argument, and what it must be.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    if inputs_embeds is None:
        _check_tensor("input_ids", input_ids, "(batch, length)", 2, (torch.int32, torch.int64), "int32 or int64")
        return input_ids
    form = f"(batch, length, hidden_size={config.hidden_size})"
    _check_tensor("inputs_embeds", inputs_embeds, form, 3, None, "floating point numbers")
    if inputs_embeds.shape[2] != config.hidden_size:
        raise ValueError(f"inputs_embeds must be {form}, got {tuple(inputs_embeds.shape)}")
    return inputs_embeds


def check_kwargs(kwargs: dict[str, Any]) -> None:
    """Refuse packed sequences, and name in the log what else the model does not read."""
    packed = [name for name in kwargs if name.startswith(("cu_seq_lens", "seq_idx"))]
    if packed:
        raise ValueError(f"{packed[0]}: packed sequences are not supported; pad them and give attention_mask")
    known = {"return_dict", "output_attentions", "cache_position", "num_items_in_batch", "token_type_ids"}
    ignored = [name for name, value in kwargs.items() if value is not None and name not in known]
    if ignored:
        logger.warning_once(f"arguments that the model does not read: {', '.join(ignored)}")


def check_labels(name: str, labels: Any, columns: Tensor | None, num_classes: int | None) -> None:
    """Check labels against the inputs (B, T) or (B, T, D) that they belong to.

    Args:
        name: Name of the argument.
        labels: What was given; -100 marks what is not supervised.
        columns: The inputs.
        num_classes: Number of classes C; None for regression, which takes any real number.

    Raises:
        ValueError: Names the argument, and what it must be.
    """
    if not isinstance(labels, Tensor) or columns is None or labels.shape != columns.shape[:2]:
        form = None if columns is None else tuple(columns.shape[:2])
        raise ValueError(f"{name} must be a tensor with the shape {form} of the inputs, got {_describe(labels)}")
    if num_classes is None:
        if labels.dtype not in _INTEGERS and not labels.is_floating_point():
            raise ValueError(f"{name} of a regression must be real numbers, got {labels.dtype}")
        return
    words = f"integers in [0, {num_classes}), or {IGNORE_INDEX}"
    if labels.dtype not in _INTEGERS:
        raise ValueError(f"{name} must be {words}; got {labels.dtype}")
    targets = torch.where(labels == IGNORE_INDEX, 0, labels)
    check_range(name, targets, 0, num_classes - 1, words)


def kept_columns(logits_to_keep: int | Tensor) -> slice | Tensor:
    """The columns whose scores are wanted: the last ones, all for 0, or those of an index."""
    if not isinstance(logits_to_keep, int):
        return logits_to_keep
    if logits_to_keep < 0:
        raise ValueError(f"logits_to_keep must be at least 0, which keeps all columns, got {logits_to_keep}")
    return slice(-logits_to_keep, None)


def _check_tensor(name: str, value: Any, form: str, rank: int, dtypes: tuple | None, words: str) -> None:
    """Rank, dtype (``dtypes``, or any floating one) and at least one row and column."""
    if not isinstance(value, Tensor) or value.dim() != rank:
        raise ValueError(f"{name} must be a tensor {form}, got {_describe(value)}")
    if not (value.is_floating_point() if dtypes is None else value.dtype in dtypes):
        raise ValueError(f"{name} must be {words}, got {value.dtype}")
    if value.shape[0] == 0 or value.shape[1] == 0:
        raise ValueError(f"{name} must hold at least one row and one column, got {tuple(value.shape)}")


def _check_mask(mask: Any, batch_size: int, num_columns: int) -> None:
    fits = isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[0] == batch_size
    if not fits or mask.shape[1] < num_columns:
        raise ValueError(
            f"attention_mask must be (batch, length) with batch={batch_size} and length >= {num_columns}, "
            f"got {_describe(mask)}"
        )
    if mask.dtype == torch.bool or is_opaque(mask):
        return
    read = mask[:, mask.shape[1] - num_columns :]
    words = "attention_mask must be 1 at real tokens and 0 at padding; an additive mask would be read inverted"
    require((read == read.bool()).all(), words)


def _check_positions(position_ids: Any, batch_size: int, num_columns: int) -> None:
    fits = isinstance(position_ids, Tensor) and position_ids.dim() in (1, 2)
    if not fits or position_ids.shape[-1] < num_columns or position_ids.shape[:-1].numel() not in (1, batch_size):
        raise ValueError(
            f"position_ids must be (length,) or (batch, length) with batch={batch_size} or 1 and "
            f"length >= {num_columns}, got {_describe(position_ids)}"
        )
    if position_ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"position_ids must be int32 or int64, got {position_ids.dtype}")


def _describe(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def check_tensors(place: str, info: Mapping[str, Any], optional: tuple[str, ...]) -> None:
    """Refuse a checkpoint whose tensors are not those of the model.

    Args:
        place: The checkpoint and the model, for the error.
        info: What transformers says of a loaded model: ``missing_keys`` and ``unexpected_keys``.
        optional: Beginnings of names of tensors that may be missing or left over.

    Raises:
        ValueError: Names the tensors.
    """
    for kind in ("missing_keys", "unexpected_keys"):
        names = sorted(name for name in info[kind] if not name.startswith(optional))
        if names:
            raise ValueError(f"{place} the checkpoint has {kind.replace('_', ' ')}: {', '.join(names)}")
