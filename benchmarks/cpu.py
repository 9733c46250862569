"""Speed on a CPU, in ratios of interleaved runs.

    python -m benchmarks.cpu --output results/cpu                     # all sections but `recall`, a few minutes
    python -m benchmarks.cpu --output results/cpu --sections recall    # attention to 0.99 recall on MQAR

Sections:
    heads    a training step with logits at the labels only against one that computes all logits (MQAR, width 64)
    data     tokens per second of every task at its smallest preset
    trainer  a step of MemoryTrainer against a bare loop over the same batches (LSTM, width 64)
    mixers   a training step of every mixer against attention with RoPE, two heads and an MLP (width 128)
    growth   time of a training step at 16 times the length over 16, for every mixer
    recall   seconds until two layers of attention recall 0.99 on MQAR, 64 tokens and 4 pairs
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.common import environment, interleaved, ratio, write_json
from hf_memory.auto import mixer_config, mixer_model, model_keys
from hf_memory.data.collator import MemoryCollator
from hf_memory.data.tensors import TensorRows
from hf_memory.modeling import MemoryPreTrainedModel
from hf_memory.tasks import TASKS, make_task
from hf_memory.training import MemoryTrainer, model_for_task, training_arguments


def train_step(model: MemoryPreTrainedModel, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Forward and backward."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    return step


def heads(repeats: int) -> dict[str, Any]:
    """The head at the supervised positions against all logits, 8,192 tokens of MQAR (64, 4)."""
    task = make_task("mqar")
    model = model_for_task("attention", task, hidden_size=64).train()
    ids, labels = (torch.from_numpy(a).long() for a in task.sample(np.random.default_rng(0), 64, 128))

    def dense() -> torch.Tensor:
        logits = model(ids, return_logits=True).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)

    steps = {"labels only": train_step(model, lambda: model(ids, labels=labels).loss), "all": train_step(model, dense)}
    seconds = interleaved(steps, repeats)
    return {"seconds": seconds, "all logits over labels only": ratio(seconds["all"], seconds["labels only"])}


def data(repeats: int) -> dict[str, Any]:
    """Tokens per second of the sampler of every task at its first preset, and of MQAR at each of its lengths."""
    cases = {key: dict.fromkeys(list(make_task(key).presets)[:1]) for key in TASKS}
    cases["mqar"] = {name: None for name in make_task("mqar").presets if name.startswith("kv")}
    result = {}
    for key, presets in cases.items():
        for name in presets:
            preset = make_task(key).presets[name]
            task = make_task(key, **preset.knobs)
            length = preset.length if isinstance(preset.length, int) else preset.length[1]
            count = max(1, 2_000_000 // task.row_length(length))
            rng = np.random.default_rng(0)
            seconds = interleaved({"rows": lambda t=task, n=length, c=count, r=rng: t.sample(r, n, c)}, repeats)["rows"]
            result[f"{key}/{name}"] = {"tokens_per_second": count * task.row_length(length) / float(np.median(seconds))}
    return result


def trainer(repeats: int) -> dict[str, Any]:
    """MemoryTrainer against a bare loop: the same model, batches, optimiser groups and schedule."""
    task = make_task("bit_parity")
    ids, labels = task.sample(np.random.default_rng(0), 32, 6_400)
    rows, steps = TensorRows({"input_ids": ids, "labels": labels}), 100

    def with_trainer() -> None:
        with tempfile.TemporaryDirectory() as folder:
            arguments = training_arguments(folder, max_steps=steps, disable_tqdm=True, logging_steps=50)
            model = model_for_task("lstm", task, hidden_size=64)
            MemoryTrainer(model=model, args=arguments, train_dataset=rows, data_collator=MemoryCollator()).train()

    def bare() -> None:
        model = model_for_task("lstm", task, hidden_size=64).train()
        optimizer = torch.optim.AdamW(model.optim_groups(1e-3, 0.1), fused=True)
        order = torch.randperm(len(rows)).split(64)
        for index in order[:steps]:
            optimizer.zero_grad()
            model(**rows.__getitems__(index.tolist())).loss.backward()
            optimizer.step()

    seconds = interleaved({"trainer": with_trainer, "bare": bare}, repeats)
    return {"seconds": seconds, "trainer over bare loop": ratio(seconds["trainer"], seconds["bare"])}


def layer_stack(key: str, length: int, batch: int = 16) -> Callable[[], None]:
    """A training step of two layers of width 128 without a head, each mixer in its default block."""
    block = {"intermediate_size": 512} if key == "attention" else {}
    config = mixer_config(key, vocab_size=64, hidden_size=128, max_position_embeddings=max(2048, length), **block)
    model = mixer_model(config).train()
    ids = torch.randint(0, 64, (batch, length))
    return train_step(model, lambda: model(ids).last_hidden_state.square().mean())


def mixers(repeats: int) -> dict[str, Any]:
    """Every mixer against attention with RoPE, two heads and a 4x MLP: batch 16, 256 tokens, width 128."""
    yardstick, result = layer_stack("attention", 256), {}
    for key in model_keys():
        if key != "attention":
            seconds = interleaved({"ours": layer_stack(key, 256), "attention": yardstick}, repeats)
            result[key] = {
                "milliseconds": 1e3 * float(np.median(seconds["ours"])),
                "over attention": ratio(seconds["ours"], seconds["attention"]),
            }
    return result


def growth(repeats: int) -> dict[str, Any]:
    """Seconds at 4,096 tokens over those at 256, divided by 16: about 1 where time is linear in the length."""
    result = {}
    for key in model_keys():
        short, long = layer_stack(key, 256, batch=1), layer_stack(key, 4096, batch=1)
        seconds = interleaved({"short": lambda s=short: [s() for _ in range(4)], "long": long}, max(2, repeats // 2))
        scaled = ratio(seconds["long"], seconds["short"])
        result[key] = {name: value * 4 / 16 for name, value in scaled.items()}
    return result


def recall(repeats: int, rate: float = 2e-3, batch: int = 128, limit: float = 600.0) -> dict[str, Any]:
    """Train attention on 100,000 rows of MQAR (64, 4) until recall is 0.99 on fresh rows."""
    torch.manual_seed(0)
    task = make_task("mqar")
    rng = np.random.default_rng(0)
    ids, labels = (torch.from_numpy(a).long() for a in task.sample(rng, 64, 100_000))
    test_ids, test_labels = (torch.from_numpy(a).long() for a in task.sample(rng, 64, 1_000))
    wanted = test_labels[:, 1:]
    model = model_for_task("attention", task, hidden_size=64).train()
    optimizer = torch.optim.AdamW(model.optim_groups(rate, 0.1), fused=True)
    begin, curve, step = time.perf_counter(), [], 0
    while not curve or (curve[-1]["recall"] < 0.99 and curve[-1]["seconds"] < limit):
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
                if share >= 0.99 or seconds > limit:
                    break
    return {"learning_rate": rate, "batch": batch, "warmup_steps": 100, "curve": curve}


SECTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "heads": heads,
    "data": data,
    "trainer": trainer,
    "mixers": mixers,
    "growth": growth,
    "recall": recall,
}


def lines(name: str, result: dict[str, Any]) -> list[str]:
    """The section as Markdown."""
    text = [f"## {name}", ""]
    if name == "recall":
        last = result["curve"][-1]
        return [*text, f"recall {last['recall']:.3f} after {last['step']} steps, {last['seconds']:.0f} s", ""]
    for key, value in result.items():
        if key == "seconds":
            continue
        spread = value.get("over attention", value)
        if "tokens_per_second" in spread:
            text.append(f"| {key} | {spread['tokens_per_second'] / 1e6:.1f} M tokens/s |")
        else:
            text.append(f"| {key} | {spread['median']:.2f} | {spread['low']:.2f} to {spread['high']:.2f} |")
    return [*text, ""]


def main() -> None:
    """Run the sections that were asked for, writing after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for cpu.json")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS)[:-1])
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs of each step")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report: dict[str, Any] = {"environment": environment(torch.device("cpu"))}
    for name in arguments.sections:
        torch.manual_seed(0)
        report[name] = SECTIONS[name](arguments.repeats)
        write_json(report, arguments.output / "cpu.json")
        print("\n".join(lines(name, report[name])), flush=True)


if __name__ == "__main__":
    main()
