"""The long short-term memory: its kernel, its spectrum. What all cells share is in ``test_cells.py``."""

import pytest
import torch

from hf_memory.ops.lstm import lstm, lstm_recurrent, lstm_spectrum
from tests.ops.cell_checks import assert_same, draw, real_parts_along


@pytest.mark.parametrize("length", [1, 17])
def test_float32_holds_the_cells_past_a_length_exactly(length):
    inputs, state = draw(4, 17, size=16, dtype=torch.float32, num_leaves=2)
    lengths = torch.tensor([0, length, 3, 17])
    assert_same(lstm, lstm_recurrent, inputs, state, lengths, tolerance=1e-5)
    _, (h, c) = lstm(*inputs, initial_state=tuple(state), lengths=lengths)
    assert torch.equal(h[0], state[0][0])
    assert torch.equal(c[0], state[1][0])


def test_float32_on_a_cpu_runs_in_one_kernel_for_all_steps():
    inputs, state = draw(4, 12, dtype=torch.float32, num_leaves=2)
    with torch.profiler.profile() as profile:
        lstm(*inputs, initial_state=tuple(state), lengths=torch.tensor([0, 3, 5, 12]))
    names = [event.name for event in profile.events()]
    expected = "aten::mkldnn_rnn_layer" if torch.backends.mkldnn.is_available() else "aten::lstm"
    assert names.count(expected) == 1
    assert "aten::lstm_cell" not in names


def test_spectrum_equals_the_jacobian_by_automatic_differentiation():
    (x, *weights), _ = draw(4, 6, batch=1, num_leaves=2)
    expected = real_parts_along(
        lambda column, hc: torch.cat(lstm_recurrent(column, *weights, hc.view(2, 1, 6).unbind())[1], dim=1)[0],
        x,
        torch.zeros(12, dtype=torch.float64),
    )
    got = lstm_spectrum(x, *weights)
    torch.testing.assert_close(got, expected[None], rtol=0, atol=1e-9)


def test_bits_are_the_same_with_and_without_a_graph():
    inputs, state = draw(4, 12, batch=3, width=16, size=16, dtype=torch.float32, num_leaves=2)
    output, final = lstm(*[tensor.requires_grad_() for tensor in inputs], initial_state=tuple(state))
    with torch.no_grad():
        again, again_final = lstm(*inputs, initial_state=tuple(state))
    assert torch.equal(output, again)
    assert all(torch.equal(a, b) for a, b in zip(final, again_final, strict=True))
