"""Everything that only a GPU can show, in one command.

    python -m benchmarks.gpu --output results/gpu            # at most 7 minutes on one H100
    python -m benchmarks.gpu --output results/gpu --smoke    # the same road in small, also on a CPU

Sections: the environment; every mixer on the device against its float64 form on the CPU; every kernel likewise, with
its time beside that of the torch form; one MQAR cell to 0.99 recall; speed and memory of every mixer in bfloat16 beside
the public layers of its kind, with the share of the roofline; models trained side by side.
Writes ``gpu.json`` and prints a short table last. A package that is missing, or a layer that fails, is reported by
name.
"""

import argparse
import dataclasses
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import environment, write_json
from benchmarks.gpu_common import FULL, SMOKE, Clock, Scale, first_line, relative, timed
from benchmarks.gpu_kernels import kernel_rows, kernel_table
from benchmarks.gpu_replicas import replica_rows, replica_table
from hf_memory.mixers import MIXERS
from hf_memory.mixers.auto import mixer_class, mixer_config, mixer_model
from hf_memory.ops.backends.dispatch import available_backends, use_backend
from hf_memory.tasks import make_task

OURS = ("hf_memory", "hf_memory, use_backend('triton')")
"""Layers of this package: as they come, and with the kernels that must be asked for."""

WITH_KERNEL = ("qlstm", "lru", "linear_transformer", "delta_net", "based", "rwkv", "mamba", "nru", "ids4")
"""Mixers whose operation may have such a kernel."""


def ceilings(device: torch.device, scale: Scale) -> dict[str, float]:
    """Measured peaks: bytes per second of a copy, bfloat16 operations per second of a matrix product."""
    large = device.type == "cuda"
    source = torch.randn(2**28 if large else 2**16, device=device)
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), device, scale)
    size = 8192 if large else 64
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = timed(lambda: torch.mm(left, right), device, scale)
    return {
        "bytes_per_second": 2 * source.numel() * 4 / (copy / 1e3),
        "flops_per_second": 2 * size**3 / (product / 1e3),
    }


