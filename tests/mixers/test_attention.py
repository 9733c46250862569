"""Whole attention models against published ones with the same weights, and the window."""

import pytest
import torch
from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from hf_memory.mixers.attention import (
    AttentionMixer,
    MemoryAttentionConfig,
    MemoryAttentionForCausalLM,
    MemoryAttentionModel,
)
from hf_memory.models.layers import sinusoidal_positions
from tests.mixers.option_checks import assert_laws, randomised


def test_a_llama_with_the_same_weights_gives_the_same_outputs_and_gradients():
    llama = LlamaModel(
        LlamaConfig(
            vocab_size=13,
            hidden_size=16,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            rms_norm_eps=1e-5,
            initializer_range=0.3,
        )
    ).eval()
    ours = MemoryAttentionModel(
        MemoryAttentionConfig(
            vocab_size=13, hidden_size=16, intermediate_size=40, num_heads=4, hidden_act="silu", mlp_gated=True
        )
    ).eval()
    with torch.no_grad():
        ours.embed_tokens.weight.copy_(llama.embed_tokens.weight)
        ours.norm.weight.copy_(llama.norm.weight)
        for block, theirs in zip(ours.layers, llama.layers, strict=True):
            projections = (theirs.self_attn.q_proj, theirs.self_attn.k_proj, theirs.self_attn.v_proj)
            block.mixer.qkv_proj.weight.copy_(torch.cat([projection.weight for projection in projections]))
            block.mixer.out_proj.weight.copy_(theirs.self_attn.o_proj.weight)
            for name in ("gate_proj", "up_proj", "down_proj"):
                getattr(block.mlp, name).weight.copy_(getattr(theirs.mlp, name).weight)
    ids = torch.randint(0, 13, (3, 20))
    expected, actual = llama(ids).last_hidden_state, ours(ids).last_hidden_state
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)
    for model, output in ((llama, expected), (ours, actual)):
        output.square().sum().backward()
        model.grad = model.embed_tokens.weight.grad
    torch.testing.assert_close(ours.grad, llama.grad, atol=1e-3, rtol=1e-3)


def test_a_gpt2_with_the_same_weights_gives_the_same_outputs():
    gpt2 = GPT2Model(
        GPT2Config(vocab_size=13, n_embd=16, n_layer=2, n_head=2, n_positions=32, initializer_range=0.3)
    ).eval()
    ours = MemoryAttentionModel(
        MemoryAttentionConfig(
            vocab_size=13,
            hidden_size=16,
            intermediate_size=64,
            hidden_act="gelu_new",
            norm="layer",
            position_code="none",
            position_embedding="learned",
            max_position_embeddings=32,
            attention_bias=True,
        )
    ).eval()
    with torch.no_grad():
        ours.embed_tokens.weight.copy_(gpt2.wte.weight)
        ours.embed_positions.weight.copy_(gpt2.wpe.weight)
        for block, theirs in zip(ours.layers, gpt2.h, strict=True):
            theirs.attn.c_attn.bias.normal_()
            theirs.mlp.c_fc.bias.zero_()
            theirs.mlp.c_proj.bias.zero_()
            block.mixer.qkv_proj.weight.copy_(theirs.attn.c_attn.weight.T)
            block.mixer.qkv_proj.bias.copy_(theirs.attn.c_attn.bias)
            block.mixer.out_proj.weight.copy_(theirs.attn.c_proj.weight.T)
            block.mlp.up_proj.weight.copy_(theirs.mlp.c_fc.weight.T)
            block.mlp.down_proj.weight.copy_(theirs.mlp.c_proj.weight.T)
    ids = torch.randint(0, 13, (3, 20))
    torch.testing.assert_close(ours(ids).last_hidden_state, gpt2(ids).last_hidden_state, atol=2e-5, rtol=0)


