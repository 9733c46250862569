"""Generation with the cache gives what recomputing without it gives, for every model type."""

import pytest
import torch
from transformers.generation import utils as generation_utils

from hf_memory.models.cache import MemoryCache
from hf_memory.testing.models import close, make, tokens


@pytest.mark.parametrize("prompt", [1, 7])
def test_greedy_tokens_are_those_of_recomputing_and_of_the_argmax_loop(key, prompt):
    model = make(key, dtype=torch.float64)
    ids = tokens(length=prompt)
    with_cache = model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=True)
    without = model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=False)
    by_hand = ids
    for _ in range(8):
        by_hand = torch.cat([by_hand, model(by_hand).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(with_cache, without)
    assert torch.equal(with_cache, by_hand)


def test_beams_give_the_same_sequences_and_scores_with_and_without_the_cache(key):
    model = make(key, dtype=torch.float64)
    ids = tokens(length=5)
    options = {"max_new_tokens": 6, "num_beams": 3, "output_scores": True, "return_dict_in_generate": True}
    with_cache = model.generate(ids, use_cache=True, **options)
    without = model.generate(ids, use_cache=False, **options)
    assert torch.equal(with_cache.sequences, without.sequences)
    close(with_cache.sequences_scores, without.sequences_scores, 1e-9)


def test_left_padded_prompts_generate_what_they_generate_alone(key):
    model = make(key, dtype=torch.float64)
    ids, mask = tokens(length=7), torch.ones(3, 7, dtype=torch.int64)
    mask[0, :4], mask[1, :1] = 0, 0
    batch = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    for row, start in enumerate((4, 1, 0)):
        alone = model.generate(ids[row : row + 1, start:], max_new_tokens=6, do_sample=False)
        assert torch.equal(batch[row, 7:], alone[0, 7 - start :])


def test_generation_continues_from_the_cache_that_it_returned(key):
    model = make(key, dtype=torch.float64)
    ids = tokens(length=5)
    name = "cache" if "cache" in generation_utils.ALL_CACHE_NAMES else "past_key_values"
    first = model.generate(ids, max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    cache = first[name]
    assert isinstance(cache, MemoryCache)
    assert cache.get_seq_length() == 8
    more = torch.cat([first.sequences, tokens(length=3)], dim=1)
    continued = model.generate(more, max_new_tokens=4, do_sample=False, **{name: cache})
    assert torch.equal(continued, model.generate(more, max_new_tokens=4, do_sample=False, use_cache=False))


def test_the_state_is_handed_on_from_the_second_step(key):
    model = make(key)
    seen = []
    inner = model.model.forward

    def spy(*args, **kwargs):
        seen.append((kwargs["input_ids"].shape[1], kwargs["cache"]))
        return inner(*args, **kwargs)

    model.model.forward = spy
    scored = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: scored.append(inputs[0].shape[1]))
    model.generate(tokens(length=6), max_new_tokens=3, do_sample=False)
    assert scored == [1, 1, 1]  # of the prompt, the last column alone
    assert [columns for columns, _ in seen] == [6, 1, 1]
    assert seen[0][1] is None
    assert all(isinstance(cache, MemoryCache) for _, cache in seen[1:])


def test_the_cache_is_read_under_each_of_its_names_and_no_other_class_is_taken(key):
    model = make(key, dtype=torch.float64)
    ids = tokens()
    cache = model(ids[:, :5], use_cache=True).cache
    expected = model(ids).logits[:, 5:]
    for name in ("cache", "past_key_values", "cache_params"):
        close(model(ids[:, 5:], **{name: cache}).logits, expected, 1e-10)
    with pytest.raises(ValueError, match="cache"):
        model(ids[:, 5:], cache=cache, past_key_values=cache)
    with pytest.raises(ValueError, match="MemoryCache"):
        model(ids, cache=[cache])
    with pytest.raises(ValueError, match="rows"):
        model(ids[:1, 5:], cache=cache)


def test_only_the_causal_model_generates_and_its_cache_is_not_cropped(key):
    model = make(key)
    assert model.can_generate()
    assert not make(key, head="base").can_generate()
    with pytest.raises(ValueError, match="cropped"):
        model(tokens(), use_cache=True).cache.crop(-1)


@pytest.mark.parametrize("masked", [False, True])
def test_embeddings_generate_what_their_tokens_generate(key, masked):
    model = make(key, dtype=torch.float64)
    ids = tokens(length=7)
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[0, :4] = 0 if masked else 1
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)[:, 7:]
    options = {"inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": mask, "do_sample": False}
    assert torch.equal(model.generate(**options, max_new_tokens=6), expected)
    beams = model.generate(**options, max_new_tokens=6, num_beams=2)
    assert torch.equal(beams, model.generate(ids, attention_mask=mask, max_new_tokens=6, num_beams=2)[:, 7:])


@pytest.mark.parametrize("size", [3])
def test_a_prompt_read_in_pieces_generates_the_same(key, size):
    model = make(key, dtype=torch.float64)
    ids, mask = tokens(length=7), torch.ones(3, 7, dtype=torch.int64)
    mask[0, :4], mask[1, :1] = 0, 0
    options = {"max_new_tokens": 6, "do_sample": False}
    for given in ({"input_ids": ids}, {"inputs_embeds": model.get_input_embeddings()(ids)}):
        for padding in ({}, {"attention_mask": mask}):
            whole = model.generate(**given, **padding, **options)
            assert torch.equal(model.generate(**given, **padding, **options, prefill_chunk_size=size), whole)
    seen, forward = [], model.model.forward
    model.model.forward = lambda *args, **kwargs: seen.append(kwargs["input_ids"].shape[1]) or forward(*args, **kwargs)
    model.generate(ids, **options, prefill_chunk_size=size)
    assert seen[: -(-7 // size)] == [min(size, 7 - start) for start in range(0, 7, size)]


def test_a_prompt_in_pieces_goes_on_from_a_cache(key):
    model = make(key, dtype=torch.float64)
    ids = tokens(length=9)
    name = "cache" if "cache" in generation_utils.ALL_CACHE_NAMES else "past_key_values"
    cache = model(ids[:, :4], use_cache=True).cache
    options = {"max_new_tokens": 5, "do_sample": False}
    given = {name: cache, "attention_mask": torch.ones(3, 9, dtype=torch.int64), "prefill_chunk_size": 2}
    assert torch.equal(model.generate(ids, **given, **options), model.generate(ids, **options))


def test_tokens_are_streamed_as_they_are_generated(key):
    class Streamer:
        def __init__(self):
            self.columns, self.ended = [], False

        def put(self, value):
            self.columns.append(value.view(3, -1) if value.numel() > 3 else value.view(3, 1))

        def end(self):
            self.ended = True

    model, streamer = make(key), Streamer()
    found = model.generate(tokens(length=5), max_new_tokens=4, do_sample=False, streamer=streamer)
    assert torch.equal(torch.cat(streamer.columns, dim=1), found)
    assert [columns.shape[1] for columns in streamer.columns] == [5, 1, 1, 1, 1]
    assert streamer.ended


REFUSED = {
    "an empty prompt": ({"inputs": torch.zeros(3, 0, dtype=torch.int64)}, "at least one row and one column"),
    "no prompt": ({}, "generate needs a prompt of at least one token"),
    "empty embeddings": ({"inputs_embeds": torch.zeros(3, 0, 16)}, "inputs_embeds must hold at least one row"),
    "a row alone": ({"inputs": torch.zeros(5, dtype=torch.int64)}, r"input_ids must be a tensor \(batch, length\)"),
    "an assistant": ({"inputs": tokens(1), "assistant_model": True}, "assisted decoding takes tokens back"),
    "a look-up": ({"inputs": tokens(1), "prompt_lookup_num_tokens": 2}, "assisted decoding takes tokens back"),
    "maps": (
        {"inputs": tokens(), "output_attentions": True, "return_dict_in_generate": True},
        "output_attentions: no map of attention",
    ),
    "pieces without state": ({"inputs": tokens(), "prefill_chunk_size": 2, "use_cache": False}, "needs use_cache=True"),
}


def test_what_cannot_be_generated_is_refused_by_its_name(key):
    model = make(key)
    for options, message in REFUSED.values():
        if "assistant_model" in options:
            options = {**options, "assistant_model": make(key)}
        with pytest.raises(ValueError, match=message):
            model.generate(**options, max_new_tokens=4)
    for call in (model.generate_batch, model.init_continuous_batching):
        with pytest.raises(ValueError, match="generate_batch: continuous batching hands out pages"):
            call([[1, 2, 3]])
