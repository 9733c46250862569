"""The benchmarks run from end to end at tiny sizes, and count what they say they count."""

import dataclasses
import json
import sys
from itertools import count

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import cpu, cpu_data, cpu_modern, cpu_peers, cpu_sweeps, cpu_threads, roofline, rows
from benchmarks.common import interleaved, peak_bytes, ratio
from benchmarks.roofline import Step
from hf_memory.mixers import MIXERS
from hf_memory.ops.backends.dispatch import requested_backend
from hf_memory.tasks import make_task


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


def test_what_is_slow_twice_has_one_time_and_what_compiles_first_has_those_after_it():
    clock = Clock()
    steps = {"slow": clock.lasting(25.0, 20.0), "compiles": clock.lasting(30.0, 3.0), "quick": clock.lasting(5.0, 1.0)}
    seconds = interleaved(steps, 3, clock, patience=10.0)
    assert seconds == {"slow": [20.0], "compiles": [3.0, 3.0, 3.0], "quick": [1.0, 1.0, 1.0]}


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


def test_a_step_counts_the_products_and_the_bytes_that_it_cannot_do_without():
    layer, x = torch.nn.Linear(8, 8), torch.randn(3, 5, 8, requires_grad=True)
    step = Step(layer, lambda: layer(x).square().mean(), 2 * x.numel())
    assert step.operations() == 3 * 2 * 15 * 64
    assert step.bytes() == 4 * (3 * 72 + 2 * 2 * 120)
    cells = torch.nn.LSTM(8, 8, batch_first=True)
    assert Step(cells, lambda: cells(x)[0].square().mean()).operations() == 3 * 2 * 15 * 2 * 4 * 64


def test_the_roofline_is_the_slower_of_operations_and_bytes(monkeypatch):
    layer, x = torch.nn.Linear(8, 8), torch.randn(3, 5, 8, requires_grad=True)
    step = Step(layer, lambda: layer(x).square().mean())
    monkeypatch.setattr(roofline, "peaks", lambda *_: (5760.0, 1e9))
    assert roofline.least_seconds(step) == 1.0
    monkeypatch.setattr(roofline, "peaks", lambda *_: (1e9, 432.0))
    assert roofline.least_seconds(step) == 2.0
    clock = Clock()

    class Timed(Step):
        def __call__(self):
            super().__call__()
            clock.now += 8.0

    row = rows.compared("x", Timed(layer, step.loss), clock.lasting(4.0), rows.Scale(repeats=3, clock=clock))
    assert row["roofline_share"] == 0.25
    assert row["ours_bytes"] is not None
    assert row["other_bytes"] is not None
    assert rows.table([row])[-1].endswith("| 25.0% |")


def test_what_a_machine_does_at_its_best_is_measured_once():
    first = roofline.peaks(1, 64, 4096)
    assert min(first) > 0
    assert roofline.peaks(1, 64, 4096) is first


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
    sections = ["data", "heads", "trainer", "products", "cells", "decoding", "yardstick", "growth", "recall"]
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


def test_the_products_of_a_model_are_those_that_torch_counts_in_its_linear_layers():
    step = cpu_peers.ours("lstm", 16, 8, 2, intermediate_size=32)
    linear = [layer for layer in step.module.modules() if isinstance(layer, torch.nn.Linear)]
    with FlopCounterMode(display=False) as counter:
        cpu_peers.products_of(step.module, 16)()
    assert counter.get_total_flops() == 3 * 2 * 16 * sum(layer.weight.numel() for layer in linear) > 0


def test_the_modern_mixers_stand_in_one_run_and_their_floors_are_judged(monkeypatch):
    taken = []

    def together(steps, *_):
        taken.append(list(steps))
        return {key: [1.0 if key == "attention" else 2.0, 1.0 if key == "attention" else 2.0] for key in steps}

    monkeypatch.setattr(cpu_modern, "interleaved", together)
    monkeypatch.setattr(cpu_modern, "add_limits", lambda *_: None)
    monkeypatch.setattr(cpu_modern, "MODERN", ("gla", "gated_delta_product"))
    found = list(cpu_modern.modern(dataclasses.replace(rows.SMOKE, judged=True)))
    assert taken == [["attention", "gla", "gated_delta_product"]] * 2
    assert [(row["what"], row["at_most"], row["met"]) for row in found] == [
        ("gla against attention, 2 x 16", 3.0, True),
        ("gated_delta_product against attention, 2 x 16", 6.0, True),
        ("gla against attention, 1 x 32", 1.0, False),
        ("gated_delta_product against attention, 1 x 32", 1.0, False),
    ]
    assert "1: NOT met" in rows.table(found)[-1]


