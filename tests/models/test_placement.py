"""No model mixes devices, proved without a GPU on a device that holds no numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

from hf_memory.mixers.auto import model_keys

SCRIPT, FIRST = Path(__file__).parent / "placement.py", ("lstm", "nru", "mamba", "kda", "attention")


def faults(*keys: str) -> list[str]:
    """What the script found, and the number of models that it ran."""
    done = subprocess.run([sys.executable, str(SCRIPT), *keys], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(600)  # a process of its own, which compiles: a minute and a half, and more on a busy machine
def test_models_stay_on_the_device_of_their_weights():
    assert faults(*FIRST) == [f"{6 * len(FIRST)} models"]


@pytest.mark.slow
def test_all_models_stay_on_the_device_of_their_weights():
    assert faults() == [f"{6 * len(model_keys())} models"]
