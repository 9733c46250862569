"""Everything that only a GPU can show, in one command.

    python -m benchmarks.gpu --output results/gpu                    # at most 7 minutes on one H100
    python -m benchmarks.gpu --output results/gpu --sections decode  # some of it
    python -m benchmarks.gpu --output results/gpu --smoke            # the same road in small, also on a CPU

Sections, each with a share of the time that is left when it begins:
    kernels      every kernel against the float64 definition, and its time beside that of torch: the proof table
    correctness  every mixer on the device against its float64 form on the CPU
    speed        a training step of every mixer in bfloat16 beside the public layers of its kind, and the roofline
    decode       one token after a context, for many rows at once
    replicas     models trained side by side: cells per hour of a sweep
    reach        the longest row and the most rows that fit
    data         rows drawn, collated and moved to the device
    cells        MQAR to 0.99 recall

``gpu.json`` is written after every mixer, and a short table printed last. A package that is missing, a layer that fails
and what there was no time for are reported by name.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.common import environment, write_json
from benchmarks.gpu_common import FULL, SMOKE, Clock, Scale, first_line, relative
from benchmarks.gpu_data import data_rows, data_table
from benchmarks.gpu_decoding import decode_rows, decode_table
from benchmarks.gpu_kernels import kernel_rows, kernel_table
from benchmarks.gpu_layers import ceilings, speed, speed_table
from benchmarks.gpu_reach import reach_rows, reach_table
from benchmarks.gpu_replicas import replica_rows, replica_table
from hf_memory.mixers import MIXERS
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.tasks import make_task

Row = dict[str, Any]


@dataclasses.dataclass
class Run:
    """What the sections work with."""

    mixers: list[str]
    device: torch.device
    scale: Scale
    peak: dict[str, float]


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


def correctness_rows(run: Run, clock: Clock) -> list[Row]:
    """Errors of each mixer, or how it failed."""
    rows: list[Row] = []
    for key in run.mixers:
        if clock.left() < 1:
            rows.append({"mixer": key, "skipped": "out of time"})
            continue
        try:
            rows.append({"mixer": key, **correctness(key, run.device, run.scale)})
        except Exception as error:  # noqa: BLE001 - one mixer must not hide the others; the table says what failed
            rows.append({"mixer": key, "skipped": first_line(error)})
    return rows


def cell_rows(run: Run, clock: Clock) -> list[Row]:
    """Attention and Mamba to 0.99 recall."""
    rows: list[Row] = []
    for key, rate in (("attention", 2e-3), ("mamba", 2e-3)):
        if key not in run.mixers:
            continue
        if clock.left() < 5:
            rows.append({"mixer": key, "skipped": "out of time"})
        else:
            rows.append(cell(key, run.device, run.scale, rate, seconds=min(60.0, clock.left() / 2)))
    return rows


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


def _kernel_rows(run: Run, clock: Clock) -> list[Row]:
    return kernel_rows(run.device, run.scale, clock, apart=run.device.type != "cpu")


def _speed_rows(run: Run, clock: Clock) -> list[Row]:
    return [row for key in run.mixers for row in speed(key, run.device, run.scale, run.peak, clock)]


def _decode_rows(run: Run, clock: Clock) -> list[Row]:
    return decode_rows(run.mixers, run.device, run.scale, run.peak, clock)


def correctness_table(rows: list[Row]) -> list[str]:
    """Lines of the table of errors."""
    lines = ["| mixer | outputs | gradients | state | bf16 outputs |", "|---|---|---|---|---|"]
    for row in rows:
        errors = [value for name, value in row.items() if name != "mixer"]
        cells = row["skipped"] + " | | |" if "skipped" in row else " | ".join(f"{value:.1e}" for value in errors)
        lines.append(f"| {row['mixer']} | {cells} |")
    return lines


def cell_table(rows: list[Row]) -> list[str]:
    """A line for each run."""
    lines = []
    for row in rows:
        if "skipped" in row:
            lines.append(f"MQAR (64, 4), {row['mixer']}: {row['skipped']}")
            continue
        last = row["curve"][-1]
        lines.append(
            f"MQAR (64, 4), {row['mixer']}, width 64, 2 layers, batch {row['batch']}, lr {row['learning_rate']}: "
            f"recall {last['recall']:.3f} after {last['step']} steps, {last['seconds']:.1f} s"
        )
    return lines


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        rows: Its rows, for a part of the mixers where it goes mixer by mixer.
        table: The lines that show them.
        share: Of the time that is left when it begins, what it may take.
        by_mixer: Whether its rows are made, and written, mixer by mixer.
    """

    rows: Callable[[Run, Clock], list[Row]]
    table: Callable[[list[Row]], list[str]]
    share: float
    by_mixer: bool = False


