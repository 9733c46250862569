"""What the processes of ``test_segments.py`` run: rows whose columns they share, by every mixer whose state is fixed.

Argument: the number of processes. Prints what they found.
"""

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.distributed.fsdp import fully_shard

from hf_memory.cli.options import launched_processes
from hf_memory.data.specification import specify
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.evaluation import evaluate_lengths, predict
from hf_memory.experiments.pieces import has_growing_state, predict_in_pieces
from hf_memory.experiments.segments import predict_in_segments
from hf_memory.mixers.auto import mixer_config, mixer_model, model_keys
from hf_memory.storage import encode
from tests.distributed.launching import fork

VOCABULARY, BATCH, COLUMNS = 11, 2, 7
LENGTHS = (40, 23, 9, 37, 31)
PARITY = specify("bit_parity", length=8, test_lengths=[3, 45], num_train=8, num_validation=8, num_test=5)


def make_model(key: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return mixer_model(mixer_config(key, vocab_size=VOCABULARY, hidden_size=8), "causal").double().eval()


def draw() -> TensorRows:
    """Rows of 9 to 40 tokens, so that the second batch ends at 37 and rows of both are padded."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, VOCABULARY, length) for length in LENGTHS]
    labels = [np.where(rng.random(len(row)) < 0.5, row, -100) for row in ids]
    return TensorRows({"input_ids": ids, "labels": labels})


def watch(model: torch.nn.Module) -> list[int]:
    """The columns that each pass over a model sees from now on."""
    seen: list[int] = []
    model.base_model.register_forward_pre_hook(
        lambda module, given, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    return seen


def compare(key: str, accelerator: Accelerator) -> dict[str, Any]:
    """How segments differ from one process, with as many pieces as processes and more, and with less."""
    rows, model, found = draw(), make_model(key), {}
    seen = watch(model)
    for name, tokens in (("many", BATCH * COLUMNS), ("few", 1 << 20)):
        seen.clear()
        together = predict_in_segments(model, rows, BATCH, accelerator, tokens=tokens)
        found[name] = {"seen": gather_object([list(seen)])}
        if accelerator.is_main_process:
            found[name] |= differences(model, rows, together, tokens)
    return found


def differences(model: torch.nn.Module, rows: TensorRows, together: list[Any], tokens: int) -> dict[str, Any]:
    """Whether all predictions are those of one process, how far losses are, and how many targets there are."""
    same, errors, targets = True, [], 0
    for block, columns in together:
        predictions, losses, unresolved = predict_in_pieces(model, rows.__getitems__(block), tokens)
        same &= torch.equal(torch.from_numpy(columns["predictions"]), predictions)
        same &= np.array_equal(columns.get("unresolved"), unresolved)
        errors.append(float((torch.from_numpy(columns["token_loss"]) - losses.float()).abs().max()))
        targets += int((predictions != -100).sum())
    return {"same": same, "error": max(errors), "targets": targets}


def refusals(accelerator: Accelerator) -> list[str]:
    """What is said of weights that are shared out."""
    model = make_model("lru")
    fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (accelerator.num_processes,)))
    try:
        predict(model, draw(), BATCH, accelerator, share="time")
    except ValueError as error:
        return [str(error)]
    return []


def evaluate(accelerator: Accelerator | None, share: str = "rows") -> list[dict[str, Any]]:
    """The rows of a head that is not shifted, of which the first are shorter than there are processes."""
    torch.manual_seed(0)
    model = mixer_model(mixer_config("lstm", vocab_size=2, hidden_size=8, num_labels=2), "token_classification")
    rng = np.random.default_rng(0)
    splits = {}
    for name in ("test_3", "test_45"):
        part = PARITY.splits[name].parts[0]
        ids, labels = part.task.sample(rng, part.length, 5)
        splits[name] = {"input_ids": ids, "labels": labels}
    rows = evaluate_lengths(
        model, PARITY, splits, batch_size=BATCH, accelerator=accelerator, progress=False, share=share
    )
    return [encode(dataclasses.asdict(row)) for row in rows]


def work() -> dict[str, Any]:
    accelerator = launched_processes()
    keys = [key for key in model_keys() if not has_growing_state(make_model(key))]
    return {
        "world": accelerator.num_processes,
        "mixers": {key: compare(key, accelerator) for key in keys},
        "rows": gather_object([evaluate(accelerator, "time")]),
        "alone": evaluate(None) if accelerator.is_main_process else [],
        "refused": refusals(accelerator),
    }


def main() -> None:
    print("RESULT " + json.dumps(fork(int(sys.argv[1]), work)))


if __name__ == "__main__":
    main()
