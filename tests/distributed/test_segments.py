"""Processes that share rows in time give what one gives, and each sees its own segment alone."""

from pathlib import Path

import pytest

from hf_memory.experiments.pieces import has_growing_state
from hf_memory.mixers.auto import model_keys
from tests.distributed.launching import launch
from tests.distributed.segment_ranks import draw, make_model

pytestmark = pytest.mark.timeout(600)

RANKS = Path(__file__).with_name("segment_ranks.py")
SEEN = {
    # Batches of 40, 37 and 31 columns in pieces of 7, and those of the last row, which is alone, in pieces of 14.
    (2, "many"): [[7, 7, 7, 7, 7, 7, 14], [7, 7, 5, 7, 7, 2, 14, 3]],
    (4, "many"): [[7, 7, 8], [7, 7, 7, 7, 8], [7, 7, 8], [7, 5, 7, 2, 7]],
    # Where one process would not cut, there is a piece for each process.
    (2, "few"): [[20, 19, 16], [20, 18, 15]],
    (4, "few"): [[10, 10, 8], [10, 10, 8], [10, 10, 8], [10, 7, 7]],
}
"""The columns of the passes of each process."""
ON_CPUS = {"HF_MEMORY_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 4])
def found(request):
    return launch(str(RANKS), str(request.param), environment=ON_CPUS, timeout=580)


def test_segments_of_every_mixer_with_a_fixed_state_are_those_of_one_process(found):
    assert set(found["mixers"]) == {key for key in model_keys() if not has_growing_state(make_model(key))}
    targets = sum(int((row["labels"][1:] != -100).sum()) for row in draw())
    for kind in ("many", "few"):
        mixers = {key: values[kind] for key, values in found["mixers"].items()}
        assert [key for key, values in mixers.items() if not values["same"] or values["targets"] != targets] == []
        seen = SEEN[found["world"], kind]
        assert {key: values["seen"] for key, values in mixers.items() if values["seen"] != seen} == {}


def test_losses_are_the_same_to_the_bit_where_one_process_cuts_as_often(found):
    mixers = found["mixers"].items()
    if found["world"] == 2:  # with 4 processes the last row, of 3 pieces, is cut once more
        assert {key: values["many"]["error"] for key, values in mixers if values["many"]["error"] != 0.0} == {}
    assert {key: values["many"]["error"] for key, values in mixers if not values["many"]["error"] < 1e-6} == {}
    assert {key: values["few"]["error"] for key, values in mixers if not values["few"]["error"] < 1e-6} == {}


def test_all_processes_return_the_rows_of_one(found):
    first, *others = found["rows"]
    assert others == [first] * (found["world"] - 1)
    assert [row["split"] for row in first] == ["test_3", "test_45"]
    for mine, theirs in zip(found["alone"], first, strict=True):
        differing = {name for name in mine if mine[name] != theirs[name]}
        assert differing <= {"eval_seconds", "metrics"}
        for name, value in mine["metrics"].items():
            assert theirs["metrics"][name]["denominator"] == value["denominator"]
            if name != "loss":
                assert theirs["metrics"][name] == value
            assert theirs["metrics"][name]["value"] == pytest.approx(value["value"], rel=1e-6)


def test_weights_that_are_shared_out_are_refused(found):
    (message,) = found["refused"]
    assert "share must be 'rows'" in message
