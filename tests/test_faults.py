"""The attacks of ``benchmarks.faults``: their helpers, and in small all of them."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults_cases import Nonsense, run_cases
from benchmarks.faults_common import Tally, differences, is_named
from benchmarks.faults_files import damage
from benchmarks.faults_inputs import config_case, input_case, own_fields
from benchmarks.faults_report import as_markdown
from hf_memory.mixers.auto import model_keys

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_attack_in_small_finds_a_fault(tmp_path):
    started = time.monotonic()
    sizes = ["--moments", "3", "--inputs", "300", "--files", "60", "--output", str(tmp_path)]
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults", *sizes], cwd=ROOT, capture_output=True, text=True, check=False
    )
    report = json.loads(next(tmp_path.glob("faults-*.json")).read_text())
    rows = [row for rows in report["sections"].values() for row in rows]
    assert [fault for row in rows for fault in row["faults"]] == []
    assert report["complete"], found.stderr
    assert found.returncode == 0, found.stderr
    counts = {name: sum(row["cases"] for row in rows) for name, rows in report["sections"].items()}
    assert (counts["kills"], counts["inputs"], counts["files"]) == (7 * 3, 300, 60)
    assert len(report["sections"]["disk"]) == 2 * 7
    assert len(report["sections"]["pairs"]) == 6
    assert "0 faults" in next(tmp_path.glob("faults-*.md")).read_text()
    assert time.monotonic() - started < 500


def test_differences_name_what_is_lost_left_over_and_other():
    expected = {"a": 1, "b": {"loss": 0.5, "backend": "one", "tokens": 3}, "c": None}
    assert differences(expected, expected) == []
    assert differences({"b": {"loss": 0.5001, "backend": "one", "tokens": 3}, "c": None, "d": 1}, expected) == [
        "a is lost",
        "d is left over",
        "b differs",
    ]
    near = {**expected, "b": {"loss": 0.5001, "backend": "two", "tokens": 3}}
    assert differences(near, expected, 1e-3) == []
    assert differences({**near, "b": {**near["b"], "tokens": 4}}, expected, 1e-3) == ["b differs"]


def test_one_line_and_no_traceback_count_as_named():
    assert is_named(2, "Error: out: no space is left")
    assert not is_named(0, "Error: x")
    assert not is_named(2, "Traceback (most recent call last)\nError: x")
    assert not is_named(None, "Error: x")


def test_a_damaged_file_is_another_one(tmp_path):
    rng, seen, same = np.random.default_rng(0), set(), 0
    for number in range(60):
        path = tmp_path / f"{number}.json"
        path.write_text('{"value": 1.5}')
        seen.add(damage(path, [tmp_path / "0.json"], rng).split()[-1])
        same += path.is_file() and path.read_bytes() == b'{"value": 1.5}'
    assert {"bits", "bytes", "emptied", "encoding", "deeply", "it", "pipe", "folder", "link"} <= seen
    assert same <= 6  # what was swapped with its like


def test_the_same_number_is_the_same_case_and_every_type_is_met():
    ends = [config_case(np.random.default_rng([0, number])) for number in range(12)]
    assert ends == [config_case(np.random.default_rng([0, number])) for number in range(12)]
    assert set(ends) <= {"refused by name", "finite outputs"}
    assert {input_case(np.random.default_rng([1, number])) for number in range(12)} <= set(ends) | {"finite outputs"}
    assert all({"vocab_size", "hidden_size", "norm_eps"} <= own_fields(key).keys() for key in model_keys())


def fail_sometimes(rng: np.random.Generator) -> str:
    """A case of which one hangs, one dies, and one is nonsense."""
    number = int(rng.integers(4))
    if number == 0:
        raise Nonsense("out of a hat")
    if number == 1:
        os._exit(5)
    return "well"


def test_cases_go_on_after_one_that_dies(tmp_path):
    draws = [int(np.random.default_rng([3, number]).integers(4)) for number in range(12)]
    tally = run_cases(tmp_path, "some", 12, 3, fail_sometimes)
    ended = {"well": sum(draw > 1 for draw in draws), "otherwise": draws.count(0), "died with 5": draws.count(1)}
    assert tally.outcomes == ended
    assert len(tally.faults) == draws.count(0) + draws.count(1)


def test_the_table_shows_every_kind_and_its_faults():
    tally = Tally("train", faults=["rows are lost"], note="undisturbed: 1.0 s", seconds=2.4)
    tally.outcomes["killed"] = 3
    where = {"date": "2026-11-28", "card": "a processor", "cores": 2, "versions": {"torch": "2", "transformers": "5"}}
    text = as_markdown({"environment": where, "sections": {"kills": [tally.to_json()]}, "seed": 0, "complete": True})
    assert "3 cases, 1 faults; seed 0, complete" in text
    assert "| kills: train | 3 | 1 | 3 killed (undisturbed: 1.0 s) | 2 |" in text
    assert "- train: rows are lost" in text
    assert math.isclose(tally.to_json()["seconds"], 2.4)
