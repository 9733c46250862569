"""Very long rows that several processes share in time: each runs a segment, and hands the state to the next process.

Process r of N runs the r-th part of the columns of every batch. It starts from the state that process r - 1 sends, and
sends its own to process r + 1, which goes on while it runs its part of the next batch: with M batches the last state
arrives after M + N - 1 segments. No process ever holds more of a row on its device than a piece of its segment.

By the law of the split the numbers are those of one process. They are so to the last bit where one process would cut
the batch into N pieces or more, since the pieces are the same ones.
"""

from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from hf_memory.data.collator import Batch, MemoryCollator
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.pieces import TOKENS, has_growing_state, in_pieces, run_pieces
from hf_memory.experiments.resolution import unresolved_rows
from hf_memory.models.cache import MemoryCache
from hf_memory.models.modeling import MemoryPreTrainedModel

SHARES = ("rows", "time")
"""What processes share of the rows of a split: whole rows, or their columns."""


def shares_time(model: MemoryPreTrainedModel, share: str, accelerator: Accelerator | None) -> bool:
    """Whether the processes of an evaluation share columns. A growing state bounds nothing, and its rows are shared.

    Raises:
        ValueError: ``share`` is unknown, or weights are shared out, so that all processes must run the same columns.
    """
    if share not in SHARES:
        raise ValueError(f"share must be one of {', '.join(map(repr, SHARES))}, got {share!r}")
    if share == "rows" or accelerator is None or accelerator.num_processes == 1 or has_growing_state(model):
        return False
    from torch.distributed.tensor import DTensor  # a build of torch for one process has none

    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError("share must be 'rows' for a model whose weights are shared out among processes (FSDP)")
    return True


def own_pieces(pieces: list[slice], rank: int, world: int) -> list[slice]:
    """The pieces of one process: as many as of the others or one more, none where there are fewer than processes."""
    return pieces[rank * len(pieces) // world : (rank + 1) * len(pieces) // world]


def predict_in_segments(
    model: MemoryPreTrainedModel,
    rows: TensorRows,
    batch_size: int,
    accelerator: Accelerator,
    bar: Any = None,
    tokens: int = TOKENS,
) -> list[tuple[list[int], dict[str, np.ndarray]]]:
    """Run a model over rows whose columns the processes share.

    Args:
        model: A model with a head and states of fixed size, in evaluation mode, the same in every process.
        rows: The rows, all of them in every process.
        batch_size: Rows per forward pass.
        accelerator: The processes.
        bar: What to tell of each batch that this process has passed on.
        tokens: As :data:`hf_memory.experiments.pieces.TOKENS`.

    Returns:
        For each batch the numbers of its rows, and the columns that :func:`hf_memory.experiments.evaluation.predict`
        returns of them, the same in every process; ``unresolved`` (B,) where a layer tells.
    """
    collate, batches, own = MemoryCollator(), [], []
    for first in range(0, len(rows), batch_size):
        block = list(range(first, min(first + batch_size, len(rows))))
        batches.append((block, collate(rows.__getitems__(block))))
        with accelerator.autocast():
            own.append(_run_segment(model, batches[-1][1], accelerator, tokens))
        if bar is not None:
            bar.update(len(block))
    found = []
    # A process without a piece of a batch has None in the place of its columns.
    for (block, batch), *segments in zip(batches, *gather_object([own]), strict=True):
        *parts, unresolved = zip(*filter(None, segments), strict=True)
        predictions, losses = (torch.cat(part, dim=1) for part in parts)
        columns = {"input_ids": batch["input_ids"], "labels": batch["labels"], "predictions": predictions}
        columns |= {"token_loss": losses, "unresolved": unresolved[-1]}
        found.append((block, {name: values.numpy() for name, values in columns.items() if values is not None}))
    return found


def _run_segment(
    model: MemoryPreTrainedModel, batch: Batch, accelerator: Accelerator, tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """Predictions and losses of this process's columns of a batch, and rows that the state after them tells of."""
    world, rank = accelerator.num_processes, accelerator.process_index
    num_rows, num_columns = batch["input_ids"].shape
    pieces = own_pieces(in_pieces(model, num_rows, num_columns, tokens, at_least=world), rank, world)
    cache = _receive(rank - 1, accelerator.device) if rank else None
    found = None
    if pieces:
        predictions, losses, cache = run_pieces(model, batch, pieces, cache)
        found = predictions, losses.float(), unresolved_rows(model, cache)
    if rank + 1 < world:
        torch.distributed.send_object_list([portable(cache)], rank + 1, device=accelerator.device)
    return found


def portable(cache: MemoryCache | None) -> MemoryCache | None:
    """A state on the CPU that holds its own numbers alone: a leaf may be the end of a tensor of all columns."""
    return None if cache is None else cache.map(torch.Tensor.clone).to("cpu")


def _receive(rank: int, device: torch.device) -> MemoryCache | None:
    held: list[MemoryCache | None] = [None]
    torch.distributed.recv_object_list(held, rank, device=device)
    return None if held[0] is None else held[0].to(device)
