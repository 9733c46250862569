"""The gated recurrent unit as a model: torch's own stack with the same weights, and the law of its biases."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.gru import GRUMixer, MemoryGRUConfig, MemoryGRUForCausalLM, MemoryGRUModel


def test_a_plain_stack_equals_a_two_layer_torch_gru_in_outputs_state_and_gradients():
    config = MemoryGRUConfig(vocab_size=11, hidden_size=16, norm="none", residual=False)
    model, reference = MemoryGRUModel(config), torch.nn.GRU(16, 16, num_layers=2, batch_first=True)
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


@pytest.mark.parametrize("update_bias", [1.0, 0.0, None])
def test_update_bias_is_that_of_the_config_after_construction_and_loading(update_bias, tmp_path):
    config = MemoryGRUConfig(vocab_size=11, hidden_size=64, update_bias=update_bias)
    model = MemoryGRUForCausalLM(config)
    model.save_pretrained(tmp_path)
    for loaded in (model, MemoryGRUForCausalLM._from_config(config), MemoryGRUForCausalLM.from_pretrained(tmp_path)):
        for block in loaded.model.layers:
            total = (block.mixer.bias_ih + block.mixer.bias_hh).detach()
            if update_bias is None:
                assert total[64:128].std() > 0.05
            else:
                assert torch.equal(total[64:128], torch.full((64,), update_bias))
            rest = torch.cat([total[:64], total[128:]])
            assert 0 < rest.abs().max() <= 2 / 8
            assert 0.95 / 8 < block.mixer.weight_hh.abs().max() <= 1 / 8


def test_another_cell_size_adds_a_projection_and_moves_the_state_size():
    mixer = GRUMixer(MemoryGRUConfig(vocab_size=11, hidden_size=16, cell_size=24), 0)
    output, state = mixer(torch.randn(2, 5, 16))
    assert output.shape == (2, 5, 16)
    assert mixer.state_size() == state["hidden"][0].numel() == 24


def test_negative_cell_size_raises():
    with pytest.raises(StrictDataclassError, match="cell_size must be at least 1, or 0"):
        MemoryGRUConfig(vocab_size=11, cell_size=-1)


def test_spectrum_is_the_update_gate_where_the_state_has_no_weight():
    mixer = GRUMixer(MemoryGRUConfig(vocab_size=11, hidden_size=8, update_bias=2.0), 0)
    torch.nn.init.zeros_(mixer.weight_hh)
    torch.nn.init.zeros_(mixer.weight_ih)
    spectrum = mixer.transition_spectrum(torch.randn(2, 4, 8))
    torch.testing.assert_close(spectrum, torch.full((2, 4, 2), torch.sigmoid(torch.tensor(2.0)).item()))
