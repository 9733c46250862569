"""What every test starts from: one thread, no network, empty caches, fixed seeds."""

import atexit
import gc
import os
import random
import shutil
import tempfile

import numpy as np
import pytest

# Set before torch, datasets and huggingface_hub are imported, since each reads its variables once. A worker of xdist
# inherits those of its parent, so the caches are replaced without regard to what is there.
_CACHE = tempfile.mkdtemp(prefix="hf_memory-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ.update(
    {
        "OMP_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "0",
        "MPLBACKEND": "Agg",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": _CACHE,
        "HF_DATASETS_CACHE": os.path.join(_CACHE, "datasets"),
        "HF_MODULES_CACHE": os.path.join(_CACHE, "modules"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
)
os.environ.pop("HF_MEMORY_BACKEND", None)

import torch  # noqa: E402

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Leave what all tests have imported out of the search for garbage, which Trainer asks for in every run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Every test draws the same numbers, alone or among others."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (Trainer and accelerate draw from numpy's global stream)
    torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator for tests that draw with numpy."""
    return np.random.default_rng(0)


@pytest.fixture
def float64():
    """Make float64 the default type of the test's tensors and modules."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def tables():
    """The tables of mixers and tasks, which are as they were when the test ends."""
    from hf_memory import mixers, tasks

    kept = [(table, dict(table)) for table in (mixers.MIXERS, mixers.OUTSIDE, tasks.TASKS, tasks.OUTSIDE)]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)
