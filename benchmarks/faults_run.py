"""The attacks in turn, in the process that holds all imports; the table is written after each."""

import importlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.common import environment, write_json
from benchmarks.faults_common import Tally
from benchmarks.faults_disk import attack as attack_disk
from benchmarks.faults_files import attack as attack_files
from benchmarks.faults_inputs import attack as attack_inputs
from benchmarks.faults_kills import attack as attack_kills
from benchmarks.faults_kills import prepare
from benchmarks.faults_pairs import attack as attack_pairs
from benchmarks.faults_report import KILLED, Plan, as_markdown, stem
from hf_memory.experiments.code import code_digest
from hf_memory.experiments.training import model_for_task
from hf_memory.storage import write_text
from hf_memory.tasks import make_task

# What the commands import when they run; here once for all of them.
_LATE = (
    "hf_memory.data.parquet", "hf_memory.experiments.arguments", "hf_memory.experiments.evaluation",
    "hf_memory.hub.checkpoints", "hf_memory.hub.datasets", "hf_memory.reports.report", "hf_memory.reports.study_page",
    "hf_memory.reports.terminal", "hf_memory.studies.sweep", "hf_memory.studies.recipes_yaml",
    "hf_memory.studies.replication", "hf_memory.hub.remote_code", "accelerate.optimizer", "matplotlib.pyplot",
    "hf_memory.cli.errors", "transformers.models.auto.tokenization_auto",
)  # fmt: skip


def attack_all(plan: Plan, root: Path, output: Path) -> int:
    """Do what is planned; returns 0 where no fault was found."""
    torch.set_num_threads(1)
    for name in _LATE:
        importlib.import_module(name)
    _warm()
    report: dict[str, Any] = {"environment": environment(torch.device("cpu")), "seed": plan.seed, "complete": False}
    report["plan"] = {"moments": plan.moments, "inputs": plan.inputs, "files": plan.files}
    report["sections"] = {name: [] for name in plan.sections}
    end, given = monotonic() + plan.budget, prepare(root)
    for section, case in _cases(plan, root, given):
        if monotonic() > end:
            break
        # Where the attacks took place is nobody's business.
        report["sections"][section].append(json.loads(json.dumps(case().to_json()).replace(str(root), "")))
        _write(report, output)
    else:
        report["complete"] = True
    _write(report, output)
    return int(any(row["faults"] for rows in report["sections"].values() for row in rows))


def _warm() -> None:
    """Load what every run would load anew: the compiled scan, and the digest of the code. No thread is started."""
    task = make_task("bit_parity")
    model = model_for_task("lru", task, hidden_size=8, num_hidden_layers=1)
    with torch.no_grad():
        model(torch.zeros(1, 8, dtype=torch.long))
    code_digest(model, task)


def _cases(plan: Plan, root: Path, given: Path) -> Iterator[tuple[str, Callable[[], Tally]]]:
    """Every attack by its section. Each draws from a stream of its own, the same with and without the others."""
    for section in plan.sections:
        if section == "kills":
            for name in KILLED:
                rng = random.Random(f"{plan.seed} {name}")
                yield section, lambda name=name, rng=rng: attack_kills(root, given, name, plan.moments, rng)
        elif section == "inputs":
            yield from ((section, case) for case in attack_inputs(root, plan.inputs, plan.seed))
        elif section == "files":
            yield from ((section, case) for case in attack_files(root, given, plan.files, plan.seed))
        elif section == "disk":
            yield from ((section, case) for case in attack_disk(root, given, min(12, plan.moments), plan.seed))
        else:
            yield from ((section, case) for case in attack_pairs(root, given, max(1, min(5, plan.moments // 3))))


def _write(report: dict[str, Any], output: Path) -> None:
    write_json(report, output / f"{stem(report)}.json")
    write_text(output / f"{stem(report)}.md", as_markdown(report))
