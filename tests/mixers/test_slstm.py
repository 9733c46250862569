"""sLSTM against its equations, its initial values, and a state that no diagonal transition can track."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.slstm import MemorySLSTMConfig, MemorySLSTMModel
from tests.mixers.memory_checks import convolved, mixer_of
from tests.mixers.option_checks import assert_equals_definition, assert_laws, assert_spectrum, close, randomised

OPTIONS = [{}, {"num_heads": 4, "conv_kernel": 2}, {"num_heads": 1, "conv_kernel": 0}]


def _mixer(**fields):
    """A mixer whose recurrent weights and biases matter."""
    mixer = mixer_of(MemorySLSTMModel, **fields)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return mixer


def _loop(mixer, inputs):
    """The equations token by token and head by head, without a maximum."""
    heads, rows = mixer.config.num_heads, []
    for row in inputs:
        mixed = row if mixer.conv is None else convolved(mixer.conv, row)
        sources = (mixed, mixed, row, row)
        parts = []
        for head in range(heads):
            W, R = (weight[head].unflatten(-1, (4, -1)) for weight in (mixer.weight_ih, mixer.weight_hh))
            b = mixer.gate_bias[head]
            size = W.shape[0]
            own = slice(head * size, (head + 1) * size)
            c = n = h = row.new_zeros(size)
            steps = []
            for t in range(len(row)):
                i, f, z, o = (sources[g][t, own] @ W[:, g] + h @ R[:, g] + b[g] for g in range(4))
                c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
                n = torch.sigmoid(f) * n + torch.exp(i)
                h = torch.sigmoid(o) * c / n
                steps.append(h)
            read = torch.stack(steps)
            centred = read - read.mean(-1, keepdim=True)
            parts.append(centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt())
        rows.append(torch.cat(parts, dim=-1) * mixer.head_norm.weight)
    return torch.stack(rows)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_equal_the_equations(options):
    mixer = _mixer(**options)
    assert_equals_definition(mixer, _loop, torch.randn(2, 12, 8, dtype=torch.float64))


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemorySLSTMConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    model = randomised(MemorySLSTMModel, config)
    with torch.no_grad():
        model.layers[0].mixer.weight_hh.normal_(std=0.7)
    assert_laws(model)


@pytest.mark.parametrize("options", [{"conv_kernel": 0}, {"conv_kernel": 2}, {"conv_kernel": 0, "num_heads": 1}])
def test_the_spectrum_is_that_of_the_jacobian_of_the_unscaled_sums(options):
    def encode(state):
        scale = state["maximum"].exp()
        sums = {"cell": state["cell"] * scale, "normalizer": state["normalizer"] * scale}
        return {**{name: leaf for name, leaf in state.items() if name.startswith("conv")}, **sums, "h": state["hidden"]}

    def decode(state):
        state = dict(state)
        return {**state, "hidden": state.pop("h"), "maximum": torch.zeros_like(state["cell"])}

    mixer = _mixer(hidden_size=4, **options)
    assert_spectrum(mixer, torch.randn(1, 4, 4, dtype=torch.float64), encode, decode)


def test_initial_values_are_those_of_the_official_code_after_from_config():
    config = MemorySLSTMConfig(vocab_size=5, hidden_size=64, num_heads=2, num_hidden_layers=3)
    for layer, block in enumerate(MemorySLSTMModel._from_config(config).layers):
        mixer = block.mixer
        assert mixer.gate_bias.dtype == torch.float32
        assert not mixer.weight_hh.any()
        expected = [5 - 12 * (j / 31) ** (0.3 + 1.3 * layer / 2) for j in range(32)]
        for head in range(2):
            assert mixer.gate_bias[head, 1].tolist() == pytest.approx(expected, abs=1e-5)
        assert not mixer.gate_bias[:, [0, 2, 3]].any()
        assert mixer.weight_ih.std().item() == pytest.approx((2 / (5 * 64)) ** 0.5, rel=0.03)
        assert mixer.weight_ih.mean().abs() < 0.003


def test_recurrent_weights_and_biases_take_no_weight_decay():
    model = MemorySLSTMModel(MemorySLSTMConfig(vocab_size=5, hidden_size=8))
    groups = model.optim_groups(1e-3, 0.1)
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    mixer = model.layers[0].mixer
    assert id(mixer.weight_ih) in decayed
    assert not {id(mixer.weight_hh), id(mixer.gate_bias)} & decayed


def test_a_cell_set_by_hand_counts_modulo_two_far_beyond_any_length_of_training():
    mixer = mixer_of(MemorySLSTMModel, hidden_size=2, num_heads=1, conv_kernel=0)
    with torch.no_grad():
        for parameter in (mixer.weight_ih, mixer.weight_hh, mixer.gate_bias):
            parameter.zero_()
        # Cell 0 remembers OR of bit and parity, cell 1 AND; parity is their difference. Each step writes in full.
        mixer.gate_bias[0, 1] = -60.0
        mixer.gate_bias[0, 3] = 60.0
        weight_ih, weight_hh = (weight.unflatten(-1, (4, -1)) for weight in (mixer.weight_ih, mixer.weight_hh))
        weight_ih[0, 0, 2] = 40.0  # the input in channel 0 is a bit
        weight_hh[0, 0, 2] = 20.0  # h is (OR, AND) in {-1, 1}
        weight_hh[0, 1, 2] = -20.0
        mixer.gate_bias[0, 2, 0], mixer.gate_bias[0, 2, 1] = -20.0, -60.0
    bits = torch.randint(0, 2, (3, 2000))
    inputs = torch.stack((bits, torch.zeros_like(bits)), dim=-1).double()
    # Parity p before a step is (h_0 - h_1) / 2, so that the sum of bit and parity decides both cells.
    _, state = mixer(inputs)
    parity = (state["hidden"][:, 0, 0] - state["hidden"][:, 0, 1]) / 2
    close(parity, (bits.sum(1) % 2).double(), 1e-9)


def test_state_size_counts_four_numbers_a_cell_and_the_convolution():
    assert mixer_of(MemorySLSTMModel, conv_kernel=4).state_size() == 4 * 8 + 3 * 8


@pytest.mark.parametrize(
    "fields, name",
    [({"num_heads": 3}, "num_heads must divide"), ({"conv_kernel": -1}, "conv_kernel must be at least 0")],
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemorySLSTMConfig(vocab_size=5, hidden_size=8, **fields)