def passes(model: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs, gradients and final state of a model over two pieces of a sequence."""
    model.zero_grad()
    cut = ids.shape[1] // 2
    first = model(ids[:, :cut], use_cache=True)
    second = model(ids[:, cut:], cache=first.cache, use_cache=True)
    logits = torch.cat([first.logits, second.logits], dim=1)
    logits.double().square().sum().backward()
    gradients = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    state = [leaf.double().flatten() for state in second.cache.states for leaf in state.values()]
    return {"outputs": logits, "gradients": torch.cat(gradients), "state": torch.cat(state)}


def correctness(key: str, device: torch.device, scale: Scale) -> dict[str, float]:
    """Relative errors of one mixer on the device, against float64 on the CPU, with an initial state and odd lengths."""
    torch.manual_seed(0)
    config = mixer_config(key, vocab_size=32, hidden_size=64, initializer_range=0.1)
    ids = torch.randint(0, 32, (3, scale.odd_length))
    model = mixer_model(config, "causal").train()
    weights = model.state_dict()
    reference = mixer_model(config, "causal").train()
    reference.load_state_dict(weights)
    expected = passes(reference.double(), ids)
    actual = passes(model.to(device), ids.to(device))
    errors = {name: relative(actual[name], expected[name]) for name in expected}
    with torch.autocast(device.type, dtype=torch.bfloat16):
        errors["bfloat16 outputs"] = relative(model(ids.to(device)).logits, expected["outputs"])
    return errors


def peers(key: str, width: int) -> dict[str, Callable[[], nn.Module]]:
    """Public layers of the kind of a mixer, by name: constructors that may fail."""

    def from_module(module: str, name: str, **arguments: Any) -> Callable[[], nn.Module]:
        return lambda: getattr(importlib.import_module(module), name)(**arguments)

    heads = max(1, width // 128)
    recurrent = {"input_size": width, "hidden_size": width, "batch_first": True}
    table: dict[str, dict[str, Callable[[], nn.Module]]] = {
        "lstm": {"torch.nn.LSTM": from_module("torch.nn", "LSTM", **recurrent)},
        "gru": {"torch.nn.GRU": from_module("torch.nn", "GRU", **recurrent)},
        "rnn": {"torch.nn.RNN": from_module("torch.nn", "RNN", **recurrent)},
        "attention": {"torch.nn.functional SDPA layer": lambda: SDPALayer(width, heads)},
        "delta_net": {"fla DeltaNet": from_module("fla.layers", "DeltaNet", hidden_size=width, num_heads=heads)},
        "linear_transformer": {
            "fla LinearAttention": from_module(
                "fla.layers", "LinearAttention", hidden_size=width, num_heads=heads, feature_map="elu"
            )
        },
        "based": {
            "fla BasedLinearAttention": from_module(
                "fla.layers", "BasedLinearAttention", hidden_size=width, num_heads=heads, num_key_value_heads=heads
            )
        },
        "qlstm": {"fla HGRN": from_module("fla.layers", "HGRNAttention", hidden_size=width)},
        "mamba": {
            "mamba-ssm Mamba": from_module("mamba_ssm", "Mamba", d_model=width),
            "transformers MambaMixer": lambda: transformers_mamba(width),
        },
    }
    return table.get(key, {})


class SDPALayer(nn.Module):
    """Projections around torch's own attention kernel."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Causal attention over (B, T, D)."""
        batch, length, width = hidden.shape
        query, key, value = self.qkv(hidden).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        output = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(output.transpose(1, 2).reshape(batch, length, width))


def transformers_mamba(width: int) -> nn.Module:
    """The Mamba layer of transformers, which loops over time in Python where its kernels are missing."""
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    return MambaMixer(MambaConfig(hidden_size=width), layer_idx=0)


def first_tensor(outputs: Any) -> torch.Tensor:
    """The hidden states of a layer that may return a tuple."""
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]


def training_step(layer: nn.Module, inputs: torch.Tensor, ours: bool) -> Callable[[], None]:
    """Forward and backward of a layer under bfloat16 autocast."""
    options = {"return_state": False} if ours else {}

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        inputs.grad = None
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            output = first_tensor(layer(inputs, **options))
        output.float().square().mean().backward()

    return step