def test_the_modern_mixers_are_those_of_the_table():
    assert set(cpu_modern.MODERN) < set(MIXERS)
    assert len(set(cpu_modern.MODERN)) == 15


@pytest.mark.parametrize(("sizes", "met"), [((1000, 2400), True), ((1000, 2600), False)])
def test_memory_is_linear_where_a_token_costs_no_more_in_a_long_row(sizes, met, monkeypatch):
    left = list(sizes)
    monkeypatch.setattr(cpu_modern, "peak_bytes", lambda step: left.pop(0))
    scale = dataclasses.replace(rows.SMOKE, judged=True, lengths=(16, 32))
    row = cpu_modern.linear("gla", [lambda: None] * 2, scale)
    assert row["met"] is met
    assert ("| met |" if met else "| NOT met |") in rows.table([row])[-1]


def test_public_layers_of_the_modern_kinds_train_beside_ours():
    found = cpu.run_section("modern_peers", rows.SMOKE, end=float("inf"))
    assert [row["what"].split()[0] for row in found] == ["mamba2", "gated_delta_net", "kda", "mlstm"]
    assert all(row["ratio"]["median"] > 0 for row in found)
    assert all(0 < row["roofline_share"] < 1 for row in found)


@pytest.mark.parametrize("section", ["modern", "modern_decoding", "modern_memory"])
def test_sections_of_the_modern_mixers_hold_all_of_them(section, monkeypatch):
    monkeypatch.setattr(cpu_modern, "MODERN", ("gla", "forgetting_attention", "gated_delta_product"))
    found = cpu.run_section(section, rows.SMOKE, end=float("inf"))
    keys = [row["what"].split()[0].rstrip(",") for row in found]
    wanted = [key for key in cpu_modern.MODERN if section != "modern_decoding" or key != "forgetting_attention"]
    assert keys == (wanted * 2 if section == "modern" else wanted)
    assert not any("met" in row for row in found)


def test_two_threads_are_timed_against_one_and_where_they_pay_is_said():
    before = torch.get_num_threads()
    *found, last = cpu.run_section("threads", rows.SMOKE, end=float("inf"))
    assert torch.get_num_threads() == before
    assert found[0]["what"] == "attention, width 16, 2 x 4, two threads against one"
    assert last["pays"] == [row["what"].removesuffix(", two threads against one") for row in found if row["pays"]]


def test_threads_are_set_for_each_step():
    before, seen = torch.get_num_threads(), []
    for number in (2, 1):
        cpu_threads.on_threads(number, lambda: seen.append(torch.get_num_threads()))()
    torch.set_num_threads(before)
    assert seen == [2, 1]


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


def test_cells_of_recipes_are_counted_before_and_after_what_sweeps_leave_out(monkeypatch):
    monkeypatch.setattr(cpu_sweeps, "STUDIES", {"r12_state_tracking": {"arm": "rnn", "depth": 1}})
    seen, own = [], cpu_sweeps.seconds_of_steps

    def noted(runs, folder, scale, kind=cpu_sweeps.WatchedExperiment):
        seen.append((len(runs), kind.trainer_class.__name__, requested_backend()))
        return own(runs, folder, scale, kind)

    monkeypatch.setattr(cpu_sweeps, "seconds_of_steps", noted)
    (row,) = cpu.run_section("studies", rows.SMOKE, end=float("inf"))
    assert row["what"] == "r12_state_tracking, rnn, 1"
    assert list(row["runs_per_hour"]) == ["plain", "alone", "one of 2"]
    assert seen == [(1, "MemoryTrainer", "torch"), (1, "LeanTrainer", None), (2, "LeanTrainer", None)]
    assert all(len(values) == 1 and values[0] > 0 for values in row["runs_per_hour"].values())


def test_public_models_train_beside_ours(tmp_path):
    report = cpu.main(["--smoke", "--threads", "1", "--output", str(tmp_path), "--sections", "peers"])
    found = report["sections"]["peers"]
    assert len(found) == 8
    assert all(row["ratio"]["median"] > 0 for row in found if "skipped" not in row)
    assert sum("skipped" in row for row in found) <= 1
