"""What holds for the spine whatever the mixer; the contracts of each type stand in :mod:`hf_memory.testing`."""

import pytest
import torch
from transformers import AutoConfig

from hf_memory.data.specification import specify
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.training import model_for_task
from hf_memory.mixers.auto import config_class, register_all
from hf_memory.testing.inputs import IDS, LABELS, at
from hf_memory.testing.models import VOCAB, close, make, tokens


def test_a_regression_takes_real_labels_of_its_inputs_shape():
    model = make("lstm", "token_classification", problem_type="regression")
    model = type(model)(type(model.config)(**{**model.config.to_dict(), "id2label": {0: "value"}})).eval()
    assert model.head.out_features == 1
    model(IDS, labels=LABELS.float())
    for labels in (LABELS.float().unsqueeze(-1), LABELS.float()[:, 1:], LABELS > 3):
        with pytest.raises(ValueError, match="labels"):
            model(IDS, labels=labels)
    with pytest.raises(ValueError, match="label_smoothing must be 0 for a regression"):
        model(IDS, labels=LABELS.float(), label_smoothing=0.1)


# Pairs whose states fit into each other, and which ran with wrong numbers before a cache knew its owner.
STRANGERS = [
    ("rnn", "gru", {}, {}, "model_type is 'memory_rnn', and that of this model is 'memory_gru'"),
    ("gru", "rnn", {}, {}, "model_type is 'memory_gru'"),
    ("linear_transformer", "delta_net", {}, {}, "model_type"),
    ("lstm", "lstm", {"num_hidden_layers": 2}, {"num_hidden_layers": 1}, "num_hidden_layers is 2, .* is 1"),
    ("attention", "attention", {"window": 3}, {"window": 8}, "window is 3, and that of this model is 8"),
    ("attention", "attention", {"position_code": "rope"}, {"position_code": "alibi"}, "position_code"),
    ("hybrid", "hybrid", {"layers": ["rnn", "gru"]}, {"layers": ["gru", "rnn"]}, "layers"),
    ("lstm", "lstm", {"block_conv_kernel": 3}, {"block_conv_kernel": 4}, "block_conv_kernel"),
]


@pytest.mark.parametrize(("giver", "taker", "of_giver", "of_taker", "message"), STRANGERS)
def test_a_cache_of_another_model_is_refused(giver, taker, of_giver, of_taker, message):
    cache = make(giver, **of_giver)(IDS, use_cache=True).cache
    taker = make(taker, **of_taker)
    for form in (cache, cache.detach(), cache.to(torch.float64)):
        with pytest.raises(ValueError, match=f"cache is of another model: its {message}"):
            taker(IDS, cache=form)


@torch.no_grad()
def test_values_become_assertions_of_a_traced_graph():
    model = make("attention")
    roads = {
        "exported": torch.export.export(model, (IDS,), {"use_cache": False}, strict=False).module(),
        "exported by tracing bytecode": torch.export.export(model, (IDS,), {"use_cache": False}, strict=True).module(),
        "compiled": torch.compile(model, backend="eager"),
    }
    for road in roads.values():
        close(road(IDS, use_cache=False).logits, model(IDS).logits, 1e-6)
        for bad in (at(IDS, -1), at(IDS, 11)):
            with pytest.raises(RuntimeError, match="input_ids must be in"):
                road(bad, use_cache=False)


def test_a_model_on_the_meta_device_is_asked_for_shapes_alone():
    model = make("attention").to("meta")
    assert model(IDS.to("meta")).logits.shape == (3, 8, VOCAB)
    with pytest.raises(ValueError, match="input_ids must be a tensor"):
        model(IDS[0].to("meta"))


def test_columns_to_keep_are_counted_from_one():
    model = make("lstm")
    with pytest.raises(ValueError, match="logits_to_keep must be at least 0"):
        model(tokens(), logits_to_keep=-1)


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


def test_registering_twice_changes_nothing():
    register_all()
    assert type(AutoConfig.for_model("memory_attention")) is config_class("attention")
