"""Costs around and along a model on a CPU: heads, Trainer, growth over the length, decoding, time to recall."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PrinterCallback

from benchmarks.common import interleaved, peak_bytes
from benchmarks.cpu_peers import backward, mixer_keys, ours
from benchmarks.rows import Row, Scale, compared
from hf_memory.data.collator import MemoryCollator
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments.training import MemoryTrainer, model_for_task, training_arguments
from hf_memory.mixers.auto import mixer_class, mixer_config, mixer_model
from hf_memory.tasks import make_task


def heads(scale: Scale) -> Iterator[Row]:
    """The head at the supervised positions against all logits, MQAR with 64 tokens and 4 pairs, width 64."""
    task = make_task("mqar")
    model = model_for_task("attention", task, hidden_size=64).train()
    ids, labels = (torch.from_numpy(a).long() for a in task.sample(np.random.default_rng(0), 64, 8 * scale.batch))

    def dense() -> torch.Tensor:
        logits = model(ids, return_logits=True).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)

    sparse = backward(model, lambda: model(ids, labels=labels).loss)
    yield compared("logits at the labels against all logits", sparse, backward(model, dense), scale)


def trainer(scale: Scale) -> Iterator[Row]:
    """MemoryTrainer against a bare loop over the same rows: LSTM, width 64, batch 64, 32 tokens."""
    task, steps = make_task("bit_parity"), scale.trainer_steps
    ids, labels = task.sample(np.random.default_rng(0), 32, 64 * steps)
    rows = TensorRows({"input_ids": ids, "labels": labels})

    def with_trainer() -> None:
        with tempfile.TemporaryDirectory() as folder:
            arguments = training_arguments(folder, max_steps=steps, disable_tqdm=True, logging_strategy="no")
            model = model_for_task("lstm", task, hidden_size=64)
            own = MemoryTrainer(model=model, args=arguments, train_dataset=rows, data_collator=MemoryCollator())
            own.remove_callback(PrinterCallback)
            own.train()

    def bare() -> None:
        model = model_for_task("lstm", task, hidden_size=64).train()
        optimizer = torch.optim.AdamW(model.optim_groups(1e-3, 0.1), fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for index in torch.randperm(len(rows)).split(64):
            optimizer.zero_grad()
            model(**rows.__getitems__(index.tolist())).loss.backward()
            optimizer.step()
            schedule.step()

    few = dataclasses.replace(scale, repeats=min(3, scale.repeats))
    yield compared(f"Trainer against a bare loop, {steps} steps and the start", with_trainer, bare, few, 1.15)


def growth(scale: Scale) -> Iterator[Row]:
    """Milliseconds and peak memory of a training step per 1,000 tokens at growing lengths, one row."""
    for key in mixer_keys():
        steps = {length: ours(key, scale.widths[1], length, batch=1) for length in scale.lengths}
        timed = {str(length): step for length, step in steps.items()}
        seconds = interleaved(timed, max(1, scale.repeats // 2), scale.clock, scale.patience)
        cost = {length: 1e6 * float(np.median(seconds[str(length)])) / length for length in scale.lengths}
        memory = {length: peak_bytes(step) for length, step in steps.items()}
        held = " ".join("-" if size is None else f"{size / length / 1024:.0f}" for length, size in memory.items())
        text = " ".join(f"{cost[length]:.1f}" for length in scale.lengths)
        yield {
            "what": f"{key}, ms per 1,000 tokens and KiB per token at {', '.join(map(str, scale.lengths))}",
            "value": f"{text} ms; {held} KiB",
            "milliseconds_per_1000_tokens": cost,
            "peak_bytes": memory,
        }


def decoding(scale: Scale) -> Iterator[Row]:
    """One token after a long context against one after a short one, for every mixer whose state does not grow."""
    many = dataclasses.replace(scale, repeats=8 * scale.repeats)
    for key in mixer_keys():
        if mixer_class(key).growing_state:
            continue
        limit = max(scale.contexts) + 64
        fields = {"vocab_size": 64, "hidden_size": scale.widths[0], "num_hidden_layers": 1}
        model = mixer_model(mixer_config(key, **fields, max_position_embeddings=limit)).eval()
        caches = [context(model, tokens) for tokens in scale.contexts]
        short, long = (decoder(model, cache) for cache in caches)
        what = f"{key}, one token after {scale.contexts[1]:,} against {scale.contexts[0]:,}"
        row = compared(what, long, short, many, 1.1)
        # Ten tokens per run.
        row.update(ours_ms=row["ours_ms"] / 10, other_ms=row["other_ms"] / 10)
        sizes = [sum(leaf.nbytes for state in cache.states for leaf in state.values()) for cache in caches]
        row["state_bytes"] = sizes
        if "met" in row:
            row["met"] = row["met"] and sizes[0] == sizes[1]
        yield row


@torch.no_grad()
def context(model: Any, tokens: int, piece: int = 8192) -> Any:
    """The cache after so many tokens, read in pieces."""
    cache = None
    for ids in torch.randint(0, 64, (1, tokens)).split(piece, dim=1):
        cache = model(ids, cache=cache, use_cache=True).cache
    return cache


def decoder(model: Any, cache: Any) -> Callable[[], None]:
    """Read ten more tokens, one by one."""
    token = torch.zeros(1, 1, dtype=torch.long)

    @torch.no_grad()
    def step() -> None:
        own = cache
        for _ in range(10):
            own = model(token, cache=own, use_cache=True).cache

    return step


def recall(scale: Scale, rate: float = 2e-3) -> Iterator[Row]:
    """Train attention on 100,000 rows of MQAR (64, 4) until recall is 0.99 on fresh rows."""
    task, batch = make_task("mqar"), 8 * scale.batch
    rng = np.random.default_rng(0)
    count = max(2 * batch, scale.tokens // 20)
    ids, labels = (torch.from_numpy(a).long() for a in task.sample(rng, 64, count))
    test_ids, test_labels = (torch.from_numpy(a).long() for a in task.sample(rng, 64, max(100, count // 100)))
    wanted = test_labels[:, 1:]
    model = model_for_task("attention", task, hidden_size=64).train()
    optimizer = torch.optim.AdamW(model.optim_groups(rate, 0.1), fused=True)
    begin, curve, step = time.perf_counter(), [], 0
    while not curve or (curve[-1]["recall"] < 0.99 and curve[-1]["seconds"] < scale.recall_seconds):
        for index in torch.randperm(len(ids)).split(batch):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 100)
            optimizer.zero_grad()
            loss = model(ids[index], labels=labels[index]).loss
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                with torch.no_grad():
                    predictions = model(test_ids, labels=test_labels, return_logits=False).predictions[:, :-1]
                share = float((predictions == wanted)[wanted != -100].float().mean())
                seconds = time.perf_counter() - begin
                curve.append({"step": step, "seconds": seconds, "loss": loss.item(), "recall": share})
                if share >= 0.99 or seconds > scale.recall_seconds:
                    break
    last = curve[-1]
    yield {
        "what": f"attention to 0.99 recall, batch {batch}, learning rate {rate}",
        "value": f"recall {last['recall']:.3f} after {last['step']} steps, {last['seconds']:.0f} s",
        "curve": curve,
    }
