"""The simple recurrent net as a model: torch's own stack with the same weights, and the laws of its weights."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.rnn import MemoryRNNConfig, MemoryRNNForCausalLM, RNNMixer


@pytest.mark.parametrize("law", ["uniform", "orthogonal", "identity"])
def test_recurrent_weights_follow_their_law_after_construction_and_loading(law, tmp_path):
    config = MemoryRNNConfig(vocab_size=11, hidden_size=64, recurrent_init=law)
    model = MemoryRNNForCausalLM(config)
    model.save_pretrained(tmp_path)
    for loaded in (model, MemoryRNNForCausalLM._from_config(config), MemoryRNNForCausalLM.from_pretrained(tmp_path)):
        for block in loaded.model.layers:
            weight, biases = block.mixer.weight_hh.detach(), torch.cat([block.mixer.bias_ih, block.mixer.bias_hh])
            assert 0.95 / 8 < block.mixer.weight_ih.abs().max() <= 1 / 8
            if law == "uniform":
                assert 0.95 / 8 < weight.abs().max() <= 1 / 8
                assert 0.9 / 8 < biases.abs().max() <= 1 / 8
                continue
            torch.testing.assert_close(weight @ weight.T, torch.eye(64), rtol=0, atol=1e-5)
            assert torch.equal(weight, torch.eye(64)) == (law == "identity")
            assert biases.abs().max() == 0


def test_a_relu_net_with_identity_weight_counts():
    mixer = RNNMixer(MemoryRNNConfig(vocab_size=11, hidden_size=8, nonlinearity="relu", recurrent_init="identity"), 0)
    torch.nn.init.eye_(mixer.weight_ih)
    x = torch.rand(2, 50, 8)
    torch.testing.assert_close(mixer(x)[0], x.cumsum(1))
    torch.testing.assert_close(mixer.transition_spectrum(x), torch.ones(2, 50, 2))


def test_an_unknown_nonlinearity_is_refused():
    with pytest.raises(StrictDataclassError, match="nonlinearity"):
        MemoryRNNConfig(vocab_size=11, nonlinearity="gelu")
