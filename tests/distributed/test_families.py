"""Every mixer on 1, 2 and 4 processes: the targets of each training step are exact, its loss is that of one process.

Gradients are accumulated, rows are padded to the longest of their process, and the last batch is uneven.
"""

import math
from pathlib import Path

import pytest

from hf_memory.mixers import MIXERS
from tests.distributed.family_ranks import ACCUMULATED, EPOCHS, MICRO_BATCH, ROWS, draw
from tests.distributed.launching import launch

RANKS = Path(__file__).with_name("family_ranks.py")
KEYS = [*MIXERS, "hybrid"]
ALONE = ("alone", 0)
COPIES = [("copies", world) for world in (1, 2, 4)]
SHARES = [("shards", world) for world in (1, 2, 4)]


def run(folder: Path, precision: str, groups: dict[tuple[str, int], list[str]]) -> dict[tuple[str, int], dict]:
    """What each group of processes finds for its mixers."""
    names = [f"{kind}:{world}:{precision}:{','.join(keys)}" for (kind, world), keys in groups.items()]
    found = launch(str(RANKS), str(folder), *names, timeout=880)
    return {(kind, world): found[f"{kind} {world} {precision}"] for kind, world in groups}


def check(found: dict[tuple[str, int], dict], wrapped: dict[str, str], tolerance: float) -> None:
    """Each group finds what the process finds that is alone."""
    alone = found.pop(ALONE)
    every = sum(int((row["labels"][1:] != -100).sum()) for row in draw())
    steps = math.ceil(ROWS / (MICRO_BATCH * ACCUMULATED))
    for group, mixers in found.items():
        for key, here in mixers.items():
            wanted, name = alone[key], f"{key} by {group}"
            assert wrapped[group[0]] in here["type"], name
            assert here["targets"] == wanted["targets"], name
            assert len(here["targets"]) == len(here["losses"]) == steps * EPOCHS, name
            assert sum(here["targets"]) == every * EPOCHS, name
            assert here["losses"] == pytest.approx(wanted["losses"], abs=tolerance), name
            assert len(set(here["losses"])) == steps * EPOCHS, name
            assert here["evaluated"][0] == wanted["evaluated"][0] == every, name
            assert here["evaluated"][1] == pytest.approx(wanted["evaluated"][1], abs=tolerance), name
            assert here.get("saved", here["evaluated"][1]) == pytest.approx(here["evaluated"][1], abs=1e-5), name


WRAPPED = {"copies": "DistributedDataParallel", "shards": "FSDP"}


@pytest.mark.timeout(900)
def test_every_mixer_is_trained_by_4_processes_as_by_one(tmp_path):
    found = run(tmp_path, "no", {ALONE: KEYS, ("copies", 4): KEYS, ("shards", 2): ["hybrid"]})
    assert set(found[ALONE]) == set(found["copies", 4]) == {*MIXERS, "hybrid"}
    check(found, WRAPPED, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("groups", [COPIES[:2], SHARES], ids=["copies", "shards"])
def test_every_mixer_is_trained_by_1_2_and_4_processes_as_by_one(groups, tmp_path):
    check(run(tmp_path, "no", {ALONE: KEYS, **dict.fromkeys(groups, KEYS)}), WRAPPED, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_bfloat16_processes_differ_by_less_than_rounding_does(tmp_path):
    plain = run(tmp_path, "no", {ALONE: KEYS})[ALONE]
    found = run(tmp_path, "bf16", {ALONE: KEYS, **dict.fromkeys(COPIES[1:], KEYS)})
    # Sums over other rows are rounded to other neighbours: what that may do is what all rounding did to one process.
    pairs = [zip(plain[key]["losses"], found[ALONE][key]["losses"], strict=True) for key in KEYS]
    rounding = [max(abs(left - right) for left, right in pair) for pair in pairs]
    assert min(rounding) > 0
    check(found, WRAPPED, max(rounding))
