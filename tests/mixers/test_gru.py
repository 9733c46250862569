"""The gated recurrent unit as a model: torch's own stack with the same weights, and the law of its biases."""

import torch

from hf_memory.mixers.gru import GRUMixer, MemoryGRUConfig


def test_spectrum_is_the_update_gate_where_the_state_has_no_weight():
    mixer = GRUMixer(MemoryGRUConfig(vocab_size=11, hidden_size=8, update_bias=2.0), 0)
    torch.nn.init.zeros_(mixer.weight_hh)
    torch.nn.init.zeros_(mixer.weight_ih)
    spectrum = mixer.transition_spectrum(torch.randn(2, 4, 8))
    torch.testing.assert_close(spectrum, torch.full((2, 4, 2), torch.sigmoid(torch.tensor(2.0)).item()))
