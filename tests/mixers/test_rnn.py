"""The simple recurrent net as a model: torch's own stack with the same weights, and the laws of its weights."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.rnn import MemoryRNNConfig, MemoryRNNForCausalLM, MemoryRNNModel, RNNMixer


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_a_plain_stack_equals_a_two_layer_torch_rnn_in_outputs_state_and_gradients(nonlinearity):
    config = MemoryRNNConfig(vocab_size=11, hidden_size=16, norm="none", residual=False, nonlinearity=nonlinearity)
    model = MemoryRNNModel(config)
    reference = torch.nn.RNN(16, 16, num_layers=2, batch_first=True, nonlinearity=nonlinearity)
    with torch.no_grad():
        for index, block in enumerate(model.layers):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(reference, f"{name}_l{index}").copy_(getattr(block.mixer, name))
    embedded = model.embed_tokens(torch.randint(0, 11, (3, 20)))
    expected, hidden = reference(embedded)
    output = model(inputs_embeds=embedded, use_cache=True)
    torch.testing.assert_close(output.last_hidden_state, expected, rtol=0, atol=1e-6)
    for index, state in enumerate(output.cache.states):
        torch.testing.assert_close(state["mixer.hidden"], hidden[index], rtol=0, atol=1e-6)
    ours = torch.autograd.grad(output.last_hidden_state.sin().sum(), model.layers[0].mixer.weight_hh, retain_graph=True)
    theirs = torch.autograd.grad(expected.sin().sum(), reference.weight_hh_l0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


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


def test_another_cell_size_adds_a_projection_and_moves_the_state_size():
    mixer = RNNMixer(MemoryRNNConfig(vocab_size=11, hidden_size=16, cell_size=24), 0)
    output, state = mixer(torch.randn(2, 5, 16))
    assert output.shape == (2, 5, 16)
    assert mixer.state_size() == state["hidden"][0].numel() == 24


def test_bad_fields_raise():
    with pytest.raises(StrictDataclassError, match="cell_size must be at least 1, or 0"):
        MemoryRNNConfig(vocab_size=11, cell_size=-1)
    with pytest.raises(StrictDataclassError, match="nonlinearity"):
        MemoryRNNConfig(vocab_size=11, nonlinearity="gelu")