def measure(layer: nn.Module, length: int, device: torch.device, scale: Scale, ours: bool) -> dict[str, float]:
    """Milliseconds, tokens per second and peak bytes of a training step of one layer."""
    batch = max(1, scale.tokens // length)
    inputs = torch.randn(batch, length, scale.width, device=device, requires_grad=True)
    step = training_step(layer.to(device).train(), inputs, ours)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    milliseconds = timed(step, device, scale)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    with FlopCounterMode(display=False) as counter:
        step()
    weights = sum(parameter.numel() * parameter.element_size() for parameter in layer.parameters())
    return {
        "milliseconds": milliseconds,
        "tokens_per_second": batch * length / milliseconds * 1e3,
        "peak_bytes": peak,
        "flops": counter.get_total_flops(),
        "bytes": 3 * weights + 4 * inputs.numel() * 4,
    }


def has_kernel(key: str, device: torch.device) -> bool:
    """Whether a mixer's operation has a kernel that is taken only where it is asked for."""
    return device.type == "cuda" and "triton" in available_backends() and key in WITH_KERNEL


def speed(key: str, device: torch.device, scale: Scale, peak: dict[str, float], clock: Clock) -> list[dict[str, Any]]:
    """One row for each length and layer: ours first, then the public ones of its kind with the ratio ours / theirs."""
    rows: list[dict[str, Any]] = []
    for length in scale.lengths:
        config = mixer_config(
            key,
            hidden_size=scale.width,
            vocab_size=8,
            max_position_embeddings=max(scale.lengths),
            **speed_fields(key, scale),
        )
        candidates = dict.fromkeys(
            OURS[: 1 + has_kernel(key, device)], lambda config=config: mixer_class(key)(config, 0)
        )
        candidates.update(peers(key, scale.width))
        ours = None
        for name, build in candidates.items():
            row: dict[str, Any] = {"mixer": key, "layer": name, "length": length}
            slow = [r for r in rows if r["layer"] == name and r.get("milliseconds", 0) > 1e3 * scale.patience / 4]
            if clock.left() < 5 or slow:
                rows.append({**row, "skipped": "slow at a shorter length" if slow else "out of time"})
                continue
            try:
                torch.manual_seed(0)
                with use_backend("triton" if name == OURS[1] else "torch"):
                    row.update(measure(initialise(build()), length, device, scale, ours=name in OURS))
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way of its own; the table says how
                row["skipped"] = first_line(error)
            else:
                floor = max(row["flops"] / peak["flops_per_second"], row["bytes"] / peak["bytes_per_second"])
                row["roofline_share"] = floor / (row["milliseconds"] / 1e3)
                ours = row["milliseconds"] if name == "hf_memory" else ours
                if name != "hf_memory" and ours:
                    row["speed_of_ours"] = row["milliseconds"] / ours
            rows.append(row)
    return rows


def speed_fields(key: str, scale: Scale) -> dict[str, Any]:
    """Heads of 128 where a mixer has heads, as the public layers have."""
    config = mixer_config(key, hidden_size=scale.width, vocab_size=8)
    return {"num_heads": max(1, scale.width // 128)} if hasattr(config, "num_heads") else {}


def initialise(layer: nn.Module) -> nn.Module:
    """Give a layer of ours that stands alone its initial values."""
    for module in layer.modules():
        if hasattr(module, "reset_parameters") and not isinstance(module, nn.RNNBase):
            module.reset_parameters()
    return layer


def cell(key: str, device: torch.device, scale: Scale, rate: float, seconds: float) -> dict[str, Any]:
    """Train two layers of width 64 on MQAR with 64 tokens and 4 pairs until recall is 0.99 on fresh rows."""
    torch.manual_seed(0)
    task = make_task("mqar")
    rng = np.random.default_rng(0)
    model = mixer_model(mixer_config(key, vocab_size=task.vocab_size, hidden_size=64), "causal").to(device).train()
    optimizer = torch.optim.AdamW(model.optim_groups(rate, 0.1))
    warmup = max(1, scale.cell_steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    begin, curve = time.perf_counter(), []
    for step in range(1, scale.cell_steps + 1):
        ids, labels = (torch.from_numpy(a).long().to(device) for a in task.sample(rng, 64, scale.cell_batch))
        loss = model(ids, labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        elapsed = time.perf_counter() - begin
        if step % 50 == 0 or step == scale.cell_steps:
            curve.append({"step": step, "seconds": elapsed, "loss": loss.item(), "recall": recall(model, task, device)})
            if curve[-1]["recall"] >= 0.99 or elapsed > seconds:
                break
    return {"mixer": key, "learning_rate": rate, "batch": scale.cell_batch, "curve": curve}


@torch.no_grad()
def recall(model: nn.Module, task: Any, device: torch.device) -> float:
    """Share of queries answered on 1,000 rows that training does not see."""
    ids, labels = (torch.from_numpy(a).long().to(device) for a in task.sample(np.random.default_rng(10**6), 64, 1000))
    model.eval()
    predictions = model(ids, labels=labels, return_logits=False).predictions[:, :-1]
    model.train()
    wanted = labels[:, 1:]
    return float((predictions == wanted)[wanted != -100].float().mean())


def number(value: float | None, pattern: str) -> str:
    """Format a number, or a dash where there is none."""
    return "-" if value is None else pattern.format(value)


def table(report: dict[str, Any]) -> str:
    """The short table that is printed last."""
    env, peak = report["environment"], report["ceilings"]
    lines = [
        f"{env['card']}, {env['date']}; "
        + ", ".join(f"{name} {version}" for name, version in env["versions"].items() if version),
        f"copy {peak['bytes_per_second'] / 1e12:.2f} TB/s, "
        f"bfloat16 product {peak['flops_per_second'] / 1e12:.0f} TFLOP/s",
        "",
        "| mixer | outputs | gradients | state | bf16 outputs |",
        "|---|---|---|---|---|",
    ]
    for key, errors in report["correctness"].items():
        if "failed" in errors:
            lines.append(f"| {key} | {errors['failed']} | | | |")
        else:
            lines.append(f"| {key} | " + " | ".join(f"{value:.1e}" for value in errors.values()) + " |")
    lines += [
        "",
        "| layer | T | ms | Mtok/s | peak GiB | roofline | ours is faster by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["speed"]:
        name = row["mixer"] if row["layer"] == "hf_memory" else f"  {row['layer']}"
        if "skipped" in row:
            lines.append(f"| {name} | {row['length']} | {row['skipped']} | | | | |")
            continue
        lines.append(
            f"| {name} | {row['length']} | {row['milliseconds']:.2f} | {row['tokens_per_second'] / 1e6:.2f} | "
            f"{row['peak_bytes'] / 2**30:.2f} | {row['roofline_share']:.1%} | "
            f"{number(row.get('speed_of_ours'), '{:.2f}')} |"
        )
    lines += ["", *kernel_table(report["kernels"]), "", *replica_table(report["replicas"]), ""]
    for run in report["cells"]:
        last = run["curve"][-1]
        lines.append(
            f"MQAR (64, 4), {run['mixer']}, width 64, 2 layers, batch {run['batch']}, lr {run['learning_rate']}: "
            f"recall {last['recall']:.3f} after {last['step']} steps, {last['seconds']:.1f} s"
        )
    return "\n".join(lines)


def main() -> None:
    """Run all sections, writing after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, for a test of the road")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds for all sections")
    parser.add_argument("--mixers", nargs="*", default=list(MIXERS), choices=list(MIXERS), help="which mixers")
    parser.add_argument("--lengths", nargs="*", type=int, help="lengths of the speed section")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.smoke:
        parser.exit(2, "No CUDA device is visible. Run with --smoke to try the script on a CPU.\n")
    scale, clock = SMOKE if arguments.smoke else FULL, Clock(arguments.budget)
    if arguments.lengths:
        scale = dataclasses.replace(scale, lengths=tuple(arguments.lengths))
    report: dict[str, Any] = {"environment": environment(device), "ceilings": ceilings(device, scale)}
    report.update(correctness={}, kernels=[], cells=[], speed=[], replicas=[])
    for key in arguments.mixers:
        try:
            report["correctness"][key] = correctness(key, device, scale)
        except Exception as error:  # noqa: BLE001 - one mixer must not hide the others; the table says what failed
            report["correctness"][key] = {"failed": first_line(error)}
        print(f"checked {key}, {clock.left():.0f} s left", flush=True)
    report["kernels"] = kernel_rows(device, scale, clock)
    print(f"checked kernels, {clock.left():.0f} s left", flush=True)
    write_json(report, arguments.output / "gpu.json")
    for key, rate in (("attention", 2e-3), ("mamba", 2e-3)):
        if key in arguments.mixers and clock.left() > 30:
            report["cells"].append(cell(key, device, scale, rate, seconds=min(60.0, clock.left() / 3)))
    write_json(report, arguments.output / "gpu.json")
    # What is left is shared out: the last section keeps a quarter of it.
    speed_clock = Clock(0.75 * clock.left())
    for key in arguments.mixers:
        report["speed"] += speed(key, device, scale, report["ceilings"], speed_clock)
        print(f"timed {key}, {clock.left():.0f} s left", flush=True)
        write_json(report, arguments.output / "gpu.json")
    report["replicas"] = replica_rows(arguments.mixers, device, scale, clock)
    write_json(report, arguments.output / "gpu.json")
    print(table(report))


if __name__ == "__main__":
    main()
