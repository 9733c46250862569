"""Laws of the state, for every model type: split, mask, causality, size."""

import pytest
import torch

from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.testing.models import LENGTH, close, close_states, make, tokens, tolerance

PARTS = {"plain": {}, "conv and mlp": {"block_conv_kernel": 3, "intermediate_size": 24}}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("training", [False, True])
def test_any_split_of_time_gives_the_outputs_and_the_state_of_one_pass(key, parts, training):
    model = make(key, dtype=torch.float64, **PARTS[parts]).train(training)
    ids = tokens()
    whole = model(ids, use_cache=True)
    for cut in range(1, LENGTH):
        first = model(ids[:, :cut], use_cache=True)
        second = model(ids[:, cut:], cache=first.cache, use_cache=True)
        close(torch.cat([first.logits, second.logits], dim=1), whole.logits, 1e-10)
        close_states(second.cache, whole.cache, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_steps_give_the_outputs_and_the_state_of_one_pass(key, dtype):
    model = make(key, dtype=dtype)
    ids, cache, logits = tokens(), None, []
    for column in ids.split(1, dim=1):
        outputs = model(column, cache=cache, use_cache=True)
        cache = outputs.cache
        logits.append(outputs.logits)
    whole = model(ids, use_cache=True)
    atol = 1e-10 if dtype == torch.float64 else tolerance(model)
    close(torch.cat(logits, dim=1), whole.logits, atol)
    close_states(cache, whole.cache, atol)


def test_pieces_match_one_pass_in_float32_beyond_a_chunk(key):
    model = make(key)
    ids = tokens(batch=2, length=150)
    whole = model(ids, use_cache=True)
    first = model(ids[:, :67], use_cache=True)
    second = model(ids[:, 67:], cache=first.cache, use_cache=True)
    scale = whole.logits.abs().max().item()
    close(torch.cat([first.logits, second.logits], dim=1), whole.logits, 10 * tolerance(model) * max(scale, 1))


@pytest.mark.parametrize("length", [LENGTH, 70])
def test_outputs_and_gradients_are_the_same_where_nobody_asks_for_the_state(key, length):
    model = make(key, dtype=torch.float64)
    ids, parameters = tokens(length=length), list(model.parameters())
    with_state, without = (model(ids, use_cache=use_cache).logits for use_cache in (True, False))
    close(without, with_state, 1e-11)
    weights = torch.randn_like(with_state)
    gradients = [
        torch.autograd.grad((out * weights).sum(), parameters, allow_unused=True) for out in (with_state, without)
    ]
    for expected, gradient in zip(*gradients, strict=True):
        assert (expected is None) == (gradient is None)
        if expected is not None:
            close(gradient, expected, 1e-10 * max(expected.abs().max().item(), 1))


def test_a_cache_is_not_written_to_by_the_pass_that_reads_it(key):
    model = make(key)
    ids = tokens()
    cache = model(ids, use_cache=True).cache
    before = cache.map(torch.clone)
    first = model(ids, cache=cache, use_cache=True).logits
    close_states(cache, before, 0)
    close(model(ids, cache=cache, use_cache=True).logits, first, 0)


MASKS = {
    "left": [[0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], [1] * 12],
    "right": [[1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [1] * 12],
    "interior": [[1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0], [1] * 12],
    "none real": [[0] * 12, [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0], [1] * 12],
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("continued", [False, True])
def test_padded_rows_equal_unpadded_ones_in_outputs_and_state(key, kind, continued):
    model = make(key, dtype=torch.float64, block_conv_kernel=3)
    ids, mask, prefix = tokens(), torch.tensor(MASKS[kind]), tokens(length=4)
    past = model(prefix, use_cache=True).cache if continued else None
    after = tokens(length=3)
    padded = model(ids, attention_mask=mask, cache=past, use_cache=True)
    follow = model(after, cache=padded.cache)
    for row in range(3):
        real = mask[row].bool()
        alone = model(prefix[row : row + 1], use_cache=True).cache if continued else None
        if real.any():
            single = model(ids[row : row + 1, real], cache=alone, use_cache=True)
            close(padded.logits[row, real], single.logits[0], 1e-10)
            alone = single.cache
        close(follow.logits[row], model(after[row : row + 1], cache=alone).logits[0], 1e-10)


def test_a_batch_of_one_with_padding_equals_the_sequence_alone(key):
    model = make(key, dtype=torch.float64)
    ids = tokens(batch=1)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    close(model(ids, attention_mask=mask).logits[:, 5:], model(ids[:, 5:]).logits, 1e-10)


def test_what_stands_at_padding_has_no_effect_and_gets_no_gradient(key):
    model = make(key, dtype=torch.float64)
    mask = torch.tensor(MASKS["interior"])
    embeds = torch.randn(3, LENGTH, 16, dtype=torch.float64, requires_grad=True)
    changed = torch.where(mask.bool().unsqueeze(-1), embeds, 5.0)
    close(
        model(inputs_embeds=changed, attention_mask=mask).logits,
        model(inputs_embeds=embeds, attention_mask=mask).logits,
        1e-10,
    )
    hidden = model(inputs_embeds=embeds, attention_mask=mask).logits
    hidden.square().sum().backward()
    assert embeds.grad[~mask.bool()].abs().max() == 0
    assert embeds.grad[mask.bool()].abs().min() > 0
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_the_future_does_not_change_the_past(key):
    model = make(key)
    ids = tokens(length=33)
    other = ids.clone()
    other[:, 20:] = (other[:, 20:] + 1) % 11
    before, after = model(ids).logits, model(other).logits
    close(after[:, :20], before[:, :20], tolerance(model))
    assert (after[:, 20] - before[:, 20]).abs().max() > 1e-3


def test_rows_do_not_see_each_other(key):
    model = make(key, dtype=torch.float64)
    ids = tokens(batch=4)
    close(model(ids).logits[2:3], model(ids[2:3]).logits, 1e-10)


def test_nan_in_one_row_reaches_its_later_outputs_and_no_other_row(key):
    model = make(key)
    embeds = torch.randn(2, LENGTH, 16)
    embeds[0, 5] = torch.nan
    logits = model(inputs_embeds=embeds).logits
    assert torch.isnan(logits[0, 5]).all()
    assert torch.isfinite(logits[1]).all()


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("length", [1, 5, 12])
def test_state_size_is_what_the_live_cache_holds(key, width, length):
    config = mixer_config(key, vocab_size=11, hidden_size=width, block_conv_kernel=4, intermediate_size=8)
    model = mixer_model(config, "causal").eval()
    cache = model(tokens(length=length), use_cache=True).cache
    assert cache.state_size() == model.state_size(length) > 0
    assert cache.nbytes() >= 2 * 3 * cache.state_size()


def test_the_gradient_flows_through_the_cache_unless_it_is_detached(key):
    model = make(key, dtype=torch.float64)
    ids = tokens()
    embeds = model.get_input_embeddings()(ids[:, :6]).detach().requires_grad_()
    cache = model(inputs_embeds=embeds, use_cache=True).cache
    model(ids[:, 6:], cache=cache).logits.square().sum().backward()
    assert embeds.grad.abs().max() > 0
    whole = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=whole).logits[:, 6:].square().sum().backward()
    close(embeds.grad, whole.grad[:, :6], 1e-9)
    assert not any(leaf.requires_grad for state in cache.detach().states for leaf in state.values())


def test_rows_of_a_cache_can_be_taken_repeated_and_reset(key):
    model = make(key, dtype=torch.float64)
    ids, after = tokens(), tokens(length=3)
    cache = model(ids, use_cache=True).cache
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    expected = model(ids[[2, 0, 0]], use_cache=True).cache
    close_states(cache, expected, 1e-10)
    cache.batch_select_indices(torch.tensor([1]))
    cache.batch_repeat_interleave(2)
    close(
        model(after[:2], cache=cache).logits[0], model(after[:1], cache=expected_row(model, ids[:1])).logits[0], 1e-10
    )


def expected_row(model, ids):
    return model(ids, use_cache=True).cache


def test_reset_state_puts_rows_back_to_the_start(key):
    model = make(key, dtype=torch.float64)
    ids, after = tokens(), tokens(length=3)
    cache = model(ids, use_cache=True).cache
    mask = torch.tensor([True, False, True])
    cache = model.base_model.reset_rows(cache, mask)
    logits = model(after, cache=cache).logits
    close(logits[[0, 2]], model(after[[0, 2]]).logits, 1e-10)
    close(logits[1:2], model(after[1:2], cache=expected_row(model, ids[1:2])).logits, 1e-10)


def test_output_states_are_the_states_of_the_prefixes(key):
    model = make(key, dtype=torch.float64)
    ids = tokens()
    if any(layer.mixer.growing_state for layer in model.base_model.layers):
        with pytest.raises(ValueError, match="output_states"):
            model(ids, output_states=True)
        return
    mask = torch.tensor(MASKS["interior"])
    outputs = model(ids, attention_mask=mask, output_states=True, use_cache=True)
    close(outputs.logits, model(ids, attention_mask=mask).logits, 1e-10)
    for column in (0, 4, 11):
        prefix = model(ids[:, : column + 1], attention_mask=mask[:, : column + 1], use_cache=True).cache
        for traced, state in zip(outputs.states, prefix.states, strict=True):
            for name, leaf in state.items():
                close(traced[name][:, column], leaf, 1e-10)


def test_transition_spectrum_has_an_interval_for_each_token(key):
    model = make(key)
    for layer in model.base_model.layers:
        spectrum = layer.mixer.transition_spectrum(torch.randn(2, 5, 16))
        if layer.mixer.growing_state:
            assert spectrum is None
        else:
            assert spectrum.shape == (2, 5, 2)
            assert torch.isfinite(spectrum).all()
            assert (spectrum[..., 0] <= spectrum[..., 1]).all()


@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_hidden_states_are_in_the_graph_whatever_the_padding(key, padding):
    model = make(key, dtype=torch.float64)
    ids, mask = tokens(), torch.ones(3, 12, dtype=torch.int64)
    if padding != "none":
        mask[0, slice(7, None) if padding == "right" else slice(0, 5)] = 0
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    outputs = model(inputs_embeds=embeds, attention_mask=mask, labels=ids, output_hidden_states=True)
    assert len(outputs.hidden_states) == 3
    found = torch.autograd.grad(outputs.loss, [*outputs.hidden_states, embeds])
    close(found[0], found[-1], 1e-12)  # nothing but moves stands between the embeddings and the first block
    for gradient in found:
        assert (gradient[mask.bool()].abs().amax(-1) > 0)[:-1].float().mean() > 0.5
        assert not gradient[~mask.bool()].any()
    assert not any(hidden[~mask.bool()].any() for hidden in outputs.hidden_states)
