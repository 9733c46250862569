"""Widths for a budget: the nearest that a mixer allows, and a refusal where none comes near."""

import pytest

from hf_memory.studies.sizing import TOLERANCE, find_size
from hf_memory.tasks.bit_parity import BitParity
from hf_memory.tasks.mqar import MQAR

FIELDS = {"num_hidden_layers": 2}


@pytest.mark.parametrize("mixer", ["rnn", "lstm", "nru", "attention", "mamba", "hyena", "delta_net"])
def test_no_neighbouring_width_is_nearer_to_the_budget(mixer):
    size = find_size(mixer, BitParity(), 32, FIELDS, "params_per_layer", 20_000)
    width = size.fields["hidden_size"]
    assert abs(size.reached - 20_000) <= TOLERANCE * 20_000
    assert size.reached == size.parameters_per_block
    for near in (width - 2, width + 2):
        other = find_size(mixer, BitParity(), 32, FIELDS, "hidden", near)
        assert abs(other.parameters_per_block - 20_000) >= abs(size.reached - 20_000)


def test_width_for_parameters_of_plain_lstm_is_that_of_the_formula():
    size = find_size("lstm", BitParity(), 32, {**FIELDS, "norm": "none"}, "params_per_layer", 3_000_000)
    assert abs(size.fields["hidden_size"] - 612) <= 1


def test_all_blocks_and_state_can_be_the_budget():
    whole = find_size("gru", BitParity(), 32, FIELDS, "params", 40_000)
    assert whole.reached == whole.parameters_non_embedding
    state = find_size("attention", MQAR(), 64, FIELDS, "state", 64 * 2 * 2 * 48)
    assert state.fields["hidden_size"] == 48
    assert state.state_numbers == state.reached == 64 * 2 * 2 * 48


def test_mlp_follows_the_width():
    size = find_size("lstm", BitParity(), 32, FIELDS, "hidden", 24, mlp_ratio=2)
    assert size.fields == {"hidden_size": 24, "intermediate_size": 48}


def test_a_budget_that_no_width_meets_is_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"attention cannot have 150 state within 3%; the nearest is \d+ at hidden_size"
    ):
        find_size("attention", BitParity(), 32, FIELDS, "state", 150)
    with pytest.raises(ValueError, match="value must be an integer"):
        find_size("lstm", BitParity(), 32, FIELDS, "params", 2.5)
    with pytest.raises(ValueError, match="num_heads"):
        find_size("attention", BitParity(), 32, {**FIELDS, "num_heads": 5}, "hidden", 32)


def test_another_field_can_be_chosen():
    size = find_size("ids4", BitParity(), 32, {**FIELDS, "hidden_size": 16}, "state", 2 * 12 * 12, field="state_size")
    assert size.fields == {"state_size": 12}
