"""Quasi-LSTM: torch's own LSTM without recurrent weights, its initial gates, its spectrum."""

import math

import pytest
import torch

from hf_memory.mixers.qlstm import MemoryQLSTMConfig, MemoryQLSTMModel
from hf_memory.models.configuration import unchanged_later_fields


def _mixer(**fields):
    config = MemoryQLSTMConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, initializer_range=0.3, **fields)
    return MemoryQLSTMModel(config).layers[0].mixer


@pytest.mark.parametrize("cell_size", [0, 3])
@pytest.mark.parametrize("forget_bias", [1.0, 0.0])
def test_it_equals_the_lstm_of_torch_whose_gates_do_not_see_the_state(cell_size, forget_bias):
    mixer = _mixer(cell_size=cell_size, forget_bias=forget_bias).double()
    torch.nn.init.normal_(mixer.in_proj.bias)
    size = mixer.cell_size
    lstm = torch.nn.LSTM(8, size, batch_first=True).double()
    forget, write, value, output = mixer.in_proj.weight.detach().chunk(4)
    bias = mixer.in_proj.bias.detach().clone().chunk(4)
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.zero_()
        # torch stacks its gates as input, forget, cell, output
        lstm.weight_ih_l0.copy_(torch.cat((write, forget, value, output)))
        lstm.bias_ih_l0.copy_(torch.cat((bias[1], bias[0] + forget_bias, bias[2], bias[3])))
    inputs, cell = torch.randn(2, 9, 8, dtype=torch.float64), torch.randn(2, size, dtype=torch.float64)
    hidden, (_, last) = lstm(inputs, (torch.zeros(1, 2, size, dtype=torch.float64), cell[None]))
    outputs, final = mixer(inputs, {"cell": cell})
    torch.testing.assert_close(outputs, mixer.out_proj(hidden), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(final["cell"], last[0], rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(outputs)
    ours = torch.autograd.grad((outputs * weights).sum(), mixer.in_proj.weight)[0].chunk(4)
    theirs = torch.autograd.grad((mixer.out_proj(hidden) * weights).sum(), lstm.weight_ih_l0)[0].chunk(4)
    for left, right in zip((ours[1], ours[0], ours[2], ours[3]), theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


def test_the_forget_gate_starts_at_the_sigmoid_of_one():
    mixer = _mixer()
    assert torch.equal(mixer.in_proj.bias, torch.zeros(32))
    spectrum = mixer.transition_spectrum(torch.zeros(1, 1, 8))
    assert spectrum.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-1))] * 2)


def test_the_spectrum_is_that_of_the_jacobian_of_one_step():
    mixer = _mixer().double()
    inputs = torch.randn(1, 1, 8, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(
        lambda cell: mixer(inputs, {"cell": cell[None]})[1]["cell"][0], torch.randn(8, dtype=torch.float64)
    )
    real = torch.linalg.eigvals(jacobian).real
    expected = torch.stack((real.min(), real.max())).expand(1, 1, 2)
    torch.testing.assert_close(mixer.transition_spectrum(inputs), expected, rtol=1e-12, atol=1e-12)


def test_gates_near_one_still_forget_in_bfloat16():
    mixer = _mixer(forget_bias=7.0).bfloat16()
    torch.nn.init.zeros_(mixer.in_proj.weight)
    _, final = mixer(torch.zeros(1, 1000, 8, dtype=torch.bfloat16), {"cell": torch.ones(1, 8)})
    expected = math.exp(1000 * math.log(1 / (1 + math.exp(-7))))
    assert final["cell"].flatten().tolist() == pytest.approx([expected] * 8, rel=1e-3)


def test_the_output_bias_is_that_of_the_official_code_and_leaves_published_configs_alone():
    assert _mixer().out_proj.bias is None
    mixer = _mixer(output_bias=True)
    assert torch.equal(mixer.out_proj.bias, torch.zeros(8))
    before = mixer(torch.ones(1, 3, 8))[0]
    torch.nn.init.ones_(mixer.out_proj.bias)
    torch.testing.assert_close(mixer(torch.ones(1, 3, 8))[0], before + 1)
    assert unchanged_later_fields(MemoryQLSTMConfig()) == {"output_bias"}
