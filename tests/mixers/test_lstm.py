"""The long short-term memory as a model: torch's own stack with the same weights, and the law of its biases."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.lstm import LSTMMixer, MemoryLSTMConfig, MemoryLSTMForCausalLM, MemoryLSTMModel


def test_a_plain_stack_equals_a_two_layer_torch_lstm_in_outputs_state_and_gradients():
    config = MemoryLSTMConfig(vocab_size=11, hidden_size=16, norm="none", residual=False)
    model, reference = MemoryLSTMModel(config), torch.nn.LSTM(16, 16, num_layers=2, batch_first=True)
    with torch.no_grad():
        for index, block in enumerate(model.layers):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(reference, f"{name}_l{index}").copy_(getattr(block.mixer, name))
    ids = torch.randint(0, 11, (3, 20))
    embedded = model.embed_tokens(ids)
    expected, (hidden, cell) = reference(embedded)
    output = model(inputs_embeds=embedded, use_cache=True)
    torch.testing.assert_close(output.last_hidden_state, expected, rtol=0, atol=1e-6)
    for index, state in enumerate(output.cache.states):
        torch.testing.assert_close(state["mixer.hidden"], hidden[index], rtol=0, atol=1e-6)
        torch.testing.assert_close(state["mixer.cell"], cell[index], rtol=0, atol=1e-6)
    ours = torch.autograd.grad(output.last_hidden_state.sin().sum(), model.layers[0].mixer.weight_hh, retain_graph=True)
    theirs = torch.autograd.grad(expected.sin().sum(), reference.weight_hh_l0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("forget_bias", [1.0, 3.0, 0.0, None])
def test_forget_bias_is_that_of_the_config_after_construction_and_loading(forget_bias, tmp_path):
    config = MemoryLSTMConfig(vocab_size=11, hidden_size=64, forget_bias=forget_bias)
    model = MemoryLSTMForCausalLM(config)
    model.save_pretrained(tmp_path)
    for loaded in (model, MemoryLSTMForCausalLM._from_config(config), MemoryLSTMForCausalLM.from_pretrained(tmp_path)):
        for block in loaded.model.layers:
            total = (block.mixer.bias_ih + block.mixer.bias_hh).detach()
            if forget_bias is None:
                assert total[64:128].std() > 0.05
            else:
                assert torch.equal(total[64:128], torch.full((64,), forget_bias))
            rest = torch.cat([total[:64], total[128:]])
            assert 0 < rest.abs().max() <= 2 / 8
            assert 0.95 / 8 < block.mixer.weight_hh.abs().max() <= 1 / 8


def test_another_cell_size_adds_a_projection_and_moves_the_state_size():
    mixer = LSTMMixer(MemoryLSTMConfig(vocab_size=11, hidden_size=16, cell_size=24), 0)
    output, state = mixer(torch.randn(2, 5, 16))
    assert output.shape == (2, 5, 16)
    assert mixer.state_size() == sum(leaf[0].numel() for leaf in state.values()) == 48


def test_negative_cell_size_raises():
    with pytest.raises(StrictDataclassError, match="cell_size must be at least 1, or 0"):
        MemoryLSTMConfig(vocab_size=11, cell_size=-1)


def test_spectrum_reaches_the_forget_gate_where_the_outputs_have_no_weight():
    mixer = LSTMMixer(MemoryLSTMConfig(vocab_size=11, hidden_size=8, forget_bias=2.0), 0)
    torch.nn.init.zeros_(mixer.weight_hh)
    torch.nn.init.zeros_(mixer.weight_ih)
    spectrum = mixer.transition_spectrum(torch.randn(2, 4, 8))
    torch.testing.assert_close(spectrum[..., 1], torch.full((2, 4), torch.sigmoid(torch.tensor(2.0)).item()))
    torch.testing.assert_close(spectrum[..., 0], torch.zeros(2, 4))
