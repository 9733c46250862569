"""``hf-memory train --smoke`` works for every mixer, on a task of each head."""

import math

import pytest

from hf_memory.experiments.arguments import main
from hf_memory.experiments.results import read_rows
from hf_memory.mixers.auto import model_keys

QUIET = ["--disable_tqdm", "True", "--use_cpu", "True"]
SHORT = ["--max_steps", "2", "--per_device_train_batch_size", "8"]
SIZES = ["num_train=64", "num_validation=8", "num_test=8"]
TASKS = {
    "mqar": [*SIZES, "length=16", "test_lengths=[16,24]", "num_kv_pairs=2", "vocab_size=32"],
    "bit_parity": [*SIZES, "length=8", "test_lengths=[8,12]"],
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("mixer", model_keys())
def test_every_mixer_trains_and_is_evaluated_beyond_its_length(tmp_path, monkeypatch, mixer, task):
    monkeypatch.chdir(tmp_path)
    command = ["--mixer", mixer, "--task", task, "--smoke", *SHORT, "--data", *TASKS[task], "--model", "hidden_size=8"]
    rows = main([*command, "--output_dir", "run", *QUIET])
    lengths = [row.length for row in rows]
    assert [row.split for row in rows] == ["validation", f"test_{lengths[1]}", f"test_{lengths[2]}"]
    assert lengths[0] == lengths[1] < lengths[2]
    assert {(row.mixer, row.task, row.steps) for row in rows} == {(mixer, task, 2)}
    for row in rows:
        assert 0 <= row.value() <= 1
        assert math.isfinite(row.value("loss"))
    assert read_rows("results") == rows
