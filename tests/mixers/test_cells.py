"""The mixers with the weights of torch's own layers: torch's stack with the same weights, widths, initial biases."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.auto import config_class, model_class

STACKS = {
    "tanh": ("rnn", torch.nn.RNN, {"nonlinearity": "tanh"}),
    "relu": ("rnn", torch.nn.RNN, {"nonlinearity": "relu"}),
    "gru": ("gru", torch.nn.GRU, {}),
    "lstm": ("lstm", torch.nn.LSTM, {}),
}
BIASES = [("gru", "update_bias", value) for value in (1.0, 0.0, None)]
BIASES += [("lstm", "forget_bias", value) for value in (1.0, 3.0, 0.0, None)]
STATES = {"rnn": ["hidden"], "gru": ["hidden"], "lstm": ["hidden", "cell"]}


def _config(key, **fields):
    return config_class(key)(vocab_size=11, **fields)


@pytest.mark.parametrize("name", STACKS)
def test_a_plain_stack_equals_that_of_torch_in_outputs_state_and_gradients(name):
    key, layer, fields = STACKS[name]
    model = model_class(key, "base")(_config(key, hidden_size=16, norm="none", residual=False, **fields))
    reference = layer(16, 16, num_layers=2, batch_first=True, **fields)
    with torch.no_grad():
        for index, block in enumerate(model.layers):
            for weight in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(reference, f"{weight}_l{index}").copy_(getattr(block.mixer, weight))
    embedded = model.embed_tokens(torch.randint(0, 11, (3, 20)))
    expected, final = reference(embedded)
    output = model(inputs_embeds=embedded, use_cache=True)
    torch.testing.assert_close(output.last_hidden_state, expected, rtol=0, atol=1e-6)
    finals = dict(zip(STATES[key], final if isinstance(final, tuple) else (final,), strict=True))
    for index, state in enumerate(output.cache.states):
        assert list(state) == [f"mixer.{leaf}" for leaf in finals]
        for leaf, values in finals.items():
            torch.testing.assert_close(state[f"mixer.{leaf}"], values[index], rtol=0, atol=1e-6)
    ours = torch.autograd.grad(output.last_hidden_state.sin().sum(), model.layers[0].mixer.weight_hh, retain_graph=True)
    theirs = torch.autograd.grad(expected.sin().sum(), reference.weight_hh_l0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("key", "field", "value"), BIASES)
def test_the_bias_of_the_keeping_gate_is_that_of_the_config_after_construction_and_loading(key, field, value, tmp_path):
    causal = model_class(key, "causal")
    model = causal(_config(key, hidden_size=64, **{field: value}))
    model.save_pretrained(tmp_path)
    for loaded in (model, causal._from_config(model.config), causal.from_pretrained(tmp_path)):
        for block in loaded.model.layers:
            total = (block.mixer.bias_ih + block.mixer.bias_hh).detach()
            if value is None:
                assert total[64:128].std() > 0.05
            else:
                assert torch.equal(total[64:128], torch.full((64,), value))
            rest = torch.cat([total[:64], total[128:]])
            assert 0 < rest.abs().max() <= 2 / 8
            assert 0.95 / 8 < block.mixer.weight_hh.abs().max() <= 1 / 8


@pytest.mark.parametrize("key", STATES)
def test_another_cell_size_adds_a_projection_and_moves_the_state_size(key):
    model = model_class(key, "base")(_config(key, hidden_size=16, cell_size=24))
    mixer = model.layers[0].mixer
    output, state = mixer(torch.randn(2, 5, 16))
    assert output.shape == (2, 5, 16)
    assert mixer.out_proj.weight.shape == (16, 24)
    assert mixer.state_size() == sum(leaf[0].numel() for leaf in state.values()) == 24 * len(STATES[key])


@pytest.mark.parametrize("key", [*STATES, "qlstm"])
def test_a_negative_cell_size_is_refused(key):
    with pytest.raises(StrictDataclassError, match="cell_size must be at least 1, or 0"):
        _config(key, cell_size=-1)
