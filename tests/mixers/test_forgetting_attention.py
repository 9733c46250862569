"""Forgetting attention against its equations, and its columns over pieces, windows and padding."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.forgetting_attention import MemoryForgettingAttentionConfig, MemoryForgettingAttentionModel
from tests.mixers.memory_checks import mixer_of, normed
from tests.mixers.option_checks import assert_equals_definition, assert_laws, close, randomised

OPTIONS = [{}, {"window": 4, "num_heads": 4}, {"pro": True, "forget_bias": 1.0}, {"pro": True, "window": 3}]


def _loop(mixer, inputs):
    """The equations for one query, head and pair at a time, with the product of the gates between."""
    config, rows = mixer.config, []
    heads, width = config.num_heads, config.hidden_size
    size, window = width // heads, config.window or inputs.shape[1]
    for row in inputs:
        query, key, value = (row @ mixer.qkv_proj.weight.T).view(-1, 3, heads, size).unbind(1)
        forget = torch.sigmoid(row @ mixer.forget_proj.weight.T + mixer.forget_bias)
        if config.pro:
            share = torch.sigmoid(row @ mixer.shift_proj.weight.T).view(-1, 2, heads, 1)
            zero = torch.zeros_like(key[:1])
            key, value = (
                share[:, j] * torch.cat((zero, part[:-1])) + (1 - share[:, j]) * part
                for j, part in enumerate((key, value))
            )
            query, key = normed(query, mixer.query_norm.weight), normed(key, mixer.key_norm.weight)
        outputs = []
        for t in range(len(row)):
            seen = range(max(0, t - window + 1), t + 1)
            parts = []
            for head in range(heads):
                scores = torch.stack([query[t, head] @ key[s, head] / math.sqrt(size) for s in seen])
                weights = torch.stack([forget[s + 1 : t + 1, head].prod() for s in seen]) * torch.exp(scores)
                parts.append((weights / weights.sum()) @ value[seen.start : t + 1, head])
            outputs.append(torch.stack(parts))
        output = torch.stack(outputs)
        if config.pro:
            output = normed(output, mixer.head_norm.norm.weight)
        output = output.flatten(1)
        if config.pro:
            output = output * torch.sigmoid(row @ mixer.gate_proj.weight.T)
        rows.append(output @ mixer.out_proj.weight.T)
    return torch.stack(rows)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_equal_the_equations(options):
    mixer = mixer_of(MemoryForgettingAttentionModel, **options)
    assert_equals_definition(mixer, _loop, torch.randn(2, 9, 8, dtype=torch.float64))


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    config = MemoryForgettingAttentionConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, **options)
    assert_laws(randomised(MemoryForgettingAttentionModel, config))


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_that_are_reset_start_again(options):
    config = MemoryForgettingAttentionConfig(vocab_size=5, hidden_size=8, **options)
    model = randomised(MemoryForgettingAttentionModel, config)
    ids, after = torch.randint(0, 5, (3, 9)), torch.randint(0, 5, (3, 4))
    cache = model.reset_rows(model(ids, use_cache=True).cache, torch.tensor([True, False, True]))
    outputs = model(after, cache=cache).last_hidden_state
    close(outputs[[0, 2]], model(after[[0, 2]]).last_hidden_state)
    close(outputs[1:2], model(torch.cat((ids, after), dim=1)[1:2]).last_hidden_state[:, 9:])


@pytest.mark.parametrize("pro", [False, True])
def test_the_weights_of_a_position_fade_with_its_gates(pro):
    mixer = mixer_of(MemoryForgettingAttentionModel, pro=pro)
    inputs = torch.randn(2, 7, 8, dtype=torch.float64)
    weights = mixer.attention_weights(inputs)
    close(weights.sum(-1), torch.ones(2, 2, 7, dtype=torch.float64))
    with torch.no_grad():
        mixer.forget_bias.fill_(-60.0)
    close(mixer.attention_weights(inputs), torch.eye(7, dtype=torch.float64).expand(2, 2, 7, 7))


def test_pieces_of_a_long_sequence_in_float32_lose_no_digits():
    mixer = mixer_of(MemoryForgettingAttentionModel, window=8).float()
    inputs = torch.randn(1, 3000, 8)
    with torch.no_grad():
        exact = mixer.double()(inputs.double())[0]
        mixer.float()
        state, outputs = None, []
        for piece in inputs.split(50, dim=1):
            output, state = mixer(piece, state)
            outputs.append(output)
    assert state["decay"].dtype == torch.float32
    assert state["decay"].abs().max() < 40
    close(torch.cat(outputs, dim=1).double(), exact, 1e-5)


def test_gates_start_at_one_half_after_from_config():
    config = MemoryForgettingAttentionConfig(vocab_size=5, hidden_size=64, num_hidden_layers=1)
    mixer = MemoryForgettingAttentionModel._from_config(config).layers[0].mixer
    assert mixer.forget_bias.tolist() == [0.0, 0.0]
    assert mixer.forget_bias.dtype == torch.float32
    steps = mixer._sums(torch.randn(2, 50, 64), None).diff(dim=1)
    assert steps.exp().mean().item() == pytest.approx(0.5, abs=0.02)


def test_state_size_counts_columns_and_the_shift():
    mixer = mixer_of(MemoryForgettingAttentionModel, num_heads=4, pro=True, window=6)
    assert mixer.state_size(3) == 3 * (2 * 8 + 4) + 2 * 8
    assert mixer.state_size() == mixer.state_size(90) == 5 * (2 * 8 + 4) + 2 * 8
    with pytest.raises(ValueError, match="its size needs a length"):
        mixer_of(MemoryForgettingAttentionModel).state_size()


@pytest.mark.parametrize(
    "fields, name", [({"num_heads": 3}, "num_heads must divide"), ({"window": 0}, "window must be at least 1")]
)
def test_values_out_of_range_are_refused_by_name(fields, name):
    with pytest.raises(StrictDataclassError, match=name):
        MemoryForgettingAttentionConfig(vocab_size=5, hidden_size=8, **fields)
