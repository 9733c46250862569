"""The benchmarks run from end to end at tiny sizes, and count what they say they count."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import cpu, cpu_data, cpu_sweeps, rows
from benchmarks.common import interleaved, peak_bytes, ratio
from hf_memory.mixers import MIXERS
from hf_memory.tasks import make_task

ROOT = Path(__file__).resolve().parents[1]


class Clock:
    """A clock that steps move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def lasting(self, *seconds):
        """A step that lasts as long as the next of these numbers, the last one for ever."""
        left = list(seconds)

        def step():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return step


def test_runs_are_taken_in_turn_after_one_warm_up_each():
    clock, calls = Clock(), []
    steps = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    seconds = interleaved(steps, 2, clock)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}


def test_the_warm_up_counts_only_where_it_is_too_slow_to_run_again():
    clock = Clock()
    seconds = interleaved({"slow": clock.lasting(20.0), "quick": clock.lasting(5.0, 1.0)}, 3, clock, patience=10.0)
    assert seconds == {"slow": [20.0], "quick": [1.0, 1.0, 1.0]}


def test_a_ratio_is_taken_run_by_run():
    assert ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert ratio([1.0, 3.0, 2.0], [4.0]) == {"median": 0.5, "low": 0.25, "high": 0.75}


@pytest.mark.parametrize(("bound", "met"), [(0.6, True), (0.4, False)])
def test_a_floor_is_met_where_the_median_is_at_most_the_bound(bound, met):
    clock = Clock()
    scale = rows.Scale(repeats=3, clock=clock)
    row = rows.compared("x", clock.lasting(1.0), clock.lasting(2.0), scale, bound)
    assert (row["ratio"]["median"], row["met"]) == (0.5, met)
    assert ("met" if met else "NOT met") in rows.table([row])[-1]


def test_peak_memory_is_that_of_the_step_alone():
    held = torch.zeros(8 << 20)
    size = peak_bytes(lambda: torch.ones(16 << 20).sum())
    if sys.platform == "linux":
        assert 0.9 * (64 << 20) < size < 1.5 * (64 << 20)
    assert held.sum() == 0


def test_the_loop_over_rows_draws_what_the_task_solves():
    ids, labels = cpu_data.mqar_rows(np.random.RandomState(0), 64, 4, 32, 50)
    solved = make_task("mqar", vocab_size=64, num_kv_pairs=4).solve(ids)
    # The loop labels the query itself, the task the position after it.
    assert (labels[:, :-1] == solved[:, 1:]).all()
    assert ((labels != -100).sum(1) == 4).all()


def test_a_section_ends_when_its_time_is_over(monkeypatch):
    monkeypatch.setitem(cpu.SECTIONS, "growth", lambda scale: ({"what": str(i), "value": ""} for i in count()))
    found = cpu.run_section("growth", rows.SMOKE, end=0.0)
    assert [row["what"] for row in found] == ["0", "the rest of growth"]
    assert "out of time" in found[1]["skipped"]


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = cpu.run_section("operators", rows.SMOKE, end=float("inf"))
    assert [row["skipped"] for row in found] == ["ImportError: fla is not installed"] * 3


def test_the_cpu_report_holds_every_section_and_every_mixer(tmp_path, capsys):
    threads = torch.get_num_threads()
    sections = ["data", "heads", "trainer", "cells", "decoding", "yardstick", "growth", "recall"]
    report = cpu.main(["--smoke", "--threads", str(threads), "--output", str(tmp_path), "--sections", *sections])
    assert list(report["sections"]) == sections
    assert all(report["sections"].values())
    others = set(MIXERS) - {"attention"}
    assert {row["what"].split()[0] for row in report["sections"]["yardstick"] if "attention" in row["what"]} == others
    assert {row["what"].split(",")[0] for row in report["sections"]["growth"]} == set(MIXERS)
    assert all(row["state_bytes"][0] == row["state_bytes"][1] for row in report["sections"]["decoding"])
    assert not any("met" in row for found in report["sections"].values() for row in found)
    written = json.loads((tmp_path / "cpu.json").read_text())
    assert list(written["sections"]) == sections
    assert written["environment"]["threads"] == threads
    text = (tmp_path / "cpu.md").read_text()
    assert all(f"## {name}" in text for name in sections)
    assert "## growth" in capsys.readouterr().out


def test_runs_are_counted_alone_in_processes_and_stacked(monkeypatch):
    monkeypatch.setattr(cpu_sweeps, "available_cores", lambda: 1)
    (row,) = cpu.run_section("sweeps", rows.SMOKE, end=float("inf"))
    assert list(row["cells_per_hour"]) == ["one process", "stacked"]
    assert all(rate > 0 for rate in row["cells_per_hour"].values())


def test_steps_of_a_recipe_are_timed_alone_and_in_stacks():
    (row,) = cpu.run_section("steps", rows.SMOKE, end=float("inf"))
    assert row["what"] == "lstm, width 32"
    assert list(row["step_ms"]) == [1, 5]
    assert all(value > 0 for value in row["step_ms"].values())


def test_public_models_train_beside_ours(tmp_path):
    report = cpu.main(["--smoke", "--threads", "1", "--output", str(tmp_path), "--sections", "peers"])
    found = report["sections"]["peers"]
    assert len(found) == 8
    assert all(row["ratio"]["median"] > 0 for row in found if "skipped" not in row)
    assert sum("skipped" in row for row in found) <= 1


def test_the_gpu_report_runs_on_a_cpu_in_small(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--smoke", "--output", str(tmp_path), "--mixers", "gru", "mamba"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=120)
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert set(report["correctness"]) == {"gru", "mamba"}
    for errors in report["correctness"].values():
        assert max(errors[name] for name in ("outputs", "gradients", "state")) < 1e-4
    assert {row["mixer"] for row in report["speed"]} == {"gru", "mamba"}
