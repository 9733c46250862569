"""A config says whether the longest input builds something, and what is built refuses longer rows by that field."""

import pytest
import torch

from hf_memory.data.specification import specify
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.training import model_for_task
from hf_memory.mixers.auto import mixer_config
from tests.contracts.models import VOCAB, every_model, make, tokens
from tests.contracts.test_modules import variants

LONGEST = 16


@every_model
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


@every_model
def test_the_longest_input_changes_the_function_only_where_the_config_says_so(key):
    ids = tokens(length=9)
    for fields in variants(key):
        short, long = (make(key, **fields, max_position_embeddings=length).eval() for length in (LONGEST, 64))
        assert torch.equal(short(ids).logits, long(ids).logits) != short.config.limited_length, fields


@every_model
def test_the_config_file_does_not_hold_what_follows_from_other_fields(key):
    assert "limited_length" not in mixer_config(key, vocab_size=VOCAB, hidden_size=16).to_dict()


@pytest.mark.parametrize(
    ("mixer", "fields"),
    [("hyena", {}), ("base_conv", {"conv_kernel": 0}), ("lstm", {"position_embedding": "learned"})],
)
def test_evaluation_refuses_a_longer_split_and_names_the_field_and_both_lengths(mixer, fields):
    parity = specify("bit_parity", length=8, test_lengths=[12, 20], num_train=8, num_validation=8, num_test=8)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "max_position_embeddings": 12}
    model = model_for_task(mixer, parity.task, **sizes, **fields)

    def rows(length):
        return {"input_ids": torch.ones(4, length, dtype=torch.int64), "labels": torch.ones(4, length).long()}

    (found,) = evaluate_lengths(model, parity, {"test_12": rows(12)}, progress=False)
    assert found.length == 12
    with pytest.raises(ValueError, match=r"^max_position_embeddings=12 is .*\b(20 tokens|position 19)"):
        evaluate_lengths(model, parity, {"test_20": rows(20)}, progress=False)
