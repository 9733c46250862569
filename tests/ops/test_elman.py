"""The simple recurrent net: its spectrum, and its nonlinearities. What all cells share is in ``test_cells.py``."""

import pytest
import torch

from hf_memory.ops.elman import elman, elman_recurrent, elman_spectrum
from tests.ops.cell_checks import draw, real_parts_along

BOTH = pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])


@BOTH
def test_spectrum_equals_the_jacobian_by_automatic_differentiation(nonlinearity):
    (x, *weights), _ = draw(1, 6, batch=1)
    expected = real_parts_along(
        lambda column, h: elman_recurrent(column, *weights, h[None], nonlinearity=nonlinearity)[1][0],
        x,
        torch.zeros(6, dtype=torch.float64),
    )
    got = elman_spectrum(x, *weights, nonlinearity=nonlinearity)
    torch.testing.assert_close(got, expected[None], rtol=0, atol=1e-9)


def test_an_unknown_nonlinearity_raises():
    inputs, _ = draw(1)
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu'"):
        elman(*inputs, nonlinearity="gelu")