SECTIONS: dict[str, Section] = {
    "kernels": Section(_kernel_rows, kernel_table, 0.3),
    "correctness": Section(correctness_rows, correctness_table, 0.25, by_mixer=True),
    "speed": Section(_speed_rows, speed_table, 0.4, by_mixer=True),
    "decode": Section(_decode_rows, decode_table, 0.2, by_mixer=True),
    "replicas": Section(
        lambda run, clock: replica_rows(run.mixers, run.device, run.scale, clock), replica_table, 0.4, by_mixer=True
    ),
    "reach": Section(
        lambda run, clock: reach_rows(run.mixers, run.device, run.scale, clock), reach_table, 0.5, by_mixer=True
    ),
    "data": Section(lambda run, clock: data_rows(run.device, run.scale, clock), data_table, 0.3),
    "cells": Section(cell_rows, cell_table, 1.0),
}


def not_measured(report: dict[str, Any]) -> list[str]:
    """What has no number, with the reason."""
    found = []
    for name in SECTIONS:
        if name not in report:
            found.append(f"{name}: not asked for")
        for row in report.get(name, []):
            if "skipped" in row:
                places = (value for key, value in row.items() if key != "skipped")
                found.append(f"{name}, {', '.join(map(str, places))}: {row['skipped']}")
    return found


def table(report: dict[str, Any]) -> str:
    """The short table that is printed last."""
    env, peak = report["environment"], report["ceilings"]
    lines = [
        f"{env['card']}, {env['date']}; "
        + ", ".join(f"{name} {version}" for name, version in env["versions"].items() if version),
        f"copy {peak['bytes_per_second'] / 1e12:.2f} TB/s, "
        f"bfloat16 product {peak['flops_per_second'] / 1e12:.0f} TFLOP/s",
    ]
    for name, section in SECTIONS.items():
        if name in report:
            lines += ["", f"## {name}", "", *section.table(report[name])]
    return "\n".join([*lines, "", "## not measured", "", *(f"- {text}" for text in report["not_measured"])])


def measure(names: Iterable[str], run: Run, clock: Clock, report: dict[str, Any], path: Path) -> None:
    """Fill the report section by section, and write it whenever rows have come."""
    for name in names:
        section, own = SECTIONS[name], clock.part(SECTIONS[name].share)
        report[name] = []
        for mixers in [[key] for key in run.mixers] if section.by_mixer else [run.mixers]:
            report[name] += section.rows(dataclasses.replace(run, mixers=mixers), own)
            report["not_measured"] = not_measured(report)
            write_json(report, path)
        print(f"{name} is done, {clock.left():.0f} s left", flush=True)


def main(given: list[str] | None = None) -> None:
    """Run the sections that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, for a test of the road")
    parser.add_argument("--budget", type=float, default=390.0, help="seconds for all sections")
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    parser.add_argument("--mixers", nargs="*", default=list(MIXERS), choices=list(MIXERS), help="which mixers")
    parser.add_argument("--lengths", nargs="*", type=int, help="lengths of the speed section")
    arguments = parser.parse_args(given)
    clock = Clock(arguments.budget)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.smoke:
        parser.exit(2, "No CUDA device is visible. Run with --smoke to try the script on a CPU.\n")
    scale = SMOKE if arguments.smoke else FULL
    run = Run(arguments.mixers, device, scale, ceilings(device, scale))
    if arguments.lengths:
        run.scale = dataclasses.replace(scale, lengths=tuple(arguments.lengths))
    report: dict[str, Any] = {"environment": environment(device), "ceilings": run.peak}
    measure(arguments.sections, run, clock, report, arguments.output / "gpu.json")
    text = table(report)
    (arguments.output / "gpu.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
