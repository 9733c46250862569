"""Every contract of mixers, for every model type."""

import pytest

from hf_memory.mixers.auto import model_keys
from hf_memory.testing.contracts import MIXER_MODULES, contracts, run
from hf_memory.testing.graphs import (
    test_a_compiled_training_step_has_few_graphs_and_the_gradients_of_a_plain_one as compiled,
)

FIRST_COMPILED = ("gru", "delta_net", "mamba", "gla")
"""Types that are compiled in the fast tests, one for each kind of recurrence; a graph takes seconds to make."""


CLAUSES = [
    pytest.param(
        key,
        contract,
        marks=[pytest.mark.slow] if contract is compiled and key not in FIRST_COMPILED else [],
        id=f"{key}-{contract.__name__}",
    )
    for key in model_keys()
    for contract in contracts(MIXER_MODULES)
]


@pytest.mark.parametrize(("key", "contract"), CLAUSES)
def test_mixer(key, contract):
    run(contract, key)
