"""Rows in pieces give what one pass gives, and no layer sees more than a piece."""

import numpy as np
import pytest
import torch

from hf_memory.data.collator import right_mask
from hf_memory.data.specification import specify
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.pieces import in_pieces, predict_in_pieces, state_after
from hf_memory.experiments.provenance import measure_state
from hf_memory.experiments.training import model_for_task
from hf_memory.mixers.auto import model_keys
from hf_memory.models.modeling import Mixer

PARITY = specify("bit_parity", length=8, test_lengths=[8], num_train=8, num_validation=8, num_test=8)
MQAR = specify("mqar", length=40, test_lengths=[40], vocab_size=16, num_kv_pairs=2, num_train=8, num_test=8)


def make_model(mixer: str, specification, **fields) -> torch.nn.Module:
    torch.manual_seed(0)
    fields = {"hidden_size": 16, "num_hidden_layers": 2, **fields}
    return model_for_task(mixer, specification.task, **fields).double().eval()


def watch(model: torch.nn.Module) -> list[int]:
    """The columns that each pass over a model sees from now on."""
    seen: list[int] = []
    model.base_model.register_forward_pre_hook(
        lambda module, given, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    return seen


def rows(specification, length: int, num_rows: int) -> dict[str, torch.Tensor]:
    part = specification.splits[f"test_{length}"].parts[0]
    ids, labels = part.task.sample(np.random.default_rng(1), length, num_rows)
    return {"input_ids": torch.from_numpy(ids).long(), "labels": torch.from_numpy(labels).long()}


@pytest.mark.parametrize("mixer", model_keys())
@pytest.mark.parametrize("padded", [False, True])
def test_pieces_equal_one_pass(mixer, padded):
    model, batch = make_model(mixer, MQAR), rows(MQAR, 40, 3)
    if padded:
        mask = right_mask(torch.tensor([40, 23, 9]))
        batch = {name: value[:, :40] for name, value in batch.items()} | {"attention_mask": mask}
        batch["labels"] = batch["labels"].masked_fill(mask == 0, -100)
    whole = predict_in_pieces(model, batch)
    seen = watch(model)
    predictions, losses, unresolved = predict_in_pieces(model, batch, tokens=3 * 7)
    grows = any(layer.mixer.growing_state for layer in model.base_model.layers)
    assert seen == ([40] if grows else [7, 7, 7, 7, 7, 5])
    assert (whole[0] != -100).sum() == (batch["labels"] != -100).sum() > 0
    assert torch.equal(predictions, whole[0])
    torch.testing.assert_close(losses, whole[1], rtol=1e-9, atol=1e-9)
    if any(layer.mixer.unresolved_rows is not Mixer.unresolved_rows for layer in model.base_model.layers):
        assert unresolved.tolist() == whole[2].tolist() == [False, False, False]
    else:
        assert unresolved is whole[2] is None


@pytest.mark.parametrize(("mixer", "fields", "kept"), [
    ("nru", {}, True), ("hybrid", {"layers": ["lru", "nru"]}, True), ("lru", {}, False), ("attention", {}, False),
])  # fmt: skip
def test_states_of_a_pass_are_kept_where_a_layer_tells_which_it_resolves_and_nowhere_else(mixer, fields, kept):
    model, asked = make_model(mixer, PARITY, **fields), []
    model.base_model.register_forward_pre_hook(
        lambda module, given, named: asked.append(named["use_cache"]), with_kwargs=True
    )
    assert (predict_in_pieces(model, rows(PARITY, 8, 2))[2] is not None) == kept
    assert asked == [kept]


def test_a_row_is_unresolved_where_any_layer_says_so(monkeypatch):
    model, batch = make_model("hybrid", PARITY, layers=["nru", "lru"]), rows(PARITY, 8, 3)
    for layer, told in zip(model.base_model.layers, ([True, False, False], [False, False, True]), strict=True):
        monkeypatch.setattr(layer.mixer, "unresolved_rows", lambda state, told=told: torch.tensor(told))
    for tokens in (24, 9):
        assert predict_in_pieces(model, batch, tokens)[2].tolist() == [True, False, True]


def test_targets_of_a_head_that_is_not_shifted_stay_where_they_are():
    model, batch = make_model("lstm", PARITY), rows(PARITY, 8, 4)
    whole, seen = predict_in_pieces(model, batch), watch(model)
    predictions, losses, _ = predict_in_pieces(model, batch, tokens=12)
    assert seen == [3, 3, 2]
    assert torch.equal(predictions, whole[0])
    torch.testing.assert_close(losses, whole[1], rtol=1e-9, atol=1e-9)
    assert (whole[0] == -100).sum() == 0


def test_the_last_piece_is_what_is_left_and_a_row_longer_than_a_piece_is_cut():
    model = make_model("lru", PARITY)
    assert in_pieces(model, 4, 10, tokens=16) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert in_pieces(model, 4, 10, tokens=2) == [slice(t, t + 1) for t in range(10)]
    assert in_pieces(model, 4, 4, tokens=16) == [slice(0, 4)]
    assert in_pieces(make_model("attention", PARITY), 4, 10, tokens=16) == [slice(0, 10)]


def test_the_state_is_that_of_one_pass():
    model = make_model("mamba", MQAR)
    whole, seen = state_after(model, 29), watch(model)
    cut = state_after(model, 29, tokens=8)
    assert seen == [8, 8, 8, 5]
    for one, other in zip(cut.states, whole.states, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mixer", ["lru", "mamba", "delta_net"])
def test_a_million_tokens_are_evaluated_within_the_memory_of_a_piece(mixer):
    length = 1 << 20
    data = {"length": 8, "test_lengths": [length], "num_train": 8, "num_validation": 8, "num_test": 2}
    specification = specify("bit_parity", **data)
    model = make_model(mixer, specification, hidden_size=8, num_hidden_layers=1).float()
    batch = rows(specification, length, 2)
    seen = watch(model)
    (row,) = evaluate_lengths(model, specification, {f"test_{length}": batch}, progress=False)
    # Two rows in pieces of 2^20 tokens, then the state of one row.
    assert seen == [length // 2] * 2 + [length]
    whole = predict_in_pieces(model, batch, tokens=1 << 22)
    right = (whole[0] == batch["labels"]).sum().item()
    measured = row.measured("token_accuracy")
    assert measured.denominator == 2 * length
    assert abs(measured.numerator - right) <= 2  # the order of float32 sums moves an argmax of equal scores
    assert row.value("loss") == pytest.approx(whole[1].double().mean().item(), abs=1e-5)
    assert (row.state_numbers, row.state_bytes) == measure_state(model, 64)
