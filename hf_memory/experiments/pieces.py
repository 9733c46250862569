"""Very long rows in pieces of time: the state is handed on, so that memory is that of one piece.

By the law of the split, which every mixer keeps, the numbers are those of one pass. A state that grows with the length
bounds nothing, and its rows are run as a whole.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional as F

from hf_memory.experiments.resolution import tells_resolution, unresolved_rows
from hf_memory.models.cache import MemoryCache
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.tasks.base import IGNORE_INDEX

TOKENS = 1 << 20
"""Tokens of a piece, over all rows of a batch."""


def in_pieces(
    model: MemoryPreTrainedModel, num_rows: int, num_columns: int, tokens: int = TOKENS, at_least: int = 1
) -> list[slice]:
    """The columns of each piece of a batch; one piece where the state grows, or the batch is small.

    Args:
        model: The model that will read them.
        num_rows: Rows of the batch.
        num_columns: Its columns.
        tokens: As :data:`TOKENS`.
        at_least: How many pieces are wanted of rows that would be cut into fewer.
    """
    size = max(1, tokens // num_rows)
    if math.ceil(num_columns / size) < at_least:
        size = math.ceil(num_columns / at_least)
    if num_columns <= size or has_growing_state(model):
        return [slice(0, num_columns)]
    return [slice(start, min(start + size, num_columns)) for start in range(0, num_columns, size)]


def has_growing_state(model: MemoryPreTrainedModel) -> bool:
    """Whether the state of any layer grows with the length."""
    return any(layer.mixer.growing_state for layer in model.base_model.layers)


@torch.no_grad()
def predict_in_pieces(
    model: MemoryPreTrainedModel, batch: Mapping[str, torch.Tensor], tokens: int = TOKENS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Predictions and losses of a batch with labels, and in which rows they mean nothing.

    Args:
        model: A model with a head, in evaluation mode.
        batch: ``input_ids`` and ``labels`` (B, T), and a mask (B, T) where rows are padded on the right.
        tokens: As :data:`TOKENS`.

    Returns:
        Predictions (B, T), -100 where there is no target, and losses (B, T), both at the position of the output and on
        the CPU; and the rows (B,) that :func:`unresolved_rows` tells of by the state after the last column.
    """
    num_rows, num_columns = batch["input_ids"].shape
    pieces = in_pieces(model, num_rows, num_columns, tokens)
    if len(pieces) > 1:
        predictions, losses, cache = run_pieces(model, batch, pieces)
        return predictions, losses, unresolved_rows(model, cache)
    device = next(model.parameters()).device
    kept = {"use_cache": True} if tells_resolution(model) else {}
    outputs = model(**{name: value.to(device) for name, value in batch.items()}, **kept, return_logits=False)
    return outputs.predictions.cpu(), outputs.token_loss.cpu(), unresolved_rows(model, outputs.cache)


@torch.no_grad()
def run_pieces(
    model: MemoryPreTrainedModel,
    batch: Mapping[str, torch.Tensor],
    pieces: Sequence[slice],
    cache: MemoryCache | None = None,
) -> tuple[torch.Tensor, torch.Tensor, MemoryCache | None]:
    """Some pieces of a batch, one after the other, from a state on.

    Args:
        model: As for :func:`predict_in_pieces`.
        batch: The whole batch, as for :func:`predict_in_pieces`.
        pieces: At least one piece; each begins where the one before ends.
        cache: The state before the first of them; None at the start of the rows.

    Returns:
        Predictions and losses of these columns, as for :func:`predict_in_pieces`, and the state after them.
    """
    device = next(model.parameters()).device
    # The target of a causal head's last output in a piece is the first label of the next one.
    name, shift = ("shift_labels", 1) if model.shift else ("labels", 0)
    targets = F.pad(batch["labels"][:, shift:], (0, shift), value=IGNORE_INDEX)
    rest = {key: value for key, value in batch.items() if key != "labels"}
    found = []
    for piece in pieces:
        own = {key: value[:, piece].to(device) for key, value in {**rest, name: targets}.items()}
        outputs = model(**own, cache=cache, use_cache=True, return_logits=False)
        cache = outputs.cache
        found.append((outputs.predictions.cpu(), outputs.token_loss.cpu()))
    predictions, losses = zip(*found, strict=True)
    return torch.cat(predictions, dim=1), torch.cat(losses, dim=1), cache


@torch.no_grad()
def state_after(model: MemoryPreTrainedModel, num_columns: int, tokens: int = TOKENS) -> MemoryCache:
    """The live state of one sequence after so many tokens."""
    input_ids = torch.zeros(1, num_columns, dtype=torch.int64, device=next(model.parameters()).device)
    first, *others = in_pieces(model, 1, num_columns, tokens)
    cache = model.base_model(input_ids=input_ids[:, first], use_cache=True).cache
    for piece in others:
        cache = model.base_model(input_ids=input_ids[:, piece], cache=cache, use_cache=True).cache
    return cache
