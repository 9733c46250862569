"""DeepSpeed trains every mixer, with the example's configuration, as one process does."""

import pytest

from tests.distributed.launching import CONFIGS, launch
from tests.distributed.test_families import ALONE, KEYS, RANKS, check, run

pytestmark = [pytest.mark.tools, pytest.mark.timeout(900)]


@pytest.mark.parametrize("world", [2, 4])
def test_every_mixer_is_trained_by_zero_2_as_by_one_process(world, tmp_path):
    settings = ("--config_file", str(CONFIGS / "zero2.yaml"), "--num_processes", str(world))
    found = launch(
        str(RANKS),
        str(tmp_path),
        f"zero:{world}:no:{','.join(KEYS)}",
        launcher=("accelerate.commands.launch", *settings),
        environment={"HF_MEMORY_BACKEND": "torch"},
        timeout=880,
    )
    groups = {**run(tmp_path, "no", {ALONE: KEYS}), ("zero", world): found[f"zero {world} no"]}
    check(groups, {"zero": "DeepSpeedEngine"}, 1e-5)
