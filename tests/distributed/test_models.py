"""Every model on two processes is the model on one, with copied and with shared-out weights."""

from pathlib import Path

import pytest

from hf_memory.mixers import MIXERS
from tests.distributed.launching import launch

# Where nothing is compiled yet, each process compiles every loop in two precisions: two minutes on two idle cores.
pytestmark = pytest.mark.timeout(600)

RANKS = Path(__file__).with_name("model_ranks.py")
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2")


@pytest.fixture(scope="module")
def found():
    # FSDP2 frees the storage of gathered weights, which views in numpy would forbid: compiled loops take copies.
    return launch(str(RANKS), launcher=TORCHRUN, timeout=560)


@pytest.mark.parametrize("kind", ["copies", "shards"])
def test_two_processes_train_every_mixer_as_one_does(found, kind):
    assert found["world"] == 2
    assert set(found[kind]) == {*MIXERS, "hybrid"}
    assert {key: error for key, error in found[kind].items() if not error < 1e-10} == {}