def test_sinusoidal_codes_are_sines_and_cosines_of_geometric_frequencies():
    codes = sinusoidal_positions(torch.tensor([[0, 1, 7]]), 6)
    assert codes.shape == (1, 3, 6)
    torch.testing.assert_close(codes[0, 0], torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(
        codes[0, 2, :2],
        torch.tensor([7.0]).sin().item() * torch.tensor([1.0, 0.0]) + torch.tensor([0.0, torch.tensor(7.0).cos()]),
    )
    torch.testing.assert_close(codes[0, 2, 2], torch.tensor(7 / 10_000 ** (1 / 3)).sin())


@pytest.mark.parametrize("code", ["none", "rope", "alibi"])
@pytest.mark.parametrize("window", [1, 3, 12, 50])
def test_a_window_sees_its_last_tokens_and_its_state_does_not_grow(code, window):
    model = MemoryAttentionForCausalLM(
        MemoryAttentionConfig(
            vocab_size=7, hidden_size=16, num_hidden_layers=1, window=window, position_code=code, initializer_range=0.3
        )
    ).eval()
    ids = torch.randint(0, 7, (2, 20))
    other = ids.clone()
    other[:, :8] = (other[:, :8] + 1) % 7
    changed = (model(ids).logits - model(other).logits).abs().amax(dim=(0, 2)) > 1e-6
    assert changed[:8].all()
    assert changed[8:].sum() == min(window - 1, 12)
    cache = model(ids, use_cache=True).cache
    assert cache.states[0]["mixer.key"].shape[1] == min(20, window - 1)
    assert model.generate(ids, max_new_tokens=5, do_sample=False).shape == (2, 25)


@pytest.mark.parametrize("window", [4, None])
def test_padding_does_not_take_columns_of_the_window(window):
    config = MemoryAttentionConfig(vocab_size=7, hidden_size=16, window=window, initializer_range=0.3)
    model = MemoryAttentionForCausalLM(config).eval()
    ids, mask = torch.randint(0, 7, (1, 14)), torch.ones(1, 14, dtype=torch.int64)
    mask[0, 5:12] = 0
    cache = model(ids, attention_mask=mask, use_cache=True).cache
    assert cache.states[0]["mixer.key"].shape[1] == (window - 1 if window else 7)
    after = torch.randint(0, 7, (1, 3))
    alone = model(torch.cat([ids[:, mask[0].bool()], after], dim=1)).logits[:, -3:]
    torch.testing.assert_close(model(after, cache=cache).logits, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_heads": 3}, "num_heads"),
        ({"num_heads": 0}, "num_heads"),
        ({"window": 0}, "window"),
        ({"window": -1}, "window"),
        ({"position_code": "learned"}, "position_code"),
        ({"attention_dropout": 1.5}, "attention_dropout"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"conv_kernel": -2}, "conv_kernel"),
    ],
)
def test_impossible_fields_are_named(fields, name):
    with pytest.raises(Exception, match=name):
        MemoryAttentionConfig(vocab_size=7, hidden_size=16, **fields)


def test_packed_positions_are_refused():
    model = MemoryAttentionForCausalLM(MemoryAttentionConfig(vocab_size=7, hidden_size=16))
    with pytest.raises(ValueError, match="position_ids"):
        model(torch.zeros(1, 4, dtype=torch.int64), position_ids=torch.tensor([[0, 1, 0, 1]]))
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(torch.zeros(1, 4, dtype=torch.int64), cu_seq_lens_q=torch.tensor([0, 2, 4]))


@pytest.mark.parametrize("code", ["rope", "alibi"])
def test_a_mixer_on_its_own_counts_positions_where_none_are_given(code):
    config = MemoryAttentionConfig(hidden_size=16, position_code=code, window=4)
    mixer = AttentionMixer(config, 0).double()
    inputs, positions = torch.randn(2, 9, 16, dtype=torch.float64), torch.arange(9).expand(2, -1)
    expected, _ = mixer(inputs, position_ids=positions)
    first, state = mixer(inputs[:, :5])
    second, _ = mixer(inputs[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("code", ["none", "rope", "alibi"])
@pytest.mark.parametrize("window", [1, 3, 8, 20, None])
def test_gaps_in_positions_count_for_the_window_with_a_cache_and_without(code, window):
    config = MemoryAttentionConfig(
        vocab_size=7, hidden_size=16, position_code=code, window=window, initializer_range=0.3
    )
    model = MemoryAttentionForCausalLM(config).eval().double()
    ids, positions = torch.randint(0, 7, (2, 9)), torch.tensor([[0, 1, 4, 5, 11, 12, 13, 40, 41], list(range(9))])
    whole = model(ids, position_ids=positions, use_cache=True)
    for cut in range(1, 9):
        first = model(ids[:, :cut], position_ids=positions[:, :cut], use_cache=True)
        second = model(ids[:, cut:], position_ids=positions[:, cut:], cache=first.cache, use_cache=True)
        logits = torch.cat([first.logits, second.logits], dim=1)
        torch.testing.assert_close(logits, whole.logits, atol=1e-10, rtol=0)
        for ours, theirs in zip(second.cache.states, whole.cache.states, strict=True):
            for name in theirs:
                torch.testing.assert_close(ours[name], theirs[name], atol=1e-10, rtol=0)
    if window == 3:
        alone = model(ids[:1, 7:], position_ids=positions[:1, 7:]).logits
        torch.testing.assert_close(whole.logits[:1, 7:], alone, atol=1e-10, rtol=0)


def test_the_state_of_a_window_keeps_no_older_columns_alive():
    mixer = AttentionMixer(MemoryAttentionConfig(hidden_size=16, window=8), 0)
    with torch.no_grad():
        _, state = mixer(torch.randn(1, 500, 16))
        for _ in range(3):
            assert all(leaf.untyped_storage().nbytes() <= 7 * 16 * 8 for leaf in state.values())
            _, state = mixer(torch.randn(1, 1, 16), state)


@pytest.mark.parametrize("code", ["none", "rope", "alibi"])
def test_long_inputs_in_blocks_equal_short_pieces(code, monkeypatch):
    monkeypatch.setattr("hf_memory.ops._attention_blocks.WHOLE_NUMBERS", 0)
    monkeypatch.setattr("hf_memory.ops._attention_blocks.BLOCK_NUMBERS", 1)
    config = MemoryAttentionConfig(vocab_size=7, hidden_size=16, position_code=code, window=30, initializer_range=0.3)
    assert_laws(randomised(MemoryAttentionModel, config), length=20)
