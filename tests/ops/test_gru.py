"""The gated recurrent unit: its spectrum. What all cells share is in ``test_cells.py``."""

import torch

from hf_memory.ops.gru import gru_recurrent, gru_spectrum
from tests.ops.cell_checks import draw, real_parts_along


def test_spectrum_equals_the_jacobian_by_automatic_differentiation():
    (x, *weights), _ = draw(3, 6, batch=1)
    expected = real_parts_along(
        lambda column, h: gru_recurrent(column, *weights, h[None])[1][0],
        x,
        torch.zeros(6, dtype=torch.float64),
    )
    got = gru_spectrum(x, *weights)
    torch.testing.assert_close(got, expected[None], rtol=0, atol=1e-9)
