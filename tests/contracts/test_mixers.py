"""Every contract of mixers, for every model type."""

import pytest

from hf_memory.mixers.auto import model_keys
from hf_memory.testing.contracts import MIXER_MODULES, contracts, run


@pytest.mark.parametrize("contract", contracts(MIXER_MODULES), ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("key", model_keys())
def test_mixer(key, contract):
    run(contract, key)
