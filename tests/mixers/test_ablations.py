"""Every combination of the ablation switches obeys the laws of the state, and every switch matters."""

import itertools

import pytest
import torch

from hf_memory.mixers.auto import config_class, model_class
from tests.mixers.option_checks import assert_laws, randomised

SMALL = {"mamba": {"state_size": 3}, "based": {"feature_dim": 3, "num_heads": 2}}
SWITCHES = {
    "mamba": {
        "conv_kernel": (0, 3),
        "gate": (True, False),
        "output_norm": (False, True),
        "negative_eigenvalues": (False, True),
        "selective": (True, False),
    },
    "linear_transformer": {"conv_kernel": (0, 3), "gate": (False, True), "normalize": (True, False)},
    "based": {
        "conv_kernel": (0, 3),
        "gate": (False, True),
        "normalize": (True, False),
        "symmetric": (True, False),
    },
    "attention": {
        "conv_kernel": (0, 3),
        "gate": (False, True),
        "normalize": (True, False),
        "window": (None, 3),
        "position_code": ("none", "rope", "alibi"),
    },
    "delta_net": {
        "conv_kernel": (0, 3),
        "output_norm": (True, False),
        "allow_neg_eigval": (False, True),
        "parameterization": ("yang", "schlag"),
    },
}


def combinations(key):
    names = list(SWITCHES[key])
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*SWITCHES[key].values())]


def make(key, options):
    fields = {"vocab_size": 5, "hidden_size": 8, "num_hidden_layers": 1, "initializer_range": 0.4, **SMALL.get(key, {})}
    return randomised(model_class(key), config_class(key)(**fields, **options))


@pytest.mark.parametrize(
    ("key", "options"),
    [(key, options) for key in SWITCHES for options in combinations(key)],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_every_combination_keeps_the_laws_of_the_state(key, options):
    assert_laws(make(key, options), length=7)


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, switches in SWITCHES.items() for name in switches])
def test_a_switch_changes_the_outputs_unless_it_only_changes_what_is_stored(key, name):
    first, second = (make(key, {**combinations(key)[0], name: value}) for value in SWITCHES[key][name][:2])
    parameters = dict(first.named_parameters())
    with torch.no_grad():
        for own, parameter in second.named_parameters():
            if own in parameters:
                # Without its gate, Mamba's input map has the first half of the rows.
                parameter.copy_(parameters[own][: len(parameter)])
    embeds = torch.randn(2, 6, 8, dtype=torch.float64)
    outputs = [model(inputs_embeds=embeds).last_hidden_state for model in (first, second)]
    difference = (outputs[0] - outputs[1]).abs().max().item()
    if name == "symmetric":
        assert difference < 1e-12
        assert first.state_size() < second.state_size()
    else:
        assert difference > 1e-3
