"""A config says whether the longest input builds something, and what is built refuses longer rows by that field."""

import pytest
import torch

from hf_memory.mixers.auto import mixer_config
from hf_memory.testing.models import VOCAB, make, tokens
from hf_memory.testing.modules import variants

LONGEST = 16


def test_the_config_knows_whether_a_longest_input_is_built_in(key):
    for fields in variants(key):
        for positions in ("none", "sinusoidal", "learned"):
            model = make(key, **fields, position_embedding=positions, max_position_embeddings=LONGEST)
            mixers = any(layer.mixer.limited_length for layer in model.base_model.layers)
            assert model.config.limited_length == (mixers or positions == "learned"), (fields, positions)
            if not model.config.limited_length:
                assert torch.isfinite(model(tokens(length=LONGEST + 3)).logits).all()
                continue
            assert torch.isfinite(model(tokens(length=LONGEST)).logits).all()
            with pytest.raises(ValueError, match=rf"^max_position_embeddings={LONGEST} .*\b1[89]\b"):
                model(tokens(length=LONGEST + 3))


def test_the_longest_input_changes_the_function_only_where_the_config_says_so(key):
    ids = tokens(length=9)
    for fields in variants(key):
        short, long = (make(key, **fields, max_position_embeddings=length).eval() for length in (LONGEST, 64))
        assert torch.equal(short(ids).logits, long(ids).logits) != short.config.limited_length, fields


def test_the_config_file_does_not_hold_what_follows_from_other_fields(key):
    assert "limited_length" not in mixer_config(key, vocab_size=VOCAB, hidden_size=16).to_dict()
