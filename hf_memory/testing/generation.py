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
    model.generate(tokens(length=6), max_new_tokens=3, do_sample=False)
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


def test_only_the_causal_model_generates_and_an_assistant_is_refused(key):
    model = make(key)
    assert model.can_generate()
    assert not make(key, head="base").can_generate()
    with pytest.raises(ValueError, match="(?i)assist|stateful"):
        model.generate(tokens(batch=1), assistant_model=make(key), max_new_tokens=4)
    with pytest.raises(ValueError, match="cropped"):
        model(tokens(), use_cache=True).cache.crop(-1)
