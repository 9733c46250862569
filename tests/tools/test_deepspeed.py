"""DeepSpeed trains every mixer, with the example's configuration, as one process does.

It is built from source, for the torch that is there, and stands in no extra: ``pip install deepspeed`` comes first.
"""

from pathlib import Path

import pytest

from tests.distributed.family_ranks import __file__ as ranks
from tests.distributed.launching import CONFIGS, launch
from tests.distributed.test_families import ALONE, KEYS, check, run

pytestmark = [pytest.mark.tools, pytest.mark.timeout(900)]


@pytest.mark.parametrize("world", [2, 4])
def test_every_mixer_is_trained_by_zero_2_as_by_one_process(world, tmp_path):
    pytest.importorskip("deepspeed")
    launcher = (
        "accelerate.commands.launch",
        "--config_file",
        str(CONFIGS / "zero2.yaml"),
        "--num_processes",
        str(world),
    )
    group = f"zero:{world}:no:{','.join(KEYS)}"
    environment = {"HF_MEMORY_BACKEND": "torch", "ACCELERATE_USE_CPU": "false"}
    found = launch(str(Path(ranks)), str(tmp_path), group, launcher=launcher, environment=environment, timeout=880)
    groups = {**run(tmp_path, "no", {ALONE: KEYS}), ("zero", world): found[f"zero {world} no"]}
    check(groups, {"zero": "DeepSpeedEngine"}, 1e-5)
