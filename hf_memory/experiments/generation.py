"""Answers that a model writes itself, each token from those that it has written before.

Teacher forcing shows the model the right beginning of an answer at each of its positions. A whole answer is right by
generation exactly where it is right by teacher forcing, as the first error is the same; what follows an error is not.
"""

from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from hf_memory.data.tensors import TensorRows
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.tasks.base import IGNORE_INDEX


def generate_answers(
    model: MemoryPreTrainedModel,
    rows: TensorRows,
    batch_size: int,
    accelerator: Accelerator | None = None,
    bar: Any = None,
) -> dict[str, np.ndarray]:
    """Let a causal model write the answers of rows by greedy ``generate`` with its cache.

    Args:
        model: A causal model in evaluation mode.
        rows: Rows whose supervised positions are one block, the answer; what stands before it is the prompt.
        batch_size: Rows per call of ``generate`` and process; the rows of a call have prompts of one length.
        accelerator: The processes that share the rows.
        bar: A progress bar, advanced by rows.

    Returns:
        ``input_ids``, ``labels`` and ``predictions``, each (n, T) and the same in every process. A prediction stands
        at the position of its output, one before its target, as those of teacher forcing do.

    Raises:
        ValueError: If the model cannot generate, or a row's answer is not one block after a prompt.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    check_generates(model)
    whole = rows.__getitems__(range(len(rows)))
    ids, labels = whole["input_ids"], whole["labels"]
    starts, sizes = answer_blocks(labels)
    world, rank = (1, 0) if accelerator is None else (accelerator.num_processes, accelerator.process_index)
    device, found = next(model.parameters()).device, []
    for start in starts.unique().tolist():
        group = (starts == start).nonzero().squeeze(1)
        steps = int(sizes[group].max())
        for block in group.split(world * batch_size):
            own = block[rank::world]
            # A process without rows in the block still takes part, since a sharded model needs all of them.
            prompts = ids[own if len(own) else block[:1], :start].to(device)
            written = model.generate(prompts, max_new_tokens=steps, do_sample=False, num_beams=1)[:, start:]
            if len(own):
                found.append((own.numpy(), start, written.cpu().numpy()))
            if bar is not None:
                bar.update(len(block))
    if world > 1:
        found = gather_object(found)
    predictions = np.full(labels.shape, IGNORE_INDEX, dtype=np.int64)
    for indices, start, written in found:
        predictions[indices, start - 1 : start - 1 + written.shape[1]] = written
    return {"input_ids": ids.numpy(), "labels": labels.numpy(), "predictions": predictions}


def check_generates(model: MemoryPreTrainedModel) -> None:
    """Raise a ``ValueError`` where a model cannot write."""
    if not model.can_generate():
        raise ValueError(f"generate: a causal model is needed, got {type(model).__name__}; leave --generate out")


def answer_blocks(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First position and number of positions (n,) of the answers of labels (n, T).

    Raises:
        ValueError: If a row's supervised positions are not one block that begins after position 0.
    """
    supervised = labels != IGNORE_INDEX
    starts, sizes = supervised.long().argmax(1), supervised.sum(1)
    ends = labels.shape[1] - supervised.flip(1).long().argmax(1)
    wrong = ((sizes == 0) | (starts == 0) | (ends - starts != sizes)).nonzero().flatten()
    if len(wrong):
        raise ValueError(
            f"generate: the answer of a row must be one block of labels after a prompt, which row {int(wrong[0])} "
            "lacks; evaluate this task without --generate"
        )
    return starts, sizes
