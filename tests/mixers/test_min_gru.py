"""minGRU and minLSTM against their equations, and the bounds of their state."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.min_gru import MemoryMinGRUConfig, MemoryMinGRUModel
from tests.mixers.memory_checks import mixer_of
from tests.mixers.option_checks import assert_equals_definition, assert_laws, assert_spectrum, close, randomised

OPTIONS = [{}, {"cell": "lstm", "expand": 2}, {"positive": False}, {"cell": "lstm", "positive": False}]


def _loop(mixer, inputs):
    """The equations token by token."""
    rows = []
    for row in inputs:
        h, steps = row.new_zeros(mixer.size), []
        for x in row:
            candidate, *raw = (mixer.in_proj.weight @ x).split(mixer.size)
            if mixer.config.positive:
                candidate = torch.where(candidate >= 0, candidate + 0.5, 1 / (1 + torch.exp(-candidate)))
            gates = [1 / (1 + torch.exp(-gate)) for gate in raw]
            if mixer.config.cell == "gru":
                h = (1 - gates[0]) * h + gates[0] * candidate
            else:
                h = (gates[0] * h + gates[1] * candidate) / (gates[0] + gates[1])
            steps.append(h)
        output = torch.stack(steps)
        rows.append(output if mixer.out_proj is None else output @ mixer.out_proj.weight.T)
    return torch.stack(rows)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_equal_the_equations(options):
    mixer = mixer_of(MemoryMinGRUModel, **options)
    assert_equals_definition(mixer, _loop, torch.randn(2, 12, 8, dtype=torch.float64))


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryMinGRUConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryMinGRUModel, config))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_spectrum_is_that_of_the_jacobian(cell):
    mixer = mixer_of(MemoryMinGRUModel, hidden_size=4, initializer_range=0.9, cell=cell)
    assert_spectrum(mixer, torch.randn(1, 3, 4, dtype=torch.float64))


def test_a_state_lies_among_its_candidates_and_above_zero_where_they_do():
    inputs = 5 * torch.randn(3, 40, 8, dtype=torch.float64)
    plain, positive = (mixer_of(MemoryMinGRUModel, positive=kind) for kind in (False, True))
    candidates = (inputs @ plain.in_proj.weight.T)[..., :8]
    outputs = plain(inputs)[0]
    assert (outputs.amax(1) <= candidates.amax(1).clamp(min=0)).all()
    assert (outputs.amin(1) >= candidates.amin(1).clamp(max=0)).all()
    assert (positive(inputs)[0] > 0).all()


def test_gates_that_are_wide_open_or_shut_leave_no_number_undefined():
    mixer = mixer_of(MemoryMinGRUModel, cell="lstm")
    with torch.no_grad():
        mixer.in_proj.weight[8:].mul_(1e4)
    mixer.float()
    inputs = torch.randn(2, 9, 8, requires_grad=True)
    outputs, _ = mixer(inputs)
    outputs.sum().backward()
    assert torch.isfinite(outputs).all()
    assert torch.isfinite(mixer.in_proj.weight.grad).all()
    spectrum = mixer.transition_spectrum(inputs)
    close(spectrum[..., 1].max(), torch.tensor(1.0), 1e-6)
    close(spectrum[..., 0].min(), torch.tensor(0.0), 1e-6)


def test_state_size_counts_every_channel():
    assert mixer_of(MemoryMinGRUModel, expand=3).state_size() == 24


def test_no_width_is_refused():
    with pytest.raises(StrictDataclassError, match="expand must be at least 1"):
        MemoryMinGRUConfig(vocab_size=5, hidden_size=8, expand=0)
