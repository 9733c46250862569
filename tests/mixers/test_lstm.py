"""The long short-term memory as a model: torch's own stack with the same weights, and the law of its biases."""

import torch

from hf_memory.mixers.lstm import LSTMMixer, MemoryLSTMConfig


def test_spectrum_reaches_the_forget_gate_where_the_outputs_have_no_weight():
    mixer = LSTMMixer(MemoryLSTMConfig(vocab_size=11, hidden_size=8, forget_bias=2.0), 0)
    torch.nn.init.zeros_(mixer.weight_hh)
    torch.nn.init.zeros_(mixer.weight_ih)
    spectrum = mixer.transition_spectrum(torch.randn(2, 4, 8))
    torch.testing.assert_close(spectrum[..., 1], torch.full((2, 4), torch.sigmoid(torch.tensor(2.0)).item()))
    torch.testing.assert_close(spectrum[..., 0], torch.zeros(2, 4))
